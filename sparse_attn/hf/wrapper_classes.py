"""Classes of other libraries that wrap a model and are saved by name."""

from __future__ import annotations

import sys
from importlib import import_module

from torch import nn

# module that defines such a class -> our module, whose `update(model)` replaces the class
INTEGRATIONS = {
    "sentence_transformers.base.modules.transformer": (
        "sparse_attn.integrations.sentence_transformers"
    ),
}


def update_holders(model: nn.Module) -> None:
    """Let wrappers of a patched model be saved as a class that loads the patch.

    Imports upwards, by name, and only where the other library is already imported.
    """
    for theirs, ours in INTEGRATIONS.items():
        if theirs in sys.modules:
            import_module(ours).update(model)
