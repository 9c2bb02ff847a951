"""Add our attention and our checks to Transformers' classes when it defines them.

Without them Transformers refuses the config of a saved patched model, and would load such a model
as a plain one. Importing Transformers takes seconds, which neither --help nor the mathematics
waits for.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

CHECKS = "sparse_attn.hf.plain_loading"
CONFIGS, MODELS = "transformers.configuration_utils", "transformers.modeling_utils"


def add_checks() -> None:
    """Add them now where Transformers is imported already, and otherwise when it is."""
    for name, add in ((CONFIGS, _check_configs), (MODELS, _check_models)):
        if name in sys.modules:
            add(import_module(name))  # waits for another thread that is still importing it
        else:
            sys.meta_path.insert(0, _After(name, add))


def _check_models(module: ModuleType) -> None:
    import_module(CHECKS)


def _check_configs(module: ModuleType) -> None:
    """Keep the guard of a config that is loaded and saved without a model."""
    config: Any = module.PreTrainedConfig
    original = config.to_dict

    @functools.wraps(original)
    def to_dict(self: Any) -> dict[str, Any]:
        saved: dict[str, Any] = import_module(CHECKS).keep_guard(self, original(self))
        return saved

    config.to_dict = to_dict


class _After(MetaPathFinder):
    """Finds one module as the other finders do, and calls `then` whenever it has been executed."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self.name, self.then = name, then

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self.name:
            return None
        # importlib.util.find_spec would import the parent, which another thread may be importing
        for finder in tuple(sys.meta_path):
            if finder is not self and (spec := finder.find_spec(name, path, target)) is not None:
                if spec.loader is not None:
                    spec.loader = _Executed(spec.loader, self.then)
                return spec
        return None


class _Executed(Loader):
    """Another loader, with `then` after the execution of the module."""

    def __init__(self, loader: Any, then: Callable[[ModuleType], None]) -> None:
        self.loader, self.then = loader, then

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self.loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__loader__ = module.__spec__.loader = self.loader
        self.loader.exec_module(module)
        self.then(module)
