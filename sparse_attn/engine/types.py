"""Types for annotations in config modules, without their imports, which take seconds.

They have a separate module because jsonargparse runs `if TYPE_CHECKING:` blocks beside a config.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from sparse_attn.hf.schedules import SparsitySchedule
    from sparse_attn.mappings.module import Mapping
else:
    Mapping = PreTrainedModel = SparsitySchedule = Any

__all__ = ["Mapping", "PreTrainedModel", "SparsitySchedule"]
