"""Output layers over the mappings of the registry."""

from sparse_attn.heads.adaptive import AdaptiveHead
from sparse_attn.heads.base import Head, parameter_groups
from sparse_attn.heads.factored import FactoredSphericalHead
from sparse_attn.heads.linear import LinearHead
from sparse_attn.heads.mixture import MixtureHead
from sparse_attn.heads.multilabel import MultiLabelHead
from sparse_attn.heads.multilabel_threshold import search_threshold
from sparse_attn.heads.prior import match_prior

__all__ = [
    "AdaptiveHead",
    "FactoredSphericalHead",
    "Head",
    "LinearHead",
    "MixtureHead",
    "MultiLabelHead",
    "match_prior",
    "parameter_groups",
    "search_threshold",
]
