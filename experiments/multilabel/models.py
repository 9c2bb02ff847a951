"""Networks with the output layer of a method."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModel, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

from experiments.multilabel.config import SIGMOID, MethodConfig
from experiments.multilabel.data.config import DataConfig
from sparse_attn import Mapping
from sparse_attn.heads import MultiLabelHead
from sparse_attn.heads.multilabel_threshold import above
from sparse_attn.hf.opening import corrupt_weights


class SigmoidHead(nn.Linear):
    """p_i = sigma(w_i h + b_i), a sigmoid per label: the usual choice, and the control.

    Works like `MultiLabelHead`, but p does not sum to 1. The loss is the binary cross entropy,
    averaged over labels; a label applies if p > threshold.

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
    """Return the output layer of a method; raise the errors of `Mapping` and `MultiLabelHead`."""
    if (method.count, method.count_weight) != ("true", 1):
        raise ValueError(
            f"method.count={method.count}, count_weight={method.count_weight}: expected true and "
            "1; the others can be read from records, and no longer trained"
        )
    if method.mapping == SIGMOID:
        return SigmoidHead(hidden, labels)
    parameters: dict[str, Any] = dict(method.params)
    try:
        mapping = Mapping(method.mapping, learn=method.learn, **parameters)
        return MultiLabelHead(hidden, labels, mapping, sparsity=method.sparsity, loss=method.loss)
    except (ValueError, TypeError) as error:
        raise type(error)(f"method: {error}") from None


class Classifier(nn.Module):
    """log p = head(backbone(inputs)).

    Args:
        backbone: (B, ...) to hidden states (B, hidden).
        head: returns log p (B, labels) and the loss.
    """

    def __init__(self, backbone: nn.Module, head: Head) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head

    def forward(self, inputs: Tensor, labels: Tensor | None = None) -> SequenceClassifierOutput:
        """Return `loss` if labels [B, n] are given; `logits`: log p (B, n), -inf at exact zeros.

        In training mode with labels, only the loss is computed.
        """
        hidden = self.backbone(inputs)  # [B, H]
        loss = None if labels is None else self.head.loss(hidden, labels)
        log_p = None if self.training and labels is not None else self.head(hidden)
        return SequenceClassifierOutput(loss=loss, logits=log_p)


class Pooled(nn.Module):
    """The pooled features of a convolutional Transformers model.

    Args:
        model: returns a `pooler_output` [B, hidden, 1, 1].
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor) -> Tensor:
        """[B, 3, height, width] to [B, hidden]."""
        return self.model(pixel_values=inputs).pooler_output.flatten(1)


def pretrained(name: str) -> tuple[nn.Module, int]:
    """Return a pretrained network without its output layer, and the size of its output [B, hidden].

    Args:
        name: hub id or folder of a convolutional Transformers model, such as microsoft/resnet-18.

    Raises:
        ValueError, OSError: another model, or unavailable weights.
    """
    with corrupt_weights(f"backbone={name!r}"):
        model = AutoModel.from_pretrained(name, dtype=torch.float32)  # to be trained
    sizes = getattr(model.config, "hidden_sizes", None)
    if not sizes or model.main_input_name != "pixel_values":
        raise ValueError(
            f"backbone={name!r}: {type(model).__name__} is not a convolutional network with a "
            "pooled output; expected one such as microsoft/resnet-18"
        )
    return Pooled(model), sizes[-1]


def build_model(data: DataConfig, method: MethodConfig, labels: int) -> Classifier:
    """Return the network for a kind of data, with the output layer of the method.

    Raises:
        ValueError, TypeError, OSError: invalid method, or unavailable network.
    """
    if data.images is not None:
        backbone, hidden = pretrained(data.images.backbone)
    else:
        assert data.synthetic is not None  # the config has exactly one of two
        hidden = data.synthetic.hidden
        backbone = nn.Sequential(nn.Linear(data.synthetic.features, hidden), nn.ReLU())
    return Classifier(backbone, make_head(method, hidden, labels))
