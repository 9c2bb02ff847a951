"""Attention as it is written: the specification of every other implementation."""

from __future__ import annotations

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
    """The output and the weights (B, H, Q, K) before dropout."""
    key = _without_padding(call.key, call).repeat_interleave(call.groups, dim=1)
    value = _without_padding(call.value, call).repeat_interleave(call.groups, dim=1)
    # half precision would round the scores before a support is chosen from them
    exact = call.query.dtype if call.query.dtype == torch.float64 else torch.float32
    with torch.autocast(call.query.device.type, enabled=False):
        scores = call.query.to(exact) @ key.transpose(-2, -1).to(exact)  # [B, H, Q, K]
    scores = scores * call.scale
    if call.softcap is not None:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    if call.bias is not None:
        scores = scores + call.bias
    weights = call.mapping(scores, valid(call)).to(value.dtype)
    return F.dropout(weights, call.dropout) @ value, weights


def _without_padding(tensor: Tensor, call: Call) -> Tensor:
    """Keys or values with zeros as padding: a NaN there would survive a weight of 0."""
    if call.key_lengths is None:
        return tensor
    padding = torch.arange(tensor.shape[2], device=tensor.device) >= call.key_lengths[:, None]
    return tensor.masked_fill(padding[:, None, :, None], 0.0)


def valid(call: Call) -> Tensor | None:
    """Which keys each query may attend to, broadcastable to (B, H, Q, K); None for all."""
    queries, keys = call.shape[2:]
    device = call.query.device
    i = torch.arange(queries, device=device)[:, None]
    j = torch.arange(keys, device=device)
    parts = [] if call.mask is None else [call.mask]
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
