"""Controls: what a comparison must rule out before it credits a sparse mapping.

Sharpening (temperature-softmax), truncation (top-k-softmax), regularisation by missing keys
(random-drop-softmax); and `mixed`, the ramp for mappings without their own path from softmax.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from sparse_attn.mappings.base import (
    INF,
    MappingSpec,
    ParameterSpec,
    Value,
    library_spec,
    on_named_rows,
    on_rows,
)
from sparse_attn.mappings.pointwise import normalize, softmax
from sparse_attn.mappings.weighted import R

# a learned temperature gets as near to the end of its range as it likes, and 1/T must stay finite
TEMPERATURE = ParameterSpec("temperature", default=1.0, low=1e-3, high_open=True)
K = ParameterSpec("k", default=16.0, low=1.0, learnable=False)
DROPPED = replace(R, learnable=False)
MIX = ParameterSpec("mix", default=1.0, low=0.0, high=1.0)
MIXED = "mixed-"


def _over_temperature(z: Tensor, temperature: Tensor) -> Tensor:
    # the slope of a quotient would be NaN where z / T is too large for the dtype
    return z * (1 / temperature)


def temperature_softmax(
    scores: Tensor,
    temperature: Value,
    *,
    mask: Tensor | None = None,
    dim: int = -1,
    log: bool = False,
) -> Tensor:
    """p_i = e^{z_i / T} / sum_j e^{z_j / T}; T < 1 sharpens.

    Source: none; a control for the sharpening that comes with zeros.

    Args:
        temperature: T in [0.001, inf); a float or a tensor broadcastable to the shape of the rows.

    Other arguments, returns and errors as `softmax`; ValueError also for T out of range.
    """
    return on_rows(
        normalize,
        scores,
        temperature,
        mask=mask,
        dim=dim,
        checks=(TEMPERATURE,),
        log_g=_over_temperature,
        log=log,
    )


def _softmax_where(keep: Tensor, rows: Tensor, log: bool) -> Tensor:
    kept = rows.masked_fill(~keep, -INF)
    return kept.log_softmax(-1) if log else kept.softmax(-1)


def _top_k_rows(rows: Tensor, valid: Tensor, k: Tensor, *, log: bool) -> Tensor:
    """Keep scores not below the k-th largest valid one."""
    ordered = rows.detach().masked_fill(~valid, -INF).sort(-1, descending=True).values
    n = rows.shape[-1]
    # a k that is NaN spoils the row in the end, but must still be an index
    place = k.nan_to_num(1.0).clamp(max=n).ceil().long() - 1
    place = place.expand(*rows.shape[:-1], 1)
    return _softmax_where((rows >= ordered.gather(-1, place)) & valid, rows, log)


def top_k_softmax(
    scores: Tensor, k: Value, *, mask: Tensor | None = None, dim: int = -1, log: bool = False
) -> Tensor:
    """Softmax over the ceil(k) largest valid scores, exactly 0 elsewhere; ties with the k-th stay.

    Equal to softmax if k is at least the number of valid positions. k gets no gradient.
    Source: Gupta et al. 2021 (arXiv 2106.06899); a control for truncation without reweighting.

    Args:
        k: in [1, inf]; a float, so that a schedule can move it, or a tensor broadcastable to the
            shape of the rows.

    Other arguments, returns and errors as `softmax`; ValueError also for k out of range.
    """
    return on_rows(_top_k_rows, scores, k, mask=mask, dim=dim, log=log, checks=(K,))


def _scrambled(rows: Tensor) -> Tensor:
    """A pseudo-random integer for every score, from the bits of its float32 value."""
    # + 0.0 makes -0.0 the same as 0.0
    bits = (rows.detach().float() + 0.0).view(torch.int32).long() & 0xFFFFFFFF
    # the finaliser of MurmurHash3, in the 64 bits that an integer tensor has
    bits = ((bits ^ (bits >> 16)) * 0x85EBCA6B) & 0xFFFFFFFF
    bits = ((bits ^ (bits >> 13)) * 0xC2B2AE35) & 0xFFFFFFFF
    return bits ^ (bits >> 16)


def _random_drop_rows(rows: Tensor, valid: Tensor, r: Tensor, *, log: bool) -> Tensor:
    """Drop the valid positions with the lowest hashes, and keep at least one."""
    last = (valid.sum(-1, keepdim=True) - 1).clamp(min=0)
    dropped = (r.nan_to_num() * last).floor().long() + (r > 0)
    # positions out of play rank behind all others
    priority = _scrambled(rows).masked_fill(~valid, 1 << 32)
    threshold = priority.sort(-1).values.gather(-1, dropped.clamp(max=last))
    return _softmax_where((priority >= threshold) & valid, rows, log)


def random_drop_softmax(
    scores: Tensor, r: Value, *, mask: Tensor | None = None, dim: int = -1, log: bool = False
) -> Tensor:
    """Softmax over the rest after dropping floor(r (n - 1)) + 1 of the n valid positions.

    As many zeros as `r_softmax(r)` for 0 < r < 1, at positions unrelated to the size of the scores:
    a hash of each score's bits decides, so equal rows drop the same positions in training, in
    evaluation and when a layer is recomputed. Rounding differences, for example from other padding,
    change which. r = 0 is softmax, r = 1 keeps one position. r gets no gradient.
    Source: none; a control for the regularisation that missing keys bring.

    Args:
        r: in [0, 1]; a float or a tensor broadcastable to the shape of the rows.

    Other arguments, returns and errors as `softmax`; ValueError also for r out of range.
    """
    return on_rows(_random_drop_rows, scores, r, mask=mask, dim=dim, log=log, checks=(DROPPED,))


def _mixed_rows(
    rows: Tensor, valid: Tensor, *values: Tensor, spec: MappingSpec, log: bool
) -> Tensor:
    *own, mix = values
    function = spec.log_function if log else spec.function
    named = {p.name: value.squeeze(-1) for p, value in zip(spec.parameters, own, strict=True)}
    far = function(rows, **named, mask=valid)
    if not log:
        return torch.lerp(softmax(rows, mask=valid), far, mix)
    near = softmax(rows, mask=valid, log=True)
    with torch.no_grad():
        # -inf for the side that has no share, and where neither has a share
        top = torch.maximum(near + torch.log1p(-mix), far + mix.log())
        impossible = top == -INF
        top = top.masked_fill(impossible, 0.0)
    # e^80 is finite, and only a share of 0, or less than e^-80, can meet more than that
    near, far = ((side - top).clamp(max=80.0).exp() for side in (near, far))
    total = torch.lerp(near, far, mix).masked_fill(impossible, 1.0)
    return (top + total.log()).masked_fill(impossible, -INF)


def _has_softmax(mix: Value, **arguments: Value) -> bool:
    return bool((mix < 1).all()) if isinstance(mix, Tensor) else mix < 1


def mixed(spec: MappingSpec) -> MappingSpec:
    """p = (1 - mix) softmax(z) + mix map(z): softmax at mix = 0, the mapping itself at mix = 1.

    The parameter `mix` in [0, 1] comes after those of the mapping. Zeros only at mix = 1.

    Raises:
        ValueError: the mapping has tensor arguments (learned maps, which start as softmax anyway;
            weighted softmax), or already has a `mix`.
    """
    if spec.weights is not None or any(p.per_entry for p in spec.parameters):
        raise ValueError(
            f"mapping={MIXED + spec.name!r}: {spec.name} has tensor arguments, which cannot be "
            "mixed; use it alone"
        )
    if any(p.name == MIX.name for p in spec.parameters):
        raise ValueError(
            f"mapping={MIXED + spec.name!r}: {spec.name} has a parameter {MIX.name} already; use "
            "it alone"
        )
    parameters = (*spec.parameters, MIX)
    row_map = partial(_mixed_rows, spec=spec)
    return MappingSpec(
        MIXED + spec.name,
        partial(on_named_rows, row_map=row_map, parameters=parameters),
        parameters=parameters,
        zeros=spec.zeros,
        dense=_has_softmax,
        translation_invariant=spec.translation_invariant,
        source=f"a ramp for {spec.source}",
    )


SPECS = (
    library_spec(
        temperature_softmax,
        TEMPERATURE,
        translation_invariant=True,
        log_g=_over_temperature,
        source="control: sharpening without zeros",
    ),
    library_spec(
        top_k_softmax,
        K,
        zeros=True,
        translation_invariant=True,
        source="control: zeros without reweighting; Gupta et al. 2021",
    ),
    library_spec(
        random_drop_softmax,
        DROPPED,
        zeros=True,
        source="control: zeros unrelated to the scores",
    ),
)
