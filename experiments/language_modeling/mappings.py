"""Mappings used by experiments only; importing this module registers them."""

from dataclasses import replace

import torch
from torch import Tensor

from sparse_attn import register_mapping
from sparse_attn.losses import bouchard_loss
from sparse_attn.mappings import get_spec, pointwise_spec


def log_g(scores: Tensor) -> Tensor:
    """p_i = g(z_i) / sum_j g(z_j), g(z) = max(0, z) + 1e-8.

    Kanai et al. 2018's g:ReLU as an output layer. The epsilon, which is ours, avoids likelihoods of
    0; the paper does not say how it did.
    """
    return torch.log(scores.clamp(min=0) + 1e-8)


source = "Kanai et al. 2018, table 1, with an epsilon"
register_mapping(pointwise_spec("relu-eps", log_g, source=source))
register_mapping(
    replace(
        get_spec("softmax"),
        name="bouchard",
        losses={"bouchard": bouchard_loss},
        kernel=None,
        color=None,
        source="Bouchard 2007, section 2; de Brebisson & Vincent 2016, section 2",
    )
)
