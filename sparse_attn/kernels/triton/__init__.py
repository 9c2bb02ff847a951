"""Attention in Triton: scores stay on the chip, forward and backward.

Rows of up to 1,024 keys (fewer in float32 or at large head_dim) are worked on whole; longer ones in
tiles, with a row's threshold found by computing the scores again. Without a GPU the kernels run in
Triton's interpreter (TRITON_INTERPRET=1).
"""

from __future__ import annotations

import importlib.util
import os

import torch
from torch import Tensor

from sparse_attn.kernels.call import Call

INSTALLED = importlib.util.find_spec("triton") is not None
if INSTALLED:
    from sparse_attn.kernels.triton import launch, plan  # the first registers the operators
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
HEAD_DIM = 256


def refusal(call: Call) -> str | None:
    """Why the Triton kernels cannot do the call, None if they can."""
    if not INSTALLED:
        return "triton is not installed; pip install triton"
    spec, query = call.mapping.spec, call.query
    if spec.kernel is None or spec.kernel.name not in plan.KINDS:
        return f"{spec.name} has no Triton kernel"
    if query.device.type != "cuda" and not INTERPRETED:
        return f"it needs CUDA tensors, got {query.device.type} (or TRITON_INTERPRET=1)"
    if query.device.type == "cuda" and not plan.runs_on(query):
        return "it needs an NVIDIA GPU of compute capability 8.0 with room for its tiles"
    if query.dtype not in DTYPES:
        return f"it takes float32, float16 and bfloat16, got {query.dtype}"
    if call.value.shape[3] != query.shape[3] or query.shape[3] > HEAD_DIM:
        return (
            f"it needs the head_dim of query in value and at most {HEAD_DIM}, got "
            f"{query.shape[3]} and {call.value.shape[3]}"
        )
    if call.bias is not None and call.bias.requires_grad and torch.is_grad_enabled():
        return "it has no gradient to bias"
    if query.numel() == 0 or call.key.numel() == 0:
        return f"the scores are empty, shape {call.shape}"
    return None


def attention(call: Call) -> Tensor:
    """out = dropout(map(scores)) v, (B, H, Q, D)."""
    out: Tensor = launch.triton_forward(
        call.query,
        call.key,
        call.value,
        call.parameter(),
        call.mask,
        call.key_lengths,
        call.bias,
        call.seed(),
        _kind(call),
        call.softcap or 0.0,
        call.causal,
        call.span,
        call.scale,
        call.dropout,
    )[0]
    return out.transpose(1, 2)


def _kind(call: Call) -> str:
    """The kernel's name; entmax has cheaper forms where alpha is fixed at 1, 1.5 or 2."""
    kernel = call.mapping.spec.kernel
    assert kernel is not None
    # a compiled graph must not be built again for each value of a schedule
    if kernel.name != "entmax" or torch.compiler.is_compiling():
        return kernel.name
    special = {1.0: "softmax", 1.5: "entmax-1.5", 2.0: "sparsemax"}
    alpha = call.mapping.value("alpha")
    return kernel.name if isinstance(alpha, Tensor) else special.get(alpha, kernel.name)
