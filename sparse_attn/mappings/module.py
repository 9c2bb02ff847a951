"""`Mapping`: a registered mapping with its parameters, fixed, scheduled or learned."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sparse_attn.mappings.base import MappingSpec, ParameterSpec, softplus_inverse
from sparse_attn.mappings.by_query import QueryScale
from sparse_attn.mappings.changes import Changes
from sparse_attn.mappings.from_function import try_values
from sparse_attn.mappings.registry import get_spec, parameters_of
from sparse_attn.mappings.variants import BETA, DELTA, GAMMA, MIXED, SCALED, SINK, is_scaled

MOST_WEIGHTS = 2**20  # limit for one mapping, whose size may come from an untrusted config


class Values(dict[str, Any]):
    """Values of a `Mapping`, which the config of its model lists: this object, not a copy."""


class Mapping(nn.Module):
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
        self._is_scheduled = False
        self._changes = Changes()
        self._numbers: dict[str, float] = {}  # single values with all their digits, but None
        self._values = Values()
        self._seen = _Seen()
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
        # start values of learned parameters without a usable default, to recreate the mapping
        self.starts: dict[str, Any] = {}
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

    @property
    def unused(self) -> list[str]:
        """Names of the parameters without effect, because another is given."""
        pairs = [(p.name, p.instead_of) for p in self.spec.parameters if p.instead_of is not None]
        return [n for n, other in pairs if other in self.learned or self.value(other) is not None]

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

    def _learn(self, parameter: ParameterSpec, value: float | Sequence[float] | None) -> None:
        if value is None:
            raise ValueError(
                f"learn={parameter.name!r}: give {parameter.name} a number to start from"
            )
        initial = _numbers(parameter.name, value).reshape(-1)
        if len(initial) not in (1, self.num_heads or 1):
            raise ValueError(self._wrong_number(parameter.name, len(initial)))
        raw = _into_reals(parameter, initial.expand(self.num_heads or 1).clone())
        if not raw.isfinite().all():
            middle = into_range(parameter, initial.new_zeros(()))
            raise ValueError(
                f"{parameter.name}={value}: a learned {parameter.name} must start strictly inside "
                f"{parameter.range}, such as at {middle:.2g}"
            )
        default = parameter.default
        if default is None or not _into_reals(parameter, initial.new_tensor(default)).isfinite():
            self.starts[parameter.name] = initial.tolist() if len(initial) > 1 else initial.item()
        raw = raw.to(torch.get_default_device(), torch.float32)
        self.register_parameter(f"raw_{parameter.name}", nn.Parameter(raw))

    @property
    def per(self) -> str:
        """The unit with its own learned value: "layer", "head", or "query" with `query_size`."""
        if self.by_query is not None:
            return "query"
        return "layer" if self.num_heads is None else "head"

    @property
    def was_set(self) -> bool:
        """Whether fixed values may change: by a schedule, or in a copy, which may be an average.

        A graph then reads the buffers, else the numbers are its constants.
        """
        return self._is_scheduled or self._changes.is_of_copy

    @property
    def fixed(self) -> list[str]:
        """Names of the parameters that are not learned."""
        return [p.name for p in self.spec.parameters if p.name not in self.learned]

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

    def _checked(self, name: str, value: Any) -> float | Tensor | None:
        """Return a value in the range of the parameter: a number, or a tensor of several."""
        spec = self.spec.parameter(name)
        if value is None and spec.default is None:
            return None
        values = None if isinstance(value, float) else _numbers(name, value)
        if values is None or values.dim() == 0:
            spec.check(value)
            return float(value)
        for item in values.flatten().tolist():
            spec.check(item)
        if not spec.per_entry and values.shape != (self.num_heads,):
            raise ValueError(self._wrong_number(name, f"shape {tuple(values.shape)}"))
        return values

    def _store(self, name: str, value: float | Tensor | None) -> None:
        """Write a value to its buffer, and a single one beside with all its digits."""
        # private: nn.Module has no faster way to its buffers
        held = self._buffers.get(name)
        content = value if isinstance(value, Tensor) else _rounded(value)
        with torch.inference_mode(False):  # whose tensors do not count their changes
            if held is None or held.dim() or content.dim() or held.is_inference():
                self.register_buffer(name, content.to("cpu" if held is None else held.device))
            else:  # in place, because DDP and CUDA graphs hold it
                held.copy_(content)
        if not content.dim():
            self._seen.note(name, self.get_buffer(name))
        self._keep(name, value if isinstance(value, float) else None)

    def _keep(self, name: str, number: float | None) -> None:
        """Keep the number of a single value; None for several and for None."""
        self._numbers.pop(name, None)
        if number is not None:
            self._numbers[name] = number
        # beside, because a graph of PyTorch 2.11 is of all values of a dict that it looks into
        self._numbered = tuple(self._numbers)

    def _accept(self, name: str, found: float, dtype: torch.dtype) -> None:
        """Take the number in a buffer, unless it is the present one after rounding."""
        if repr(found) == repr(_rounded(self._numbers.get(name)).to(dtype).item()):
            return
        short = float(f"{found:.7g}")  # 0.6 for float32's 0.6000000238
        number = short if _rounded(short).item() == found else found
        before = self._state()
        self._keep(name, None if math.isnan(found) else number)
        self._is_scheduled = True
        self._changes.add(before, self._state())
        self._describe_values()

    def take_back(self) -> None:
        """Take from the description the fixed values that a load has rounded or has not found.

        Raises:
            ValueError: it has loaded one out of range.
        """
        for name in self.fixed:
            if name in self.unused:
                continue
            buffer, given = self.get_buffer(name), self._checked(name, self._values[name])
            held = (given if isinstance(given, Tensor) else _rounded(given)).to("cpu", buffer.dtype)
            # private: Transformers marks what it has loaded
            is_lost = not hasattr(buffer, "_is_hf_initialized")
            if is_lost or torch.equal(buffer.cpu().nan_to_num(), held.nan_to_num()):
                self._store(name, given)
            elif not buffer.is_meta:
                found = buffer.tolist()
                is_none = found != found and self.spec.parameter(name).default is None
                self._checked(name, None if is_none else found)

    def _describe_values(self) -> None:
        """Bring `_values` up to date: what recreates the mapping, without learned values."""
        # not read, because under FSDP a process holds only a part of them
        fixed = [name for name in self.fixed if name not in self.unused]
        values = {**self._plain(fixed), **self.starts, **self.options}
        self._values.clear()
        self._values.update(values)

    def _state(self) -> dict[str, Any]:
        own = self.named_buffers("", False)
        return {n: b.tolist() for n, b in own if b.dim() and not b.is_meta} | self._numbers

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

    def _wrong_number(self, name: str, got: object) -> str:
        if self.num_heads is None:
            remedy = 'for one a head set num_heads, which is per="head" in patch_model'
            return f"{name}: expected one value, got {got}; {remedy}"
        return f"{name}: expected one value or one for each of {self.num_heads} heads, got {got}"

    def value(self, name: str) -> Any:
        """Return the value of `name`: a float, or a tensor [1] or [num_heads] with its graph.

        None if each row derives it. A tensor without dimensions in a graph whose value may change.
        """
        if name in self.learned:
            return self._learned_value(name)
        buffer: Any = self._buffers[name]
        if torch.compiler.is_compiling():
            # a graph cannot see that a buffer has been written to
            moves = buffer.dim() or (self.was_set and name in self._numbered)
            return buffer if moves else self._numbers.get(name)
        # not `holds`, because every call of attention comes here
        seen = self._seen.get(name)
        if seen is None or seen[0] is not buffer or seen[1] != buffer._version:
            return self._read(name, buffer)
        if self._changes.states:
            self._changes.refuse_recomputation(self.name)
        return self._numbers.get(name)

    def _read(self, name: str, buffer: Tensor) -> Any:
        """Return several values, or a single one whose buffer was written to."""
        is_single = not buffer.dim() and not _is_transformed(buffer)
        if is_single:
            refresh([self])
        self._changes.refuse_recomputation(self.name)
        return self._numbers.get(name) if is_single else buffer

    read = value

    def changed_buffers(self) -> list[tuple[str, Tensor]]:
        """Return the buffers of single values that were written to since they were read."""
        if torch.compiler.is_compiling():
            return []
        own = self.named_buffers("", False)
        new = [(n, b) for n, b in own if not (b.dim() or self._seen.holds(n, b))]
        return [(name, b) for name, b in new if not b.is_meta and not _is_transformed(b)]

    def _learned_value(self, name: str) -> Tensor:
        raw: nn.Parameter = getattr(self, f"raw_{name}")
        # private: accelerate has no public way to its hooks
        hook = self.__dict__.get("_hf_hook") if raw.is_meta else None
        if hook is None:
            return into_range(self.spec.parameter(name), raw)
        hook.pre_forward(self)  # it is offloaded
        raw = getattr(self, f"raw_{name}")
        return hook.post_forward(self, into_range(self.spec.parameter(name), raw))

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
        return {**self._plain(names), **self.options}

    def _plain(self, names: Iterable[str]) -> dict[str, Any]:
        values = {name: self.value(name) for name in names}
        return {n: v.tolist() if isinstance(v, Tensor) else v for n, v in values.items()}

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
            f"<tr><td>{p.name}</td><td>{escape(_shown(value))}</td><td>{escape(p.range)}</td>"
            f"<td>{'learned' if p.name in self.learned else 'fixed'}</td></tr>"
            for p in self.spec.parameters
            for value in self._plain([p.name]).values()
        ]
        if not rows:
            return called
        head = "<tr><th>parameter</th><th>value</th><th>range</th><th></th></tr>"
        return f"{called}<table>{head}{''.join(rows)}</table>"

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        """Move with the model but keep the precision: r = 0.15 would be 0.1504 in bfloat16.

        Fixed values survive the meta device and `to_empty`, because a state dict may lack them.
        """

        def move(tensor: Tensor) -> Tensor:
            fixed = any(tensor is buffer for buffer in self.buffers(recurse=False))
            moved = fn(tensor.float() if fixed else tensor)  # MPS has no float64
            if fixed and moved.is_meta:
                return tensor
            half = moved.dtype in (torch.float16, torch.bfloat16)
            widest = torch.float32 if moved.device.type == "mps" else tensor.dtype
            return tensor.to(moved.device, widest) if half or fixed else moved

        with torch.inference_mode(False):
            # private: a model does not call the public `to` of its modules
            return super()._apply(move, recurse)

    # private: a public hook would be pickled with the module
    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *args: Any) -> None:
        for name, buffer in self._buffers.items():  # a state of before they were in it
            state.setdefault(prefix + name, buffer)
        super()._load_from_state_dict(state, prefix, *args)

    def __deepcopy__(self, memo: dict[int, Any]) -> Mapping:
        twin = memo[id(self)] = Mapping.__new__(type(self))
        twin.__setstate__(copy.deepcopy(vars(self), memo))
        twin._changes.is_of_copy = True
        return twin


class _Seen(dict[str, tuple[Tensor, int]]):
    """Buffers and their versions when their numbers were read. Copies and pickles have none."""

    def note(self, name: str, buffer: Tensor) -> None:
        if not buffer.is_inference():
            self[name] = buffer, buffer._version

    def holds(self, name: str, buffer: Tensor) -> bool:
        """Whether the buffer is the one that was read, and has not been written to since."""
        seen = self.get(name)
        return seen is not None and seen[0] is buffer and seen[1] == buffer._version

    def __reduce__(self) -> tuple[type[_Seen], tuple[()]]:
        return _Seen, ()


def refresh(mappings: Iterable[Mapping]) -> None:
    """Read the numbers whose buffers were written to: all at once, as a GPU is waited for."""
    stale = [(mapping, *one) for mapping in mappings for one in mapping.changed_buffers()]
    if not stale:
        return
    device = stale[0][2].device
    found = torch.stack([buffer.detach().to(device) for *_, buffer in stale]).tolist()
    for (mapping, name, buffer), number in zip(stale, found, strict=True):
        mapping._seen.note(name, buffer)
        mapping._accept(name, number, buffer.dtype)


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


def _is_transformed(tensor: Tensor) -> bool:
    """Whether the tensor is one of torch.func, such as one for each of several models."""
    # private: torch.func cannot be asked publicly
    return torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def _rounded(number: float | None) -> Tensor:
    """Return a number as its buffer holds it; NaN for None."""
    number = math.nan if number is None else number
    return torch.tensor(number, dtype=torch.float32, device="cpu")


def _shown(value: Any) -> str:
    """Format a value for display; numbers of a tensor come in a list, with float32's digits."""
    return str([float(f"{x:.7g}") for x in value] if isinstance(value, list) else value)


def _numbers(name: str, value: Any) -> Tensor:
    """Return a number, or a sequence of numbers, as a float64 tensor."""
    try:
        if isinstance(value, (bool, str)):
            raise TypeError
        # values on the meta device could not be checked
        return torch.as_tensor(value, dtype=torch.float64, device="cpu")
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{name}={value!r}: expected a number, or one for each head") from None


def into_range(spec: ParameterSpec, raw: Tensor) -> Tensor:
    """Map the real line onto the open range of a parameter."""
    below, above = _ends(spec)
    if below and above:
        return spec.low + (spec.high - spec.low) * torch.sigmoid(raw)
    if below:
        return spec.low + F.softplus(raw)
    if above:
        return spec.high - F.softplus(raw)
    return raw


def _into_reals(spec: ParameterSpec, value: Tensor) -> Tensor:
    """Inverse of `into_range`; not finite at the ends of the range and beyond."""
    below, above = _ends(spec)
    if below and above:
        return torch.logit((value - spec.low) / (spec.high - spec.low))
    if below:
        return softplus_inverse(value - spec.low)
    if above:
        return softplus_inverse(spec.high - value)
    return value


def _ends(spec: ParameterSpec) -> tuple[bool, bool]:
    """Whether the range has a lower and an upper end."""
    # comparisons, because math.isfinite of a symbolic number does not compile
    return spec.low > -math.inf, spec.high < math.inf
