"""Add our attention and our checks to Transformers' classes when it defines them.

Without them Transformers refuses the config of a saved patched model, or loads the model as a plain
one. Importing Transformers takes seconds, so --help and the mathematics must not wait for it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

CHECKS = "sparse_attn.hf.plain_loading"


def add_checks() -> None:
    """Add the checks now if Transformers' models are imported, else once they are."""
    if "transformers.modeling_utils" in sys.modules:
        import_module(CHECKS)
        return
    if "transformers.configuration_utils" in sys.modules:
        _check_configs(sys.modules["transformers.configuration_utils"])
    else:
        sys.meta_path.insert(0, _After("transformers.configuration_utils", _check_configs))
    sys.meta_path.insert(0, _After("transformers.modeling_utils", _check_models))


def _check_models(module: ModuleType) -> None:
    import_module(CHECKS)


def _check_configs(module: ModuleType) -> None:
    """Add the checks for configs, which can be loaded and saved without a model."""
    cls: Any = module.PreTrainedConfig
    original = cls.to_dict

    def to_dict(self: Any) -> dict[str, Any]:
        if CHECKS not in sys.modules:
            import_module(CHECKS)
            return cls.to_dict(self)
        return original(self)

    cls.to_dict = to_dict


class _After(MetaPathFinder):
    """Import hook that calls `then` once, after the named module has been executed."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self.name, self.then = name, then

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        loader: Any = spec.loader
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            self.then(module)

        loader.exec_module = exec_module
        return spec
