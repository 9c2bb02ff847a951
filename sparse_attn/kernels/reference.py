"""Plain attention: the specification of every other implementation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import Tensor

from sparse_attn.kernels import dropout, statistics
from sparse_attn.kernels.inputs import AttentionInputs, AttentionOutput, Rows, select_rows

BLOCK = 2**24  # most weights in memory if not all are wanted


def unsupported_reason(inputs: AttentionInputs) -> str | None:
    """Return None, because the reference supports every call."""
    return None


def attention(inputs: AttentionInputs) -> AttentionOutput:
    """out = dropout(map(scores)) v, (B, H, Q, Dv), and the weights, materialised."""
    value = _without_padding(inputs.value, inputs).repeat_interleave(inputs.groups, dim=1)
    weights = exact_weights(inputs)
    output = _dropped(weights, inputs).to(value.dtype) @ value
    rows = None
    if inputs.need_statistics:
        rows = statistics.of_weights(weights, inputs.counted(), inputs.special_keys)
    return AttentionOutput(output, weights, rows)


def _dropped(weights: Tensor, inputs: AttentionInputs) -> Tensor:
    """Apply dropout to the weights."""
    if not inputs.dropout:
        return weights
    keep = dropout.kept(dropout.draw_seed(weights.device), inputs.dropout, inputs.shape)
    return torch.where(keep, weights * dropout.scale_of(inputs.dropout), 0.0)


def exact_weights(inputs: AttentionInputs) -> Tensor:
    """p (B, H, Q, K) before dropout, in float32, or float64 for float64 inputs."""
    key = _without_padding(inputs.key, inputs).repeat_interleave(inputs.groups, dim=1)
    # because half precision would round the scores before the support is chosen
    exact = inputs.query.dtype if inputs.query.dtype == torch.float64 else torch.float32
    device = inputs.query.device.type
    # the meta device has no autocast
    with nullcontext() if device == "meta" else torch.autocast(device, enabled=False):
        scores = inputs.query.to(exact) @ key.transpose(-2, -1).to(exact)  # [B, H, Q, K]
    scores = scores * inputs.scale
    if inputs.softcap is not None:
        scores = inputs.softcap * torch.tanh(scores / inputs.softcap)
    if inputs.bias is not None:
        scores = scores + inputs.bias
    valid = inputs.valid()
    if valid is not None:
        # -inf too, because hooks, such as Opacus', only see the positional argument
        scores = scores.masked_fill(~valid, -torch.inf)
    sink = None if inputs.sink is None else inputs.sink.unsqueeze(-1)  # [H, 1], for each row
    # left out otherwise, for modules that stand for a mapping
    given = {} if inputs.query_input is None else {"factor": inputs.row_factor()}
    return inputs.mapping(scores, mask=valid, sink=sink, **given)


def _without_padding(tensor: Tensor, inputs: AttentionInputs) -> Tensor:
    """Replace padded keys or values by zeros, because a NaN would survive a weight of 0."""
    if inputs.key_lengths is None:
        return tensor
    padding = torch.arange(tensor.shape[2], device=tensor.device) >= inputs.key_lengths[:, None]
    return tensor.masked_fill(padding[:, None, :, None], 0.0)


def row_statistics(inputs: AttentionInputs) -> Tensor:
    """Compute `statistics.of_weights` of a call in blocks of queries."""
    batch, heads, _, _ = inputs.shape
    found = [inputs.query.new_zeros(batch, heads, 0, len(statistics.COLUMNS))]
    for _, weights, valid in blocks(inputs):
        found.append(statistics.of_weights(weights, valid, inputs.special_keys))
    return torch.cat(found, dim=2)


def received_mass(inputs: AttentionInputs, queries: Tensor | None) -> Tensor:
    """Compute sum_i p_ij of each key j over the queries i that count, (B, H, K), in blocks.

    Args:
        queries: mask of queries that count, broadcastable to (B, H, Q); None for all.
    """
    batch, heads, _, keys = inputs.shape
    exact = torch.promote_types(inputs.query.dtype, torch.float32)
    mass = inputs.query.new_zeros(batch, heads, keys, dtype=exact)
    for rows, weights, _ in blocks(inputs):
        if queries is not None:
            weights = weights * queries[..., rows].unsqueeze(-1)
        mass += weights.sum(2)
    return mass


@torch.no_grad()
def blocks(
    inputs: AttentionInputs, chosen: Tensor | None = None
) -> Iterator[tuple[Rows, Tensor, Tensor | None]]:
    """Yield blocks of queries: their indices, the weights before dropout, and the valid keys.

    Args:
        chosen: indices of the queries, (n,); None for all.
    """
    batch, heads, queries, keys = inputs.shape
    step = max(1, BLOCK // max(1, batch * heads * keys))
    count = queries if chosen is None else len(chosen)
    for start in range(0, count, step):
        rows: Rows = slice(start, min(start + step, count))
        rows = rows if chosen is None else chosen[rows]
        block = of_queries(inputs, rows)
        yield rows, exact_weights(block), block.mask


def of_queries(inputs: AttentionInputs, rows: Rows) -> AttentionInputs:
    """Return the call of these queries alone, without dropout."""
    given = inputs.query_input
    return replace(
        inputs,
        query=inputs.query[:, :, rows],
        mask=inputs.counted(rows),
        bias=None if inputs.bias is None else select_rows(inputs.bias, rows),
        key_lengths=None,
        cu_seqlens=None,
        query_input=None if given is None else given[:, rows],
        causal=False,
        window=None,
        dropout=0.0,
    )
