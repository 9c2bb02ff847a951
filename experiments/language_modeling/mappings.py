"""Mappings used by experiments only; importing this module registers them."""

import torch
from torch import Tensor

from sparse_attn import register_mapping
from sparse_attn.functional import softmax
from sparse_attn.losses import bouchard_loss
from sparse_attn.mappings import MappingSpec, get_spec, pointwise_spec


def log_g(scores: Tensor) -> Tensor:
    """p_i = g(z_i) / sum_j g(z_j), g(z) = max(0, z) + 1e-8.

    Kanai et al. 2018's g:ReLU as an output layer. We add the epsilon to avoid likelihoods of 0; the
    paper does not say how it avoids them.
    """
    return torch.log(scores.clamp(min=0) + 1e-8)


source = "Kanai et al. 2018, table 1, with an epsilon"
register_mapping(pointwise_spec("relu-eps", log_g, source=source))


def bouchard(
    scores: Tensor, *, mask: Tensor | None = None, dim: int = -1, log: bool = False
) -> Tensor:
    """softmax, trained by `bouchard_loss` instead of -log p."""
    return softmax(scores, mask=mask, dim=dim, log=log)


register_mapping(
    MappingSpec(
        "bouchard",
        bouchard,
        translation_invariant=True,
        log_g=get_spec("softmax").log_g,
        losses={"bouchard": bouchard_loss},
        source="Bouchard 2007; de Brebisson & Vincent 2016, section 2",
    )
)
