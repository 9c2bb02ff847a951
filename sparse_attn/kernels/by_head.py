"""Parameters of mappings, one number for each head."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from sparse_attn.kernels.operators import is_observed
from sparse_attn.mappings import Mapping
from sparse_attn.mappings.specs import Kernel


def exact_dtype(query: Tensor) -> torch.dtype:
    """Return float64 if the query has it, else float32."""
    return torch.float64 if query.dtype == torch.float64 else torch.float32


def by_head(name: str, value: float | Tensor, query: Tensor) -> Tensor:
    """Return the value of `name` for each head of the query, (H,), with its graph."""
    heads = query.shape[1]
    if not isinstance(value, Tensor):
        # a CUDA graph must not read a cached tensor
        capturing = query.is_cuda and torch.cuda.is_current_stream_capturing()
        if capturing or is_observed((query,)):
            # a product, because the value must stay a symbol if a schedule changes it
            return query.new_ones(heads, dtype=exact_dtype(query)) * value
        return constant(value, query)
    if value.numel() not in (1, heads):
        raise ValueError(
            f"{name}: expected one value or one for each of the {heads} heads of query, got "
            f"{value.numel()}"
        )
    return value.to(query.device, exact_dtype(query)).expand(heads).contiguous()


def theta(mapping: Mapping, kernel: Kernel, query: Tensor) -> Tensor:
    """Return the kernel's parameter for each head, (H,); 0 if it has none."""
    name = kernel.parameter
    if name is not None and name not in mapping.learned and mapping.value(name) is None:
        parameters = mapping.spec.parameters
        name = next((p.name for p in parameters if p.instead_of == name), None)
        if name is None:
            return by_head("", torch.inf, query)
    return by_head(name or "", mapping.value(name) if name else 0.0, query)


def constant(value: float, query: Tensor) -> Tensor:
    """Return a read-only tensor of one value for each head, cached to save a launch on a GPU."""
    device = query.device
    # by stream: filled or freed on another one, it would race with its readers
    stream = torch.cuda.current_stream(device) if query.is_cuda else None
    return _filled(value, query.shape[1], exact_dtype(query), device, stream)


@functools.lru_cache(maxsize=64)
def _filled(
    value: float, heads: int, dtype: torch.dtype, device: torch.device, stream: object
) -> Tensor:
    with torch.inference_mode(False):
        return torch.full((heads,), value, dtype=dtype, device=device)
