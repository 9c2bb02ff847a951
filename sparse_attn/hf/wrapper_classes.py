"""Classes of other libraries that hold a model and that they save by name."""

from __future__ import annotations

import sys
from importlib import import_module

from torch import nn

# where such a class is defined -> our module for it, whose `update(model)` sets that class
INTEGRATIONS = {
    "sentence_transformers.base.modules.transformer": (
        "sparse_attn.integrations.sentence_transformers"
    ),
}


def update_holders(model: nn.Module) -> None:
    """Let what holds a patched model be saved as a class that loads it patched.

    Imports upwards, by name, and only where the other library is already imported.
    """
    for theirs, ours in INTEGRATIONS.items():
        if theirs in sys.modules:
            import_module(ours).update(model)
