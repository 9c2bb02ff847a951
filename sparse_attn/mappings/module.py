"""`Mapping`: a registered mapping with its parameters, fixed, scheduled or learned."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, cast

import torch
from torch import Tensor, nn

from sparse_attn.mappings.by_query import QueryScale
from sparse_attn.mappings.from_function import try_values
from sparse_attn.mappings.registry import get_spec, parameters_of
from sparse_attn.mappings.specs import MappingSpec
from sparse_attn.mappings.values import ParameterValues, as_plain
from sparse_attn.mappings.variants import BETA, DELTA, GAMMA, MIXED, SCALED, SINK, is_scaled

MOST_WEIGHTS = 2**20  # limit for one mapping, whose size may come from an untrusted config


class Mapping(ParameterValues):
    """p = map(scores; parameters), as a module.

    A fixed parameter is a persistent buffer of its name, so that averages and copies of a model
    carry what a schedule has set with `set_value`; NaN stands for None. `value` returns it as a
    Python float, with all digits that were given, or as a float64 tensor of one value per head. A
    learned one is an `nn.Parameter` named `raw_<name>`, mapped into its range by softplus or
    sigmoid. Casting the model to half precision rounds neither.

    Attributes:
        by_query: the `QueryScale` of a mapping with `query_size`, else None.

    Args:
        name: a registered name, see `mapping_names()`.
        learn: names of the parameters to learn, starting from the values given.
        num_heads: H for one learned value per head, applied to scores (..., H, Q, K); None for a
            single value.
        query_size: for `scaled-NAME` in attention, the length of the input of each query, on which
            its factor depends (`QueryScale`). beta is then in (0, inf), by default 1. Needs
            num_heads.
        **parameters: values of the mapping's parameters and options; defaults from the registry.
            Every mapping whose weights compete also takes `sink`, the score of a virtual key of
            value 0 (`get_spec`); None for no sink.

    Raises:
        ValueError: an unknown name, a value out of range, a learned parameter that starts at the
            end of its range, or one that has no effect beside another (alpha beside gamma of
            clipped softmax).
        TypeError: an unknown parameter.
    """

    def __init__(
        self,
        name: str,
        *,
        learn: str | Iterable[str] = (),
        num_heads: int | None = None,
        query_size: int | None = None,
        **parameters: Any,
    ) -> None:
        super().__init__()
        self.by_query: QueryScale | None = None
        if not isinstance(learn, Iterable) or not all(isinstance(n, str) for n in [*learn]):
            raise TypeError(f"learn={learn!r}: expected the name of a parameter, or several names")
        self.learned = (learn,) if isinstance(learn, str) else tuple(learn)
        if parameters.get(SINK.name, ...) is None:
            del parameters[SINK.name]
        self.spec = get_spec(name, sink=SINK.name in (*parameters, *self.learned))
        self.name = name
        if num_heads is not None and num_heads < 1:
            raise ValueError(f"num_heads={num_heads}: expected at least 1, or None for one value")
        self.num_heads = num_heads
        if query_size is not None:
            self._check_query_size(query_size)
            parameters.setdefault(BETA.name, 1.0)  # so that it starts as NAME
        self._check_names(parameters)
        self.options = {
            option.name: parameters.get(option.name, option.default) for option in self.spec.options
        }
        for parameter in self.spec.parameters:
            value = parameters.get(parameter.name, parameter.default)
            if parameter.name in self.learned:
                self._learn(parameter, value)
            else:
                self._store(parameter.name, self._checked(parameter.name, value))
        self._check_unused(parameters)
        self._make_weights()
        try_values(self.spec, parameters)
        if query_size is not None:
            self.by_query = QueryScale(cast(int, self.num_heads), query_size)
            self._check_offset(BETA.name, parameters[BETA.name])
        self._describe_values()

    def _check_query_size(self, size: int) -> None:
        check_by_query(self.spec, f"query_size={size!r}")
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ValueError(f"query_size={size!r}: expected a whole number of at least 1")
        if self.num_heads is None:
            raise ValueError(f"query_size={size}: needs num_heads, for weights of each head")

    def _check_names(self, parameters: dict[str, Any]) -> None:
        possible = parameters_of(self.spec)
        known = [p.name for p in (*possible, *self.spec.options)]
        takes = f"{self.name} takes {', '.join(known) or 'no parameters'}"
        for name in parameters:
            if name not in known:
                raise TypeError(f"{name}={parameters[name]!r}: unknown parameter; {takes}")
        learnable = [p.name for p in possible if p.learnable and not p.per_entry]
        for name in self.learned:
            if name not in learnable:
                can = ", ".join(learnable) or "no parameter"
                fixed = name in known and not any(p.learnable for p in possible if p.name == name)
                why = "no gradient reaches it; " * fixed
                raise TypeError(f"learn={name!r}: {why}{self.name} can learn {can}")

    def _check_unused(self, parameters: dict[str, Any]) -> None:
        for p in self.spec.parameters:
            value = parameters.get(p.name, p.default)
            given = p.name in self.learned or isinstance(value, (Tensor, Sequence))
            if p.name in self.unused and (given or value != p.default):
                raise ValueError(
                    f"{p.name}={value}: has no effect beside {p.instead_of}; leave one of the two "
                    "out"
                )

    def _make_weights(self) -> None:
        if self.spec.weights is None:
            self.weight_names: tuple[str, ...] = ()
            return
        if self.num_heads is not None:
            raise ValueError(
                f"num_heads={self.num_heads}: {self.name} is shared by all heads; leave it out"
            )
        for option in self.spec.options:
            option.check(self.options[option.name])
            if option.whole and self.options[option.name] > MOST_WEIGHTS:
                raise ValueError(
                    f"{option.name}={self.options[option.name]}: expected at most {MOST_WEIGHTS}, "
                    f"because each of the {option.name} is a weight of {self.name}"
                )
        weights = self.spec.weights(**self.options)
        self.weight_names = tuple(weights)
        for name, initial in weights.items():
            # a user's may have the default dtype
            self.register_parameter(name, nn.Parameter(initial.float()))

    @property
    def per(self) -> str:
        """The unit with its own learned value: "layer", "head", or "query" with `query_size`."""
        if self.by_query is not None:
            return "query"
        return "layer" if self.num_heads is None else "head"

    def set_value(self, name: str, value: float | Sequence[float] | None) -> None:
        """Set the fixed parameter `name` to `value`, a number or one per head.

        None restores a default of None.

        Raises:
            TypeError: the mapping has no such fixed parameter, or `value` is not a number.
            ValueError: out of range, or not one value per head.
        """
        self._check_offset(name, value)
        if name not in self.fixed:
            raise TypeError(
                f"{name}={value}: not a fixed parameter of {self.name}, which has "
                f"{', '.join(self.fixed) or 'none'}"
            )
        checked = self._checked(name, value)
        before = self._state()
        self._store(name, checked)
        self._is_scheduled = True
        if before != (after := self._state()):
            self._changes.add(before, after)
        self._describe_values()

    def _check_offset(self, name: str, value: Any) -> None:
        """Raise for a beta at which the weights of the queries would have no gradient."""
        if self.by_query is None or name != BETA.name:
            return
        if torch.as_tensor(value, device="cpu").min() > 0:
            return
        raise ValueError(
            f"beta={value}: expected a number in (0, inf), as the factor depends on the query; the "
            "default is then 1"
        )

    def forward(
        self,
        scores: Tensor,
        mask: Tensor | None = None,
        dim: int = -1,
        sink: Tensor | None = None,
        factor: Tensor | None = None,
    ) -> Tensor:
        """Return p = map(scores; parameters), as the function of that name.

        Args:
            scores: any shape, floating point; (..., H, Q, K) with `num_heads`.
            mask: boolean, True = takes part, broadcastable to scores.
            dim: the dimension to normalise.
            sink: the score of a virtual key, broadcastable to the rows, for a mapping without the
                parameter `sink`.
            factor: of a mapping with `query_size` that of each row, (..., Q), as
                `factor_of_queries` returns it.

        Returns:
            Probabilities, shape and dtype of scores; exactly 0 where masked. Errors as `softmax`;
            ValueError also for a sink that the mapping cannot have.
        """
        arguments = self.arguments(factor)
        if sink is None:
            return self.spec.function(scores, **arguments, mask=mask, dim=dim)
        arguments[SINK.name] = sink
        return self.spec_with_sink().function(scores, **arguments, mask=mask, dim=dim)

    def factor_of_queries(self, x: Tensor, n: Tensor) -> Tensor:
        """Return the factor of queries with inputs x (B, Q, query_size) and n keys, (B, H, Q)."""
        assert self.by_query is not None
        return self.by_query(x, n, *(self.value(p.name) for p in (DELTA, BETA, GAMMA)))

    @property
    def has_sink(self) -> bool:
        """Whether the mapping has the parameter `sink`."""
        return SINK in self.spec.parameters

    def spec_with_sink(self) -> MappingSpec:
        """Return the record with the parameter `sink`, for a sink that is passed to a call.

        Raises:
            ValueError: the mapping has a sink of its own, or cannot have one.
        """
        if self.has_sink:
            raise ValueError(f"sink: {self.name} has one of its own; leave out one of the two")
        return get_spec(self.name, sink=True)

    def log(self, scores: Tensor, mask: Tensor | None = None, dim: int = -1) -> Tensor:
        """Return log p, in nats, -inf at exact zeros and masked positions; else as `forward`."""
        return self.spec.log_function(scores, **self.arguments(), mask=mask, dim=dim)

    def arguments(self, factor: Tensor | None = None) -> dict[str, Any]:
        """Return the arguments of the spec's functions besides the scores, by name, in order.

        A learned parameter is a tensor that broadcasts to the rows, () or [num_heads, 1]. With
        `query_size` the factor of each row is delta.

        Raises:
            ValueError: there is `query_size`, but no factor.
        """
        if self.by_query is not None and factor is None:
            raise ValueError(
                f"{self.name}: its factor needs the inputs of the queries, which only attention "
                "has; use a mapping without query_size (per='query')"
            )
        arguments: dict[str, Any] = {n: getattr(self, n) for n in self.weight_names}
        for spec in self.spec.parameters:
            value = self.value(spec.name)
            if isinstance(value, Tensor) and not spec.per_entry:
                # rows are (..., H, Q); a single value fits rows of any shape
                value = value.reshape(()) if self.num_heads is None else value.unsqueeze(-1)
            arguments[spec.name] = value
        if factor is not None:
            arguments |= {DELTA.name: factor, BETA.name: 0.0, GAMMA.name: 1.0}
        return arguments

    def parameter_values(self) -> dict[str, Any]:
        """Return parameters that have an effect, and options, as plain numbers and lists."""
        names = [p.name for p in self.spec.parameters if p.name not in self.unused]
        return {**{name: as_plain(self.value(name)) for name in names}, **self.options}

    def describe(self) -> dict[str, Any]:
        """Return the arguments of `Mapping(...)` that recreate this one, without learned values.

        A learned parameter that needs a start value has one. "params" follows later changes.
        """
        return {
            "mapping": self.name,
            "params": self._values,
            "learn": list(self.learned),
            "per": self.per,
        }

    def extra_repr(self) -> str:
        absent = any(p.is_meta or hasattr(p, "full_tensor") for p in self.parameters(recurse=False))
        values = self.describe()["params"] if absent else self.parameter_values()
        parts = [repr(self.name), *(f"{n}={_shown(v)}" for n, v in values.items())]
        if self.learned:
            parts.append(f"learn={list(self.learned)}")
        if self.by_query is not None:
            parts.append('per="query"')
        return ", ".join(parts)

    def _repr_html_(self) -> str:
        """Show a notebook the `repr`, and each parameter with its value and range."""
        called = f"<code>{escape(repr(self))}</code>"
        rows = [
            f"<tr><td>{p.name}</td><td>{escape(_shown(as_plain(self.value(p.name))))}</td>"
            f"<td>{escape(p.range)}</td>"
            f"<td>{'learned' if p.name in self.learned else 'fixed'}</td></tr>"
            for p in self.spec.parameters
        ]
        if not rows:
            return called
        head = "<tr><th>parameter</th><th>value</th><th>range</th><th></th></tr>"
        return f"{called}<table>{head}{''.join(rows)}</table>"


def check_by_query(spec: MappingSpec, given: str) -> None:
    """Raise ValueError, starting with the argument, unless `QueryScale` fits the mapping."""
    name = spec.name.removeprefix(MIXED)
    if not is_scaled(spec):
        raise ValueError(
            f"{given}: only the factor of scaled-NAME can depend on the query; use "
            f"{SCALED}{name}, or leave it out"
        )
    if spec.weights is not None:
        raise ValueError(f"{given}: the learned function of {name} is shared by all heads")


def _shown(value: Any) -> str:
    """Format a value for display; numbers of a tensor come in a list, with float32's digits."""
    return str([float(f"{x:.7g}") for x in value] if isinstance(value, list) else value)
