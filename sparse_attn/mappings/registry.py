"""Registry of mappings by name."""

from __future__ import annotations

import difflib
import inspect
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, get_args, overload

from sparse_attn.mappings import (
    adaptive,
    baselines,
    monotone,
    pointwise,
    projection,
    truncated,
    unnormalized,
    variants,
    weighted,
)
from sparse_attn.mappings.from_function import plain_spec
from sparse_attn.mappings.specs import Loss, MappingSpec, Mass, ParameterSpec

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

_SPECS: dict[str, MappingSpec] = {
    spec.name: spec
    for module in (
        pointwise,
        weighted,
        projection,
        monotone,
        truncated,
        adaptive,
        unnormalized,
        baselines,
    )
    for spec in module.SPECS
}

LIBRARY = frozenset(_SPECS)
LONGEST_NAME = 100  # each prefix of a name gives another record

# names of the literature: a word of the name, and the name here
ALSO_CALLED = {
    "softmax1": "softmax with sink=0",
    "softmax-1": "softmax with sink=0",
    "off-by-one": "softmax with sink=0",
    "quiet": "softmax with sink=0",
    "attention-sink": "softmax with sink=0",
    "ssmax": "scaled-softmax",
    "scalable": "scaled-softmax",
    "asentmax": "scaled-entmax",
    "top-p": "top-p-softmax",
    "nucleus": "top-p-softmax",
    "twilight": "top-p-softmax",
    "skip": "max-gap",
    "blasst": "max-gap",
}


def mapping_names() -> tuple[str, ...]:
    """Return the names of all registered mappings."""
    return tuple(_SPECS)


def own_losses() -> dict[str, Loss]:
    """Return the losses that train one label among many classes, by mapping name."""
    return {name: spec.own_loss for name, spec in _SPECS.items() if spec.own_loss is not None}


def get_spec(name: str, *, sink: bool = False) -> MappingSpec:
    """Return the record of the mapping `name`, with `sink` also the parameter of that name.

    `mixed-NAME` is (1 - mix) softmax + mix NAME, for every NAME with scalar parameters;
    `scaled-NAME` is NAME((delta + beta (log n)^gamma) z); `detached-r-softmax` has the gradient of
    the authors' code.

    Raises:
        ValueError: an unknown name; the message has its name here, the nearest names, or all names.
            A mapping that cannot be mixed, scaled, detached or given a sink. `mixed-` and `scaled-`
            together. Not a name.
    """
    if not isinstance(name, str):
        raise ValueError(
            f"mapping={name!r}: expected a name, such as 'sparsemax', with parameters as arguments"
        )
    if len(name) > LONGEST_NAME:
        raise ValueError(f"mapping={name[:30]!r}... is unknown; it has {len(name)} characters")
    base = _base(name)
    if base not in _SPECS:
        raise ValueError(f"mapping={name!r} is unknown; {_hint(name, base)}")
    prefixes = name.removesuffix(base)
    if variants.MIXED in prefixes and variants.SCALED in prefixes:
        raise ValueError(
            f"mapping={name!r}: mixed- and scaled- do not combine; use mixed-{base} or "
            f"scaled-{base}"
        )
    prefix = _prefix(name)
    if prefix == variants.SCALED:
        return variants.scaled(get_spec(name.removeprefix(prefix), sink=sink))
    if sink:
        return variants.with_sink(get_spec(name))
    if prefix is not None:
        return variants.PREFIXES[prefix](get_spec(name.removeprefix(prefix)))
    return _SPECS[name]


def _prefix(name: str) -> str | None:
    """Return the prefix that derives this mapping from another; None for a registered one."""
    return next((p for p in variants.PREFIXES if name.startswith(p) and name not in _SPECS), None)


def _base(name: str) -> str:
    """Return the name of the mapping that this one is derived from."""
    prefix = _prefix(name)
    return name if prefix is None else _base(name.removeprefix(prefix))


def _hint(name: str, base: str) -> str:
    """Suggest names instead of an unknown one, whose base is `base`."""
    made = name.removesuffix(base)
    base, _, values = base.partition(":")
    if base in _SPECS:
        return f'give its parameters as arguments: patch_model(model, "{made}{base}", {values})'
    plain = re.sub(r"[\s_]+", "-", base.lower())
    same = [found for found in _SPECS if found.replace("-", "") == plain.replace("-", "")]
    known_here = [here for word, here in ALSO_CALLED.items() if word in plain][:1]
    near = same or known_here or difflib.get_close_matches(base, _SPECS, n=3)
    remedy = "import the module of yours first (--import MODULE)"
    if not near:
        return f"there are {', '.join(_SPECS)}; {remedy}"
    # prefixes do not combine
    whole = [
        found if found.startswith(tuple(variants.PREFIXES)) else made + found for found in near
    ]
    return f"did you mean {', '.join(whole)}? Or {remedy}"


def module_of(name: str) -> str | None:
    """Return the module of a user's mapping, or of the one that it is derived from.

    None for a mapping of the library, or of a script or notebook, which no other program imports.
    """
    base = _base(name)
    spec = _SPECS.get(base)
    if spec is None or base in LIBRARY:  # None: of a mapping that was pickled
        return None
    module: str = getattr(spec.log_g or spec.function, "__module__", None) or ""
    # functools is that of a partial function, sparse_attn that of `pointwise_spec`
    others = ("", "__main__", "__mp_main__", "functools", "sparse_attn", "torch")
    return None if module.partition(".")[0] in others else module


def file_of(name: str) -> Path | None:
    """Return the file of a user's mapping; None where `module_of` gives None, or without a file."""
    module = sys.modules.get(module_of(name) or "")
    file = getattr(module, "__file__", None)
    return None if file is None else Path(file)


def parameters_of(spec: MappingSpec) -> tuple[ParameterSpec, ...]:
    """Return the parameters of a `Mapping` of this record, with the optional sink."""
    try:
        return get_spec(spec.name, sink=True).parameters
    except ValueError:
        return spec.parameters


@overload
def register_mapping(spec: MappingSpec) -> None: ...
@overload
def register_mapping(spec: str, **fields: Any) -> Callable[[FunctionT], FunctionT]: ...
def register_mapping(spec: MappingSpec | str, **fields: Any) -> Any:
    """Register a mapping, for attention, heads and the command line.

    With a name, this decorates a function of rows and returns it unchanged:

        @register_mapping("sharp", source="my paper")
        def sharp(scores, power=2.0):
            weights = scores.softmax(-1) ** power
            return weights / weights.sum(-1, keepdim=True)

    The function gets scores (..., n) in float32 or float64, -inf where masked. It returns
    probabilities of the same shape, of each row along the last dimension. The other arguments are
    parameters: numbers as defaults, tensors (1,) or (..., 1) in calls. An argument named `valid`
    gets the boolean mask, (..., n); masked scores are then 0. Calls with random rows check all this
    before the mapping is registered.

    Args:
        spec: the record of the mapping, or its name.
        **fields: with a name, further fields of `MappingSpec`. `parameters` has those with a range;
            by default the range is (-inf, inf). `zeros` and `translation_invariant` are by default
            what the random rows show at the default parameters.

    Raises:
        ValueError: the name is taken, or has other characters than letters, digits, "-", "_" and
            "."; the record names a kernel, which would run a mapping of the
            library instead of `function`; its mass is none of the three; or `multilabel_only` or
            `predicts` names a loss or parameter that the record does not have; or the function is
            no mapping of rows.
        TypeError: `function` takes no `log` and there is no `log_function`, or a loss is not
            callable, or an argument of the function cannot be a parameter; or no name is given.
    """
    if isinstance(spec, str):
        return partial(_register_function, spec, fields)
    if not isinstance(spec, MappingSpec):
        raise TypeError('register_mapping: expected a name, as in @register_mapping("my-name")')
    _register(spec)
    return None


def _register_function(name: str, fields: dict[str, Any], function: FunctionT) -> FunctionT:
    spec, known = plain_spec(name, function, **fields), _SPECS.get(name)
    if known is not None and _place(known.function) == _place(function):
        del _SPECS[name]  # a cell of a notebook runs again, or a module is reloaded
    _register(spec)
    return function


def _place(function: Callable[..., Any]) -> tuple[str, str | None]:
    return function.__module__, getattr(function, "__name__", None)


def _register(spec: MappingSpec) -> None:
    if spec.kernel is not None:
        raise ValueError(
            f"kernel={spec.kernel.name!r}: expected None for {spec.name}; the kernels compute the "
            "library's own mappings; set log_g if yours is pointwise"
        )
    if not re.fullmatch(r"[\w.-]+", spec.name):
        raise ValueError(f"name={spec.name!r}: expected letters, digits, '-', '_' and '.'")
    if spec.name in _SPECS:
        raise ValueError(f"name={spec.name!r} is already registered; choose another name")
    if spec.mass not in get_args(Mass):
        raise ValueError(f"mass={spec.mass!r}: expected one of {', '.join(get_args(Mass))}")
    _check_losses(spec)
    try:
        if isinstance(spec.log_function, partial):  # builtins, for example, may have no signature
            inspect.signature(spec.log_function)
    except ValueError:  # the signature of a partial function without this argument
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
