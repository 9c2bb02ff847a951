"""Attention in Triton."""

from __future__ import annotations

from torch import Tensor

from sparse_attn.kernels.call import Call


def refusal(call: Call) -> str | None:
    return "not written yet"


def attention(call: Call) -> Tensor:
    raise NotImplementedError
