"""Train the linear head of a model as a `FactoredSphericalHead`.

The model keeps its `LinearHead`: the layer starts at its weights and returns them after each epoch,
so that the model is evaluated and saved like any other.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import nn

from experiments.language_modeling.models import LanguageModel
from experiments.language_modeling.sections import OBJECTIVES, StageConfig
from sparse_attn.heads import FactoredSphericalHead, LinearHead
from sparse_attn.mappings.pointwise import EPS

# steps between refreshes; the relative rounding of W^T W grows to about 1e-5 in between
REFRESH = 1000


def factored_layer(model: LanguageModel) -> FactoredSphericalHead:
    """Return a factored layer with the weights and the mapping of the model's head."""
    head = cast(LinearHead, model.head)
    layer = FactoredSphericalHead(
        head.hidden,
        head.vocab,
        OBJECTIVES[head.mapping.name],
        eps=head.mapping.parameter_values().get("eps", EPS.default),
        bias=head.bias is not None,
    )
    layer.to(head.weight)
    layer.load_weight(head.weight, head.bias)
    return layer


@torch.no_grad()
def write_back(layer: FactoredSphericalHead, model: LanguageModel) -> None:
    """Copy the weights to the model's head."""
    head, weight = cast(LinearHead, model.head), layer.W
    head.weight.copy_(weight[:, : head.hidden])
    if head.bias is not None:
        head.bias.copy_(weight[:, -1])


def clipped_step(
    layer: FactoredSphericalHead, model: LanguageModel, stage: StageConfig, lr: float
) -> None:
    """Clip the gradients of the model and of the layer to one norm, and step the layer.

    Raises:
        ValueError: the gradient of the layer is not finite.
    """
    share = 1.0
    if stage.clip is not None:
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        norm = torch.stack([nn.utils.get_total_norm(gradients), layer.grad_norm()]).norm()
        nn.utils.clip_grads_with_norm_(model.parameters(), stage.clip, norm)
        if norm.isfinite():  # layer.step raises for other norms
            share = min(1.0, stage.clip / (norm.item() + 1e-6))
    layer.step(share * lr, weight_decay=stage.weight_decay / share)
