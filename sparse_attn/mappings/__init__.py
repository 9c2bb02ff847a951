"""Probability mappings: functions, their registry, and a module for one mapping."""

from sparse_attn.mappings.module import Mapping
from sparse_attn.mappings.pointwise import pointwise_spec
from sparse_attn.mappings.registry import get_spec, mapping_names, register_mapping
from sparse_attn.mappings.specs import Dial, Kernel, MappingSpec, ParameterSpec

__all__ = [
    "Dial",
    "Kernel",
    "Mapping",
    "MappingSpec",
    "ParameterSpec",
    "get_spec",
    "mapping_names",
    "pointwise_spec",
    "register_mapping",
]
