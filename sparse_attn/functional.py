"""Every mapping as a function `f(scores, ..., *, mask=None, dim=-1, log=False)`."""

from sparse_attn.mappings.adaptive import adaptive_temperature
from sparse_attn.mappings.baselines import random_drop_softmax, temperature_softmax
from sparse_attn.mappings.monotone import monotone, plif
from sparse_attn.mappings.pointwise import (
    normalized_relu,
    normalized_sigmoid,
    sigsoftmax,
    softmax,
    softmax_abs,
    spherical_softmax,
    taylor_softmax,
)
from sparse_attn.mappings.projection import (
    entmax,
    sparsecone,
    sparsegen,
    sparsehourglass,
    sparsemax,
)
from sparse_attn.mappings.truncated import max_gap, threshold_softmax, top_k_softmax, top_p_softmax
from sparse_attn.mappings.unnormalized import clipped_softmax, relu, sigmoid, softpick
from sparse_attn.mappings.weighted import r_softmax, t_softmax, weighted_softmax

__all__ = [
    "adaptive_temperature",
    "clipped_softmax",
    "entmax",
    "max_gap",
    "monotone",
    "normalized_relu",
    "normalized_sigmoid",
    "plif",
    "r_softmax",
    "random_drop_softmax",
    "relu",
    "sigmoid",
    "sigsoftmax",
    "softmax",
    "softmax_abs",
    "softpick",
    "sparsecone",
    "sparsegen",
    "sparsehourglass",
    "sparsemax",
    "spherical_softmax",
    "t_softmax",
    "taylor_softmax",
    "temperature_softmax",
    "threshold_softmax",
    "top_k_softmax",
    "top_p_softmax",
    "weighted_softmax",
]
