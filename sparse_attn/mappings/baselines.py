"""Controls that rule out other explanations before a comparison credits a sparse mapping.

They are sharpening (temperature-softmax) and regularisation by missing keys (random-drop-softmax);
truncation is top-k-softmax.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from sparse_attn.mappings.base import Value, on_rows, whole_below
from sparse_attn.mappings.pointwise import normalize
from sparse_attn.mappings.specs import Dial, ParameterSpec, library_spec
from sparse_attn.mappings.truncated import softmax_where
from sparse_attn.mappings.weighted import R

# a learned temperature may come arbitrarily near to the end of its range, where 1/T must stay
# finite
TEMPERATURE = ParameterSpec("temperature", default=1.0, low=1e-3, high_open=True)
DROPPED = replace(R, learnable=False)


def _over_temperature(z: Tensor, temperature: Tensor) -> Tensor:
    # the slope of a quotient would be NaN if z / T is too large for the dtype
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


def _scrambled(rows: Tensor) -> Tensor:
    """Hash the bits of every score's float32 value to a pseudo-random integer of 32 bits."""
    # + 0.0 makes -0.0 the same as 0.0
    bits = (rows.detach().float() + 0.0).view(torch.int32)
    # the finaliser of MurmurHash3; products wrap, and a shift would repeat the sign
    bits = (bits ^ ((bits >> 16) & 0xFFFF)) * (0x85EBCA6B - 2**32)
    bits = (bits ^ ((bits >> 13) & 0x7FFFF)) * (0xC2B2AE35 - 2**32)
    return bits ^ ((bits >> 16) & 0xFFFF) ^ -(2**31)  # in the order of unsigned integers


def _random_drop_rows(rows: Tensor, valid: Tensor, r: Tensor, *, log: bool) -> Tensor:
    """Drop the valid positions with the lowest hashes, and keep at least one."""
    last = (valid.sum(-1, keepdim=True) - 1).clamp(min=0)
    dropped = whole_below(r.nan_to_num() * last).long() + (r > 0)
    # invalid positions rank behind all others
    priority = _scrambled(rows).masked_fill(~valid, 2**31 - 1)
    threshold = priority.sort(-1).values.gather(-1, dropped.clamp(max=last))
    return softmax_where((priority >= threshold) & valid, rows, log)


def random_drop_softmax(
    scores: Tensor, r: Value, *, mask: Tensor | None = None, dim: int = -1, log: bool = False
) -> Tensor:
    """Softmax over the rest after dropping floor(r (n - 1)) + 1 of the n valid positions.

    Gives as many zeros as `r_softmax(r)` for 0 < r < 1, at positions unrelated to the size of the
    scores. A hash of each score's bits decides, so equal rows drop the same positions in training,
    in evaluation and when a layer is recomputed. Rounding differences, for example from other
    padding, change the positions. r = 0 is softmax, r = 1 keeps one position. r gets no gradient.
    Source: none; a control for the regularisation that missing keys bring.

    Args:
        r: in [0, 1]; a float or a tensor broadcastable to the shape of the rows.

    Other arguments, returns and errors as `softmax`; ValueError also for r out of range.
    """
    return on_rows(_random_drop_rows, scores, r, mask=mask, dim=dim, log=log, checks=(DROPPED,))


SPECS = (
    library_spec(
        temperature_softmax,
        TEMPERATURE,
        translation_invariant=True,
        log_g=_over_temperature,
        source="control: sharpening without zeros",
    ),
    library_spec(
        random_drop_softmax,
        DROPPED,
        zeros=True,
        dial=Dial("r", float),
        source="control: zeros unrelated to the scores",
    ),
)
