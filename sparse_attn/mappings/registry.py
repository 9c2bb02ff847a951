"""Names of mappings, accepted wherever a mapping is."""

from __future__ import annotations

import difflib
import inspect
from functools import partial

from sparse_attn.mappings import (
    controls,
    derived,
    monotone,
    pointwise,
    projection,
    truncated,
    unnormalized,
    weighted,
)
from sparse_attn.mappings.base import Loss, MappingSpec

_SPECS: dict[str, MappingSpec] = {
    spec.name: spec
    for module in (pointwise, weighted, projection, monotone, truncated, unnormalized, controls)
    for spec in module.SPECS
}


def mapping_names() -> tuple[str, ...]:
    """The names of all registered mappings."""
    return tuple(_SPECS)


def own_losses() -> dict[str, Loss]:
    """The losses that train one label among many classes, by mapping name."""
    return {name: spec.own_loss for name, spec in _SPECS.items() if spec.own_loss is not None}


def get_spec(name: str, *, sink: bool = False) -> MappingSpec:
    """The record of the mapping `name`, with the parameter `sink` if asked for.

    `mixed-NAME` is (1 - mix) softmax + mix NAME, for every NAME with scalar parameters;
    `scaled-NAME` is NAME((delta + beta (log n)^gamma) z).

    Raises:
        ValueError: an unknown name; the message lists the nearest names, or all. A mapping that
            cannot be mixed, scaled or given a sink.
    """
    if sink and name not in _SPECS:
        _check_sink(str(name))
    if name not in _SPECS and str(name).startswith(derived.SCALED):
        return derived.scaled(get_spec(name.removeprefix(derived.SCALED), sink=sink))
    if sink:
        return derived.with_sink(get_spec(name))
    if name not in _SPECS and str(name).startswith(derived.MIXED):
        return derived.mixed(get_spec(name.removeprefix(derived.MIXED)))
    if name not in _SPECS:
        near = difflib.get_close_matches(str(name), _SPECS, n=3)
        hint = f"did you mean {', '.join(near)}?" if near else f"there are {', '.join(_SPECS)}"
        raise ValueError(f"mapping={name!r} is unknown; {hint}")
    return _SPECS[name]


def _check_sink(name: str) -> None:
    """Raise for a mapping made of another whose sink would be scaled with its scores."""
    inner = name.removeprefix(derived.SCALED)
    learned = inner in _SPECS and _SPECS[inner].weights is not None
    if name.startswith(derived.MIXED + derived.SCALED) or (inner != name and learned):
        raise ValueError(f"sink: {name} cannot have one; leave it out, or use scaled-softmax")


def register_mapping(spec: MappingSpec) -> None:
    """Register the mapping of `spec`, for attention, heads and the command line.

    Raises:
        ValueError: the name is taken; the record names a kernel, which would run a mapping of the
            library instead of `function`; or `multilabel_only` or `predicts` names a loss or
            parameter that the record does not have.
        TypeError: `function` takes no `log` and there is no `log_function`, or a loss is not
            callable.
    """
    if spec.kernel is not None:
        raise ValueError(
            f"kernel={spec.kernel.name!r}: expected None for {spec.name}; the kernels compute the "
            "library's own mappings; set log_g if yours is pointwise"
        )
    if spec.name in _SPECS:
        raise ValueError(f"name={spec.name!r} is already registered; choose another name")
    _check_losses(spec)
    try:
        if isinstance(spec.log_function, partial):  # others, such as builtins, may have none
            inspect.signature(spec.log_function)
    except ValueError:  # of a partial function without such an argument
        raise TypeError(
            f"function: that of {spec.name} takes no `log`; accept log=False and pass it to "
            "on_rows, or set log_function"
        ) from None
    _SPECS[spec.name] = spec


def _check_losses(spec: MappingSpec) -> None:
    """Raise if the record names losses or a parameter that it does not have."""
    for name, loss in spec.losses.items():
        if not callable(loss):
            raise TypeError(
                f"losses: expected functions (scores, target, ...) by name, got {name!r}: {loss!r}"
            )
    only = spec.multilabel_only
    if isinstance(only, str) or not set(only) <= set(spec.losses):
        raise ValueError(
            f"multilabel_only={only!r}: expected a tuple of names of the losses of {spec.name}, "
            f"which has {', '.join(spec.losses) or 'none'}"
        )
    parameters = [p.name for p in spec.parameters]
    if spec.predicts is not None and spec.predicts not in parameters:
        raise ValueError(
            f"predicts={spec.predicts!r}: expected a parameter of {spec.name}, which has "
            f"{', '.join(parameters) or 'none'}"
        )
