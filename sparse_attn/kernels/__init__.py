"""Fused attention: dispatch, fused implementations, and a reference that specifies them."""

from sparse_attn.kernels.dispatch import attention

__all__ = ["attention"]
