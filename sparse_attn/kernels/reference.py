"""Attention as it is written: the specification of every other implementation."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor
from torch.nn import functional as F

from sparse_attn.kernels.call import Call


def refusal(call: Call) -> str | None:
    """The reference does every call."""
    return None


def attention(call: Call) -> Tensor:
    """out = dropout(map(scores)) v, (B, H, Q, Dv); the weights are materialised."""
    return attention_and_weights(call)[0]


def attention_and_weights(call: Call) -> tuple[Tensor, Tensor]:
    """The output and the weights (B, H, Q, K) before dropout, as they were computed."""
    value = _without_padding(call.value, call).repeat_interleave(call.groups, dim=1)
    weights = exact_weights(call)
    return F.dropout(weights.to(value.dtype), call.dropout) @ value, weights


def exact_weights(call: Call) -> Tensor:
    """p (B, H, Q, K) before dropout, in float32, or float64 for such inputs."""
    key = _without_padding(call.key, call).repeat_interleave(call.groups, dim=1)
    # half precision would round the scores before a support is chosen from them
    exact = call.query.dtype if call.query.dtype == torch.float64 else torch.float32
    device = call.query.device.type
    # the meta device has no autocast
    with nullcontext() if device == "meta" else torch.autocast(device, enabled=False):
        scores = call.query.to(exact) @ key.transpose(-2, -1).to(exact)  # [B, H, Q, K]
    scores = scores * call.scale
    if call.softcap is not None:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    if call.bias is not None:
        scores = scores + call.bias
    return call.mapping(scores, valid(call))


def _without_padding(tensor: Tensor, call: Call) -> Tensor:
    """Keys or values with zeros as padding: a NaN there would survive a weight of 0."""
    if call.key_lengths is None:
        return tensor
    padding = torch.arange(tensor.shape[2], device=tensor.device) >= call.key_lengths[:, None]
    return tensor.masked_fill(padding[:, None, :, None], 0.0)


def valid(call: Call, rows: slice = slice(None)) -> Tensor | None:
    """Which keys these queries may attend to, broadcastable to (B, H, rows, K); None for all."""
    queries, keys = call.shape[2:]
    device = call.query.device
    i = torch.arange(queries, device=device)[rows, None]
    j = torch.arange(keys, device=device)
    parts = [] if call.mask is None else [rows_of(call.mask, rows)]
    if call.key_lengths is not None:
        parts.append(j < call.key_lengths[:, None, None, None])
    if call.causal:
        parts.append(j <= i)
    if call.window is not None:
        parts.append((i - j).abs() < call.window)
    joint = None
    for part in parts:
        joint = part if joint is None else joint & part
    return joint


def rows_of(tensor: Tensor, rows: slice) -> Tensor:
    """These rows of a tensor that broadcasts to (B, H, Q, K)."""
    return tensor[..., rows, :] if tensor.dim() > 1 and tensor.shape[-2] > 1 else tensor
