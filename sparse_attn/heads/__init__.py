"""Output layers over the mappings of the registry."""

from sparse_attn.heads.base import Head, parameter_groups
from sparse_attn.heads.linear import LinearHead
from sparse_attn.heads.mixture import MixtureHead

__all__ = ["Head", "LinearHead", "MixtureHead", "parameter_groups"]
