"""Factors of `scaled-NAME` that depend on the input of each query."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sparse_attn.mappings.base import Value, softplus_inverse, widened
from sparse_attn.mappings.derived import BETA, GAMMA


class QueryScale(nn.Module):
    """beta and gamma of each query: beta_x = softplus(b + w x), gamma_x = gamma tanh(v x).

    So p = NAME((delta + beta_x (log n)^gamma_x) z), x the input of the attention module at the
    query's position. softplus(b) is `beta`, so that with w = v = 0, the start, p is
    NAME((delta + beta) z).
    Source: ASEntmax, Vasylenko et al. 2025 (arXiv 2506.16640), section 4, for any NAME, with an
    offset b. Its paper has delta = 1, a fixed gamma of 2 in its code, and random w and v.

    Args:
        heads: H.
        size: length of x.
    """

    def __init__(self, heads: int, size: int) -> None:
        super().__init__()
        device = torch.get_default_device()
        self.beta = nn.Parameter(torch.zeros(heads, size, device=device))
        self.gamma = nn.Parameter(torch.zeros(heads, size, device=device))

    def forward(self, x: Tensor, beta: Value, gamma: Value) -> dict[str, Tensor]:
        """Return both by name, (B, H, Q), for inputs x (B, Q, size) and values of each head."""
        x = widened(x)
        with torch.autocast(x.device.type, enabled=False):
            by_beta, by_gamma = (
                F.linear(x, weight.to(x)).transpose(1, 2) for weight in (self.beta, self.gamma)
            )
        offset, bound = (
            torch.as_tensor(value, dtype=x.dtype, device=x.device).reshape(-1, 1)
            for value in (beta, gamma)
        )
        return {
            BETA.name: F.softplus(by_beta + softplus_inverse(offset)),
            GAMMA.name: bound * torch.tanh(by_gamma),
        }
