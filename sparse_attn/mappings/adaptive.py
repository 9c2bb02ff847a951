"""Softmax whose temperature depends on the entropy of its row."""

from __future__ import annotations

import torch
from torch import Tensor

from sparse_attn.mappings.base import INF, on_rows, shift_to_top
from sparse_attn.mappings.pointwise import normalize
from sparse_attn.mappings.specs import library_spec

COEFFICIENTS = (-0.037, 0.481, -2.3, 4.917, -1.791)  # of H^4, H^3, ..., 1
LEAST_ENTROPY = 0.5  # nats


def _adaptive_rows(rows: Tensor, valid: Tensor, *, log: bool) -> Tensor:
    shifted = shift_to_top(rows, valid)
    log_share = shifted.masked_fill(~valid, -INF).log_softmax(-1)
    entropy = -(log_share.exp() * log_share.masked_fill(~valid, 0.0)).sum(-1, keepdim=True)
    beta = torch.zeros_like(entropy)
    for coefficient in COEFFICIENTS:
        beta = beta * entropy + coefficient
    beta = torch.where(entropy > LEAST_ENTROPY, beta.clamp(min=1.0), 1.0)
    return normalize(shifted, valid, beta, log_g=torch.mul, log=log)


def adaptive_temperature(
    scores: Tensor, *, mask: Tensor | None = None, dim: int = -1, log: bool = False
) -> Tensor:
    """p = softmax(beta(H) z), H the entropy of softmax(z) in nats; gradients also through H.

    beta(H) = max(1, -0.037 H^4 + 0.481 H^3 - 2.3 H^2 + 4.917 H - 1.791) for H > 0.5, else 1: rows
    are only sharpened. beta is below 2.43, and 1 again for H > 5.95, as in 384 equal scores.
    The paper fitted the coefficients to one small model; they are not trained here.
    Source: Velickovic et al. 2024 (arXiv 2410.01104), figure 5 and its code.

    Arguments, returns and errors as `softmax`.
    """
    return on_rows(_adaptive_rows, scores, mask=mask, dim=dim, log=log)


SPECS = (
    library_spec(
        adaptive_temperature,
        family="truncated",
        translation_invariant=True,
        source="Velickovic et al. 2024",
    ),
)
