"""Fused attention: one dispatch, a reference that is the specification, and faster twins."""

from sparse_attn.kernels.dispatch import attention

__all__ = ["attention"]
