"""Names for annotations in modules of configs, without the seconds that their imports take.

Apart from those modules: jsonargparse runs what stands under `if TYPE_CHECKING:` beside a config.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from sparse_attn import Mapping, SparsitySchedule
else:
    Mapping = PreTrainedModel = SparsitySchedule = Any

__all__ = ["Mapping", "PreTrainedModel", "SparsitySchedule"]
