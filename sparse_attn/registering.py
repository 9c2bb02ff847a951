"""Let plain `from_pretrained` load patched models, in whatever order both are imported.

Importing Transformers' models takes seconds, which neither --help nor the mathematics waits for.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MODELS = "transformers.modeling_utils"


def load_saved_mappings() -> None:
    """Let Transformers load patched models, now where it is imported already, or when it is."""
    if MODELS in sys.modules:
        import_module(MODELS)  # waits for another thread that is still importing it
        import_module("sparse_attn.hf.saved")
    else:
        sys.meta_path.insert(0, _AfterModels())


class _AfterModels(MetaPathFinder):
    """Finds Transformers' models as the other finders do, and imports ours after them."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != MODELS:
            return None
        # importlib.util.find_spec would import the parent, which another thread may be importing
        for finder in tuple(sys.meta_path):
            if finder is not self and (spec := finder.find_spec(name, path, target)) is not None:
                if spec.loader is not None:
                    spec.loader = _Executed(spec.loader)
                return spec
        return None


class _Executed(Loader):
    """Another loader, with the import of ours after the execution of the module."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self.loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__loader__ = module.__spec__.loader = self.loader
        self.loader.exec_module(module)
        import_module("sparse_attn.hf.saved")
