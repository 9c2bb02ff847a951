"""sparse-attn: swap the probability function inside Transformers."""

from sparse_attn import functional, heads, kernels, losses
from sparse_attn.loading import load_pretrained
from sparse_attn.mappings import Mapping, MappingSpec, mapping_names, register_mapping
from sparse_attn.patching import patch_model, patched, unpatch_model
from sparse_attn.schedules import SparsitySchedule, SparsityScheduleCallback

__all__ = [
    "Mapping",
    "MappingSpec",
    "SparsitySchedule",
    "SparsityScheduleCallback",
    "functional",
    "heads",
    "kernels",
    "load_pretrained",
    "losses",
    "mapping_names",
    "patch_model",
    "patched",
    "register_mapping",
    "unpatch_model",
]
