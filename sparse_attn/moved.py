"""Earlier names of modules, because pickles and other programs use them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    **{
        f"sparse_attn.{name}": f"sparse_attn.hf.{name}"
        for name in (
            *("adapters", "attention", "checkpoints", "descriptions", "entries", "exporting"),
            *("hooks", "layers", "loading", "patching", "plain_loading", "refusals", "schedules"),
        )
    },
    **{
        f"sparse_attn.heads.{name}": f"sparse_attn.hf.heads.{name}"
        for name in ("guard", "installing", "log_zero", "own_loss")
    },
    "sparse_attn.commands": "sparse_attn.cli",
    **{
        f"sparse_attn.commands.{name}": f"sparse_attn.cli.{name}"
        for name in ("errors", "inspect", "mappings", "programs")
    },
    "sparse_attn.commands.looking": "sparse_attn.cli.inspect_run",
    "sparse_attn.commands.reading": "sparse_attn.hf.opening",
    "sparse_attn.commands.syntax": "sparse_attn.mappings.syntax",
    "sparse_attn.files": "sparse_attn.system.files",
    "sparse_attn.heads.multilabel_patching": "sparse_attn.hf.heads.multilabel",
    "sparse_attn.heads.patching": "sparse_attn.hf.heads.lm",
    "sparse_attn.inspection.looks": "sparse_attn.inspection.plot_style",
    "sparse_attn.kernels.implementations": "sparse_attn.kernels.dispatch",
    "sparse_attn.holders": "sparse_attn.hf.wrapper_classes",
    "sparse_attn.patch_config": "sparse_attn.hf.config",
}


class Moved(MetaPathFinder, Loader):
    """Import hook that resolves a module's earlier name to the same module object."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name in MOVED else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(MOVED[spec.name])
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # the import system has just set that of the earlier name
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


sys.meta_path.insert(0, Moved())
