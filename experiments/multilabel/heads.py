"""Output layers: that of a method, and the control among them, a sigmoid for each label."""

from __future__ import annotations

from typing import Any, TypeAlias

from torch import Tensor, nn
from torch.nn import functional as F

from experiments.multilabel.methods import SIGMOID, MethodConfig
from sparse_attn import Mapping
from sparse_attn.heads import MultiLabelHead
from sparse_attn.heads.multilabel_threshold import above


class SigmoidHead(nn.Linear):
    """p_i = sigma(w_i h + b_i), every label by itself: what most people use, and so the control.

    As `MultiLabelHead`, but p does not sum to 1. Its loss is the binary cross entropy, mean over
    labels; a label applies where p > threshold.

    Args:
        hidden: size of the hidden states.
        labels: number of labels n.
    """

    threshold: float = 0.5

    def __init__(self, hidden: int, labels: int) -> None:
        super().__init__(hidden, labels)

    def forward(self, hidden: Tensor) -> Tensor:
        """log p: (..., hidden) to (..., labels)."""
        return F.logsigmoid(super().forward(hidden))

    def loss(self, hidden: Tensor, target: Tensor) -> Tensor:
        """-mean_i y_i log p_i + (1 - y_i) log(1 - p_i) over labels i and rows."""
        scores = super().forward(hidden)
        return F.binary_cross_entropy_with_logits(scores, target.to(scores.dtype))

    def decide(self, log_p: Tensor) -> Tensor:
        """p > threshold, boolean."""
        return above(log_p, self.threshold)


Head: TypeAlias = MultiLabelHead | SigmoidHead


def make_head(method: MethodConfig, hidden: int, labels: int) -> Head:
    """The output layer of a method; raises as `Mapping` and `MultiLabelHead` do."""
    if method.mapping == SIGMOID:
        return SigmoidHead(hidden, labels)
    parameters: dict[str, Any] = dict(method.params)
    try:
        mapping = Mapping(method.mapping, learn=method.learn, **parameters)
        return MultiLabelHead(hidden, labels, mapping, sparsity=method.sparsity, loss=method.loss)
    except (ValueError, TypeError) as error:
        raise type(error)(f"method: {error}") from None
