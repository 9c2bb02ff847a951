"""Fused attention: a dispatch, a reference as specification, and fused implementations."""

from sparse_attn.kernels.dispatch import attention

__all__ = ["attention"]
