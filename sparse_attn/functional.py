"""Every mapping as a function `f(scores, ..., *, mask=None, dim=-1)`, with its log form."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, cast

from torch import Tensor

from sparse_attn.mappings.adaptive import adaptive_temperature
from sparse_attn.mappings.controls import random_drop_softmax, temperature_softmax
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

P = ParamSpec("P")


def log_form(function: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """Return the log form of a mapping as a function: `function` with log=True."""
    mapping: Any = function
    signature, name = inspect.signature(mapping), mapping.__name__
    parameters = [p for p in signature.parameters.values() if p.name != "log"]

    @functools.wraps(mapping)
    def log_function(*args: Any, **kwargs: Any) -> Tensor:
        if "log" in kwargs:
            raise TypeError(f"log_{name}() takes no log: it is {name}(..., log=True)")
        return mapping(*args, **kwargs, log=True)

    log_function.__dict__["__signature__"] = signature.replace(parameters=parameters)
    log_function.__module__ = __name__
    log_function.__name__ = log_function.__qualname__ = f"log_{name}"
    log_function.__doc__ = f"log p of `{name}`, in nats; -inf where p is 0. Otherwise the same."
    return cast(Callable[P, Tensor], log_function)


log_adaptive_temperature = log_form(adaptive_temperature)
log_clipped_softmax = log_form(clipped_softmax)
log_entmax = log_form(entmax)
log_max_gap = log_form(max_gap)
log_monotone = log_form(monotone)
log_normalized_relu = log_form(normalized_relu)
log_normalized_sigmoid = log_form(normalized_sigmoid)
log_plif = log_form(plif)
log_r_softmax = log_form(r_softmax)
log_random_drop_softmax = log_form(random_drop_softmax)
log_relu = log_form(relu)
log_sigmoid = log_form(sigmoid)
log_sigsoftmax = log_form(sigsoftmax)
log_softmax = log_form(softmax)
log_softmax_abs = log_form(softmax_abs)
log_softpick = log_form(softpick)
log_sparsecone = log_form(sparsecone)
log_sparsegen = log_form(sparsegen)
log_sparsehourglass = log_form(sparsehourglass)
log_sparsemax = log_form(sparsemax)
log_spherical_softmax = log_form(spherical_softmax)
log_t_softmax = log_form(t_softmax)
log_taylor_softmax = log_form(taylor_softmax)
log_temperature_softmax = log_form(temperature_softmax)
log_threshold_softmax = log_form(threshold_softmax)
log_top_k_softmax = log_form(top_k_softmax)
log_top_p_softmax = log_form(top_p_softmax)
log_weighted_softmax = log_form(weighted_softmax)

__all__ = [
    "adaptive_temperature",
    "clipped_softmax",
    "entmax",
    "log_adaptive_temperature",
    "log_clipped_softmax",
    "log_entmax",
    "log_max_gap",
    "log_monotone",
    "log_normalized_relu",
    "log_normalized_sigmoid",
    "log_plif",
    "log_r_softmax",
    "log_random_drop_softmax",
    "log_relu",
    "log_sigmoid",
    "log_sigsoftmax",
    "log_softmax",
    "log_softmax_abs",
    "log_softpick",
    "log_sparsecone",
    "log_sparsegen",
    "log_sparsehourglass",
    "log_sparsemax",
    "log_spherical_softmax",
    "log_t_softmax",
    "log_taylor_softmax",
    "log_temperature_softmax",
    "log_threshold_softmax",
    "log_top_k_softmax",
    "log_top_p_softmax",
    "log_weighted_softmax",
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
