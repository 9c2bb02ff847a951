"""What a run trains: a backbone under a head."""

from __future__ import annotations

from torch import Tensor, nn
from transformers.modeling_outputs import SequenceClassifierOutput

from experiments.multilabel.config import DataConfig
from experiments.multilabel.heads import Head, make_head
from experiments.multilabel.methods import MethodConfig


class Classifier(nn.Module):
    """log p = head(backbone(inputs)).

    Args:
        backbone: (B, ...) to hidden states (B, hidden).
        head: what makes log p (B, labels), and the loss.
    """

    def __init__(self, backbone: nn.Module, head: Head) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head

    def forward(self, inputs: Tensor, labels: Tensor | None = None) -> SequenceClassifierOutput:
        """`loss` where labels [B, n] are given; `logits`: log p (B, n), -inf at exact zeros.

        While training on labels there is the loss alone, which needs no log p.
        """
        hidden = self.backbone(inputs)  # [B, H]
        if self.training and labels is not None:
            return SequenceClassifierOutput(loss=self.head.loss(hidden, labels))
        loss = None if labels is None else self.head.loss(hidden, labels)
        return SequenceClassifierOutput(loss=loss, logits=self.head(hidden))


def build_model(data: DataConfig, method: MethodConfig, labels: int) -> nn.Module:
    """The network for a kind of data, with the method as its output.

    Its forward takes a batch as keyword arguments and gives `loss` and `logits` as `Classifier`.

    Raises:
        ValueError, TypeError: what is wrong with the method.
    """
    if data.text is not None:
        # an extra's imports, as below
        from experiments.multilabel.backbones import text_model

        return text_model(data.text, method, labels)
    if data.images is not None:
        from experiments.multilabel.backbones import resnet

        backbone, hidden = resnet(data.images.backbone, data.images.weights)
        return Classifier(backbone, make_head(method, hidden, labels))
    assert data.synthetic is not None  # the config has one of three
    features, hidden = data.synthetic.features, data.synthetic.hidden
    backbone = nn.Sequential(nn.Linear(features, hidden), nn.ReLU())
    return Classifier(backbone, make_head(method, hidden, labels))


def head_of(model: nn.Module) -> Head:
    """The one output of a model that `build_model` has made."""
    return next(module for module in model.modules() if isinstance(module, Head))
