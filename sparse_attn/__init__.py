"""sparse-attn: swap the probability function inside Transformers."""

from sparse_attn import functional
from sparse_attn.mappings import Mapping, MappingSpec, mapping_names, register_mapping

__all__ = ["Mapping", "MappingSpec", "functional", "mapping_names", "register_mapping"]
