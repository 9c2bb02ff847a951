"""sparse-attn: swap the probability function inside Transformers."""

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparse_attn import functional, heads, kernels, losses
    from sparse_attn.conversion import convert
    from sparse_attn.hf.exporting import export_model
    from sparse_attn.hf.loading import load_pretrained
    from sparse_attn.mappings import Mapping, MappingSpec, mapping_names, register_mapping
    from sparse_attn.hf.patching import patch_model, patched, unpatch_model
    from sparse_attn.hf.schedules import SparsitySchedule, SparsityScheduleCallback

__all__ = [
    "Mapping",
    "MappingSpec",
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
    "patch_model",
    "patched",
    "register_mapping",
    "unpatch_model",
]

# Registers the attention function, without which Transformers refuses the config of a saved model,
# and refuses to load such a model as a plain one.
# The command line imports it with the rest of Transformers, where it loads a model: not for --help.
# While `python OPTIONS -m MODULE ARGUMENTS` looks for MODULE, sys.argv is ["-m", *ARGUMENTS].
_by_module = sys.argv[:1] == ["-m"] and (
    sys.orig_argv[-len(sys.argv)].removeprefix("-m") == "sparse_attn"
)
if not _by_module and Path(*sys.argv[:1]).name != "sparse-attn":
    import_module("sparse_attn.hf.plain_loading")

if not TYPE_CHECKING:  # a type checker would take any name for one of these

    def __getattr__(name: str) -> Any:
        """A public name, imported when it is first asked for."""
        if not name.startswith("_") and find_spec(f"{__name__}.{name}") is not None:
            return import_module(f"{__name__}.{name}")
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        # schedules last: it imports all that Trainer needs, PEFT too
        places = ("mappings", "patching", "loading", "exporting", "schedules", "conversion")
        modules = (import_module(f"{__name__}.{place}") for place in places)
        return next(getattr(module, name) for module in modules if hasattr(module, name))

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
