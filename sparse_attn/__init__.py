"""sparse-attn: swap the probability function inside Transformers."""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from sparse_attn.registering import load_saved_mappings
from sparse_attn.system.paths import own_version

if TYPE_CHECKING:
    from sparse_attn import functional, heads, kernels, losses
    from sparse_attn.conversion.converting import convert
    from sparse_attn.hf.caches import ScreeningCache
    from sparse_attn.hf.exporting import export_model
    from sparse_attn.hf.heads import (
        patch_lm_head,
        patch_multilabel_head,
        unpatch_lm_head,
        unpatch_multilabel_head,
    )
    from sparse_attn.hf.loading import load_pretrained
    from sparse_attn.hf.patching import patch_model, patched, unpatch_model
    from sparse_attn.hf.schedules import SparsitySchedule, SparsityScheduleCallback
    from sparse_attn.integrations.trainer import AttentionStatistics
    from sparse_attn.mappings import Mapping, MappingSpec, mapping_names, register_mapping

    __version__: str

__all__ = [
    "AttentionStatistics",
    "Mapping",
    "MappingSpec",
    "ScreeningCache",
    "SparsitySchedule",
    "SparsityScheduleCallback",
    "convert",
    "export_model",
    "functional",
    "heads",
    "kernels",
    "load_pretrained",
    "losses",
    "mapping_names",
    "patch_lm_head",
    "patch_model",
    "patch_multilabel_head",
    "patched",
    "register_mapping",
    "unpatch_lm_head",
    "unpatch_model",
    "unpatch_multilabel_head",
]

load_saved_mappings()

if not TYPE_CHECKING:  # type checkers would accept any name

    def __getattr__(name: str) -> Any:
        """Import a public name on first use."""
        if name == "__version__":
            return own_version()
        if not name.startswith("_") and find_spec(f"{__name__}.{name}") is not None:
            return import_module(f"{__name__}.{name}")
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        # schedules late: it imports Trainer's dependencies, PEFT included
        places = (
            f"{__name__}.mappings",
            "transformers.modeling_utils",  # which another thread may import, and wait for ours
            *(
                f"{__name__}.hf.{p}"
                for p in ("patching", "caches", "heads", "loading", "exporting", "schedules")
            ),
            f"{__name__}.integrations.trainer",
            f"{__name__}.conversion.converting",
        )
        modules = map(import_module, places)
        return next(getattr(module, name) for module in modules if hasattr(module, name))

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
