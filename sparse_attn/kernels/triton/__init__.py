"""Attention in Triton: scores stay on the chip, forward and backward.

Rows of up to 128 keys without padding stay in one tile; longer rows take several. Each pass over
them recomputes the scores, unless the tiles stay on the chip too. Without a GPU the kernels run in
Triton's interpreter (TRITON_INTERPRET=1).
"""

from __future__ import annotations

import importlib.util
import os

import torch
from torch import Tensor

from sparse_attn.kernels.inputs import AttentionInputs, AttentionOutput

INSTALLED = importlib.util.find_spec("triton") is not None
if INSTALLED:
    from sparse_attn.kernels.triton import (  # which registers the operators
        launch,
        plan,
        repeat_call,
    )
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
HEAD_DIM = 256


def unsupported_reason(inputs: AttentionInputs) -> str | None:
    """Return why the Triton kernels do not support the call, None if they do."""
    if not INSTALLED:
        return "triton is not installed; pip install triton"
    query = inputs.query
    if (reason := inputs.kernel_reason) is not None:
        return reason
    if query.device.type != "cuda" and not INTERPRETED:
        return f"it needs CUDA tensors, got {query.device.type} (or TRITON_INTERPRET=1)"
    if query.dtype not in DTYPES:
        return f"it takes float32, float16 and bfloat16, got {query.dtype}"
    dtype = _dtype(inputs)
    most = HEAD_DIM // 2 if dtype == torch.float32 else HEAD_DIM
    if inputs.value.shape[3] != query.shape[3] or query.shape[3] > most:
        return (
            f"it needs the head_dim of query in value and at most {most} in {dtype}, got "
            f"{query.shape[3]} and {inputs.value.shape[3]}"
        )
    if query.device.type == "cuda" and not plan.runs_on(query, dtype):
        return "it needs an NVIDIA GPU of compute capability 8.0 with room for its tiles"
    if inputs.learns_bias and torch.is_grad_enabled():
        return "it has no gradient to bias"
    if query.numel() == 0 or inputs.key.numel() == 0:
        return f"the scores are empty, shape {inputs.shape}"
    return None


def attention(inputs: AttentionInputs) -> AttentionOutput:
    """out = dropout(map(scores)) v, (B, H, Q, D)."""
    mapping = inputs.mapping
    assert mapping.spec.kernel is not None
    kernel = repeat_call.chosen_kernel(mapping, mapping.spec.kernel)
    given = inputs.for_operator(kernel)
    if kernel.scaled:  # in float32
        dtype = _dtype(inputs)
        given = given._replace(
            query=given.query.to(dtype), key=given.key.to(dtype), value=given.value.to(dtype)
        )
    grad = given.wants_gradients
    moments = grad and plan.needs_moments(given, given.parameter.requires_grad)
    out: Tensor = launch.attend(given, grad, moments)[0]
    repeat_call.remember(inputs, kernel, given, grad, moments)
    return AttentionOutput(out.to(inputs.query.dtype))


def _dtype(inputs: AttentionInputs) -> torch.dtype:
    """Return the dtype of query, or float32 if a learned factor needs exact gradients."""
    exact = inputs.learns_factor and torch.is_grad_enabled()
    return torch.float32 if exact else inputs.query.dtype
