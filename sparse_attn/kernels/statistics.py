"""What the rows of attention weights are like, without keeping them."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from sparse_attn.kernels import reference
from sparse_attn.kernels.call import Call

# 1 if any key is valid; valid keys; keys with p > 0; -sum p log p in nats; mass on special keys; 1
# if these are known and any key is valid
COLUMNS = ("rows", "valid", "support", "entropy", "special", "named")
BLOCK = 2**24  # weights that are held at a time


def of_weights(weights: Tensor, valid: Tensor | None, special: Tensor | None) -> Tensor:
    """The statistics of rows of weights, (B, H, Q, COLUMNS), float32 at least; NaN where a row is.

    weights: (B, H, Q, K). valid: bool, broadcasts to it, None for all. special: (B, K), bool.
    """
    p = weights.detach()
    p = p if p.dtype == torch.float64 else p.float()
    total = p.sum(-1)
    count = p.new_full(total.shape, p.shape[-1])
    if valid is not None:
        count = valid.expand_as(p).sum(-1).to(p.dtype)
    spoiled = total * 0  # NaN where the row is
    some = (count > 0).to(p.dtype)
    support = (p > 0).sum(-1) + spoiled
    entropy = torch.special.entr(p).sum(-1)
    mass, named = spoiled, torch.zeros_like(some)
    if special is not None:
        mass, named = (p * special[:, None, None, :]).sum(-1) + spoiled, some
    return torch.stack([some, count, support, entropy, mass, named], dim=-1)


def counted(call: Call, rows: slice = slice(None)) -> Tensor | None:
    """The keys that count for these queries: -inf in a bias hides one as a mask does.

    Broadcastable to (B, H, rows, K); None for all.
    """
    valid = reference.valid(call, rows)
    if call.bias is None:
        return valid
    seen = reference.rows_of(call.bias, rows) != -torch.inf
    return seen if valid is None else valid & seen


@torch.no_grad()
def of_call(call: Call, special: Tensor | None) -> Tensor:
    """As `of_weights`, with the weights of some queries at a time, by the reference."""
    batch, heads, queries, keys = call.shape
    step = max(1, BLOCK // max(1, batch * heads * keys))
    blocks = []
    for start in range(0, queries, step):
        rows = slice(start, min(start + step, queries))
        valid = counted(call, rows)
        block = replace(
            call,
            query=call.query[:, :, rows],
            mask=valid,
            bias=None if call.bias is None else reference.rows_of(call.bias, rows),
            key_lengths=None,
            causal=False,
            window=None,
            dropout=0.0,
        )
        blocks.append(of_weights(reference.exact_weights(block), valid, special))
    return (
        torch.cat(blocks, dim=2) if blocks else call.query.new_zeros(*call.shape[:3], len(COLUMNS))
    )
