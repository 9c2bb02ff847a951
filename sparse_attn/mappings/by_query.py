"""The factor of `scaled-NAME` as a function of the input of each query."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sparse_attn.mappings.base import Value, log_power, softplus_inverse, widened


class QueryScale(nn.Module):
    """delta + softplus(b + w x) (log n)^(gamma tanh(v x)), with softplus(b) = beta.

    x is the input of the attention module at the query's position, n the number of its valid keys.
    With one key the power is 0 for a positive exponent and else 1, as 0^0 is; it would be infinite
    for a negative one. w and v start at 0, where the factor is delta + beta.
    Source: ASEntmax, Vasylenko et al. 2025 (arXiv 2506.16640), for any NAME and with an offset b.
    The authors' code has delta = 1 and gamma = 2, no b, and random w and v.

    Args:
        heads: H.
        size: length of x.
    """

    def __init__(self, heads: int, size: int) -> None:
        super().__init__()
        self.size = size
        self.beta_weight = nn.Parameter(torch.zeros(heads, size, dtype=torch.float32))
        self.gamma_weight = nn.Parameter(torch.zeros(heads, size, dtype=torch.float32))

    def extra_repr(self) -> str:
        return f"heads={len(self.beta_weight)}, size={self.size}"

    def forward(self, x: Tensor, n: Tensor, delta: Value, beta: Value, gamma: Value) -> Tensor:
        """Return the factor of each query, (B, H, Q).

        Args:
            x: (B, Q, size).
            n: broadcastable to (B, H, Q).
            delta, beta, gamma: numbers, or one for each head, (H,).
        """
        x = widened(x)
        # the meta device has no autocast
        exact = nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)
        with exact:
            # dense, because torch 2.13 traces softplus's gradient with other strides than it has
            by_beta, by_gamma = (
                F.linear(x, weight.to(x)).transpose(1, 2).contiguous()
                for weight in (self.beta_weight, self.gamma_weight)
            )
        # products, because a number that a schedule changes must not become a constant of a graph
        delta, beta, gamma = (
            (x.new_ones(1) * value).to(x)[:, None] for value in (delta, beta, gamma)
        )
        power = log_power(n.to(x), gamma * by_gamma.tanh())
        return delta + F.softplus(by_beta + softplus_inverse(beta)) * power
