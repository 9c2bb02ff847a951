"""Derived mappings: `mixed-`, `scaled-` and `detached-NAME`, and mappings with a sink."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sparse_attn.mappings.base import INF, Value, log_power, on_named_rows
from sparse_attn.mappings.pointwise import softmax
from sparse_attn.mappings.specs import DERIVED, MappingSpec, ParameterSpec
from sparse_attn.mappings.weighted import BALAZY, r_softmax

MIX = ParameterSpec("mix", default=1.0, low=0.0, high=1.0)
MIXED = "mixed-"
DELTA = ParameterSpec("delta", default=0.0, low=0.0, high_open=True)
BETA = ParameterSpec("beta", default=0.43, low=0.0, high_open=True)
GAMMA = ParameterSpec("gamma", default=1.0, low=0.0, high_open=True)
SCALED = "scaled-"
DETACHED = "detached-"
SINK = ParameterSpec("sink", default=0.0, low_open=True, high_open=True)


def _call(
    spec: MappingSpec,
    rows: Tensor,
    valid: Tensor,
    values: list[Tensor | None],
    log: bool,
    **weights: Tensor,
) -> Tensor:
    """Compute a record's mapping on rows, with parameter values in order."""
    function = spec.log_function if log else spec.function
    named = {
        p.name: None if value is None else value.squeeze(-1)
        for p, value in zip(spec.parameters, values, strict=True)
    }
    return function(rows, **weights, **named, mask=valid)


def _mixed_rows(
    rows: Tensor, valid: Tensor, *values: Tensor, spec: MappingSpec, log: bool
) -> Tensor:
    *own, mix = values
    far = _call(spec, rows, valid, [*own], log)
    if not log:
        return torch.lerp(softmax(rows, mask=valid), far, mix)
    near = softmax(rows, mask=valid, log=True)
    with torch.no_grad():
        # -inf for a side without a share, and where neither has one
        top = torch.maximum(near + torch.log1p(-mix), far + mix.log())
        impossible = top == -INF
        top = top.masked_fill(impossible, 0.0)
    # e^80 is finite, and larger values only meet shares below e^-80
    near, far = ((side - top).clamp(max=80.0).exp() for side in (near, far))
    total = torch.lerp(near, far, mix).masked_fill(impossible, 1.0)
    return (top + total.log()).masked_fill(impossible, -INF)


def _has_softmax(mix: Value, **arguments: Value) -> bool:
    return bool((mix < 1).all()) if isinstance(mix, Tensor) else mix < 1


def mixed(spec: MappingSpec) -> MappingSpec:
    """p = (1 - mix) softmax(z) + mix map(z): softmax at mix = 0, the mapping itself at mix = 1.

    The parameter `mix` in [0, 1] comes after the mapping's. Zeros only at mix = 1.

    Raises:
        ValueError: the mapping has tensor arguments (learned maps, which start as softmax anyway;
            weighted softmax), or already has a `mix`.
    """
    if spec.weights is not None or any(p.per_entry for p in spec.parameters):
        raise ValueError(
            f"mapping={MIXED + spec.name!r}: {spec.name} has tensor arguments, which cannot be "
            "mixed; use it alone"
        )
    _refuse_parameters(spec, MIXED, "mixed", MIX)
    return _derived(
        spec,
        (*spec.parameters, MIX),
        _mixed_rows,
        name=MIXED + spec.name,
        dense=_has_softmax,
        kernel=None,
        color=None,
        source=f"a ramp for {spec.source}",
    )


def length_factor(n: Tensor, delta: Tensor, beta: Tensor, gamma: Tensor) -> Tensor:
    """delta + beta (log n)^gamma, finite, of the number n of valid positions."""
    return (delta + beta * log_power(n, gamma)).clamp(max=torch.finfo(n.dtype).max)


def _scaled_rows(
    rows: Tensor, valid: Tensor, *values: Tensor, spec: MappingSpec, log: bool, **weights: Tensor
) -> Tensor:
    *own, delta, beta, gamma = values
    factor = length_factor(valid.sum(-1, keepdim=True).to(rows), delta, beta, gamma)
    most = torch.finfo(rows.dtype).max
    return _call(spec, (rows * factor).clamp(-most, most), valid, [*own], log, **weights)


def scaled(spec: MappingSpec) -> MappingSpec:
    """p = map((delta + beta (log n)^gamma) z), n the number of valid positions; 0^0 = 1.

    Keeps the sharpness of a row as it gets longer; by default the factor is 1 at n = 10. With delta
    = 0 and gamma = 1, softmax becomes Scalable-Softmax (Nakanishi 2025, arXiv 2501.19399), and
    entmax becomes ASEntmax (Vasylenko et al. 2025, arXiv 2506.16640) with coefficients that do not
    depend on the input; `QueryScale` makes them depend on it. The parameters `delta`, `beta` and
    `gamma` in [0, inf) come after the mapping's. A sink is neither multiplied nor counted.

    Raises:
        ValueError: the mapping has a value for each score (weighted softmax), or one of these
            parameters; it is a learned function with a sink.
    """
    if SINK in spec.parameters and spec.weights is not None:
        raise ValueError(
            _no_sink(SCALED + spec.name, "its learned function is of the scores alone")
        )
    _refuse_parameters(spec, SCALED, "scaled", DELTA, BETA, GAMMA)
    return _derived(
        spec,
        (*spec.parameters, DELTA, BETA, GAMMA),
        _scaled_rows,
        name=SCALED + spec.name,
        kernel=None if spec.kernel is None else replace(spec.kernel, scaled=True),
        source=f"Nakanishi 2025, for {spec.source}",
    )


def detached(spec: MappingSpec) -> MappingSpec:
    """p = r-softmax(z, r), whose gradient holds t = max z - Q(z, r) constant.

    Same as `r_softmax(..., gradient="detached")`, the authors' code. No gradient reaches r, which
    can be scheduled or predicted but not learned. There is no kernel, because kernels compute the
    exact gradient. The multi-label loss is r-softmax's with the same p.

    Raises:
        ValueError: another mapping than r-softmax.
    """
    if spec.function is not r_softmax:
        raise ValueError(
            f"mapping={DETACHED + spec.name!r}: only r-softmax has another gradient; use "
            f"{spec.name}, or the prefix right before r-softmax"
        )
    return replace(
        spec,
        name=DETACHED + spec.name,
        function=partial(spec.function, gradient="detached"),
        log_function=DERIVED,
        parameters=tuple(replace(p, learnable=False) for p in spec.parameters),
        losses={name: partial(f, gradient="detached") for name, f in spec.losses.items()},
        kernel=None,
        color=None,
        source=f"{BALAZY}, the authors' code",
    )


PREFIXES = {MIXED: mixed, SCALED: scaled, DETACHED: detached}


def _dense_of(spec: MappingSpec, **arguments: Value) -> bool:
    assert spec.dense is not None
    names = [p.name for p in spec.parameters]
    return spec.dense(**{name: value for name, value in arguments.items() if name in names})


def _sink_rows(
    rows: Tensor, valid: Tensor, *values: Tensor, spec: MappingSpec, log: bool, **weights: Tensor
) -> Tensor:
    *own, sink = values
    rows = torch.cat([rows, sink.expand(*rows.shape[:-1], 1)], -1)
    valid = torch.cat([valid, torch.ones_like(valid[..., :1])], -1)
    return _call(spec, rows, valid, [*own], log, **weights)[..., :-1]


def with_sink(spec: MappingSpec) -> MappingSpec:
    """p = map((z, sigma)) without its last entry: a virtual key of score sigma and value 0.

    Softmax with sigma = 0 is "softmax off by one", e^z / (1 + sum e^z). A row sums to at most one,
    at the default parameters. The parameter `sink`, sigma in (-inf, inf), comes after the
    mapping's. Attention sinks: Xiao et al. 2023 (arXiv 2309.17453); one learned number per head:
    GPT-OSS.

    Raises:
        ValueError: the mapping has a value for each score (weighted softmax), or already has a
            sink; or its rows need not sum to one, so that a sink has no effect (sigmoid).
    """
    if spec.mass == "free":
        raise ValueError(_no_sink(spec.name, "its weights do not compete"))
    _refuse_parameters(spec, "", "given a sink", SINK)
    return _derived(
        spec, (*spec.parameters, SINK), _sink_rows, mass="at most one", translation_invariant=False
    )


def _no_sink(name: str, why: str) -> str:
    return f"sink: {name} cannot have one, because {why}; leave it out"


def is_scaled(spec: MappingSpec) -> bool:
    """Whether scores, except a sink, are multiplied by the factor of `scaled-NAME`."""
    return DELTA in spec.parameters


def _derived(
    spec: MappingSpec, parameters: tuple[ParameterSpec, ...], row_map: Any, **facts: Any
) -> MappingSpec:
    """Return the record with more parameters and another function, without losses and log g."""
    function = partial(
        on_named_rows,
        row_map=partial(row_map, spec=spec),
        parameters=parameters,
        learned=spec.weights is not None,
    )
    facts = {"log_g": None, "losses": {}, "multilabel_only": (), "predicts": None, **facts}
    if spec.dense is not None:
        facts.setdefault("dense", partial(_dense_of, spec=spec))
    return replace(
        spec,
        function=function,
        log_function=partial(function, log=True),
        parameters=parameters,
        **facts,
    )


def _refuse_parameters(spec: MappingSpec, prefix: str, done: str, *added: ParameterSpec) -> None:
    """Raise for a mapping with a value for each score, or with a parameter of these names."""
    name = prefix + spec.name
    if any(p.per_entry for p in spec.parameters):
        raise ValueError(
            f"mapping={name!r}: {spec.name} has a value for each score, which cannot be {done}; "
            "use it alone"
        )
    if taken := [p.name for p in added if p.name in [own.name for own in spec.parameters]]:
        raise ValueError(
            f"mapping={name!r}: {spec.name} has a parameter {taken[0]} already; use it alone"
        )
