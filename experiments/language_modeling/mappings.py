"""Mappings that only an experiment wants; importing this registers them."""

from __future__ import annotations

import torch
from torch import Tensor

from sparse_attn import MappingSpec, register_mapping
from sparse_attn.mappings.base import on_rows
from sparse_attn.mappings.pointwise import normalize

EPSILON = 1e-8


def log_g(scores: Tensor) -> Tensor:
    """log(max(0, z) + 1e-8)."""
    return torch.log(scores.clamp(min=0) + EPSILON)


def relu_eps(scores: Tensor, *, mask: Tensor | None = None, dim: int = -1) -> Tensor:
    """p_i = g(z_i) / sum_j g(z_j), g(z) = max(0, z) + 1e-8.

    Kanai et al. 2018's g:ReLU as an output layer: with exact zeros the likelihood of a target could
    be 0. How they avoided that is not in the paper, and the epsilon is ours.
    """
    return on_rows(normalize, scores, mask=mask, dim=dim, log_g=log_g)


def log_relu_eps(scores: Tensor, *, mask: Tensor | None = None, dim: int = -1) -> Tensor:
    """log p_i = log g(z_i) - log sum_j g(z_j)."""
    return on_rows(normalize, scores, mask=mask, dim=dim, log_g=log_g, log=True)


register_mapping(
    MappingSpec(
        "relu-eps",
        relu_eps,
        log_relu_eps,
        log_g=log_g,
        source="Kanai et al. 2018, section 3.4, with an epsilon",
    )
)
