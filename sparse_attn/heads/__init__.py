"""Output layers over the mappings of the registry."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sparse_attn.heads.adaptive import AdaptiveHead
from sparse_attn.heads.base import Head, parameter_groups
from sparse_attn.heads.factored import FactoredSphericalHead
from sparse_attn.heads.linear import LinearHead
from sparse_attn.heads.mixture import MixtureHead
from sparse_attn.heads.multilabel import MultiLabelHead
from sparse_attn.heads.multilabel_threshold import search_threshold
from sparse_attn.heads.prior import match_prior

if TYPE_CHECKING:
    from sparse_attn.hf.heads import (
        patch_lm_head,
        patch_multilabel_head,
        unpatch_lm_head,
        unpatch_multilabel_head,
    )

__all__ = [
    "AdaptiveHead",
    "FactoredSphericalHead",
    "Head",
    "LinearHead",
    "MixtureHead",
    "MultiLabelHead",
    "match_prior",
    "parameter_groups",
    "patch_lm_head",
    "patch_multilabel_head",
    "search_threshold",
    "unpatch_lm_head",
    "unpatch_multilabel_head",
]

if not TYPE_CHECKING:  # type checkers would accept any name

    def __getattr__(name: str) -> Any:
        """Import the functions that patch a model's head, which need Transformers, on first use."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import_module("transformers.modeling_utils")  # another thread may, and wait for ours
        from sparse_attn.hf import heads

        return getattr(heads, name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
