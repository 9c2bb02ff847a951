"""Networks with the output layer of a method."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

from experiments.multilabel.config import SIGMOID, MethodConfig
from experiments.multilabel.data.config import DataConfig, TextConfig
from glue.model import with_new_head
from sparse_attn import Mapping
from sparse_attn.heads import MultiLabelHead, patch_multilabel_head
from sparse_attn.heads.multilabel_threshold import above
from sparse_attn.hf.opening import resolve_model
from sparse_attn.losses import label_count_loss


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


class CountingHead(MultiLabelHead):
    """`MultiLabelHead` with predicted r, whose loss can take r from other numbers of labels.

    Balazy et al. 2023 do not say which number to use: the true one (as in `MultiLabelHead`), the
    predicted one, or the expected one, sum_k k p(k), whose gradient reaches the predictor.

    Args:
        hidden, labels: arguments of `MultiLabelHead`.
        method: config with mapping, `count` and `count_weight`.
    """

    def __init__(self, hidden: int, labels: int, method: MethodConfig) -> None:
        super().__init__(hidden, labels, method.mapping, sparsity=method.sparsity)
        self.method = method

    def loss(self, hidden: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
        """Return the loss of `MultiLabelHead`, with `count_weight` on the loss of the number."""
        counted = label_count_loss(self.count_scores(hidden), target == 1, reduction=reduction)
        extra = self.method.count_weight - 1
        return super().loss(hidden, target, reduction) + extra * counted

    def _arguments(self, prediction: Tensor | None, counts: Tensor | None = None) -> dict[str, Any]:
        if prediction is not None and counts is not None:
            if self.method.count == "predicted":
                counts = None
            elif self.method.count == "expected":
                numbers = torch.arange(self.labels + 1).to(prediction)
                counts = prediction.softmax(-1) @ numbers
        return super()._arguments(prediction, counts)


Head: TypeAlias = MultiLabelHead | SigmoidHead


def make_head(method: MethodConfig, hidden: int, labels: int) -> Head:
    """Return the output layer of a method; raise the errors of `Mapping` and `MultiLabelHead`."""
    if method.mapping == SIGMOID:
        return SigmoidHead(hidden, labels)
    if method.counted:
        return CountingHead(hidden, labels, method)
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


class SigmoidText(nn.Module):
    """A Transformer whose output layer is a `SigmoidHead` with the same weights.

    The control for `patch_multilabel_head`.

    Args:
        model: a sequence classification model.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        linear = {n: m for n, m in model.named_modules() if isinstance(m, nn.Linear)}
        name, last = linear.popitem()
        self.head = SigmoidHead(last.in_features, last.out_features)
        self.head.weight, self.head.bias = last.weight, last.bias
        model.set_submodule(name, nn.Identity())
        self.model = model

    def forward(self, labels: Tensor | None = None, **inputs: Tensor) -> SequenceClassifierOutput:
        """Return `logits`: log p (B, n); `loss` if labels [B, n] are given."""
        hidden = self.model(**inputs).logits  # [B, H], without the output layer
        loss = None if labels is None else self.head.loss(hidden, labels)
        return SequenceClassifierOutput(loss=loss, logits=self.head(hidden))


def build_model(data: DataConfig, method: MethodConfig, labels: int) -> nn.Module:
    """Return the network for a kind of data, with the output layer of the method.

    Its forward takes a batch as keyword arguments and returns `loss` and `logits`, like
    `Classifier`.

    Raises:
        ValueError, TypeError, OSError: invalid method, or unavailable network.
    """
    if data.text is not None:
        return text_model(data.text, method, labels)
    if data.images is not None:
        # needs an extra
        from experiments.multilabel.backbones import resnet

        backbone, hidden = resnet(data.images.backbone, data.images.weights)
        return Classifier(backbone, make_head(method, hidden, labels))
    assert data.synthetic is not None  # the config has exactly one of three
    features, hidden = data.synthetic.features, data.synthetic.hidden
    backbone = nn.Sequential(nn.Linear(features, hidden), nn.ReLU())
    return Classifier(backbone, make_head(method, hidden, labels))


def text_model(config: TextConfig, method: MethodConfig, labels: int) -> nn.Module:
    """Return a pretrained Transformer with a new output layer of the method.

    It is a patched Transformers model, except for sigmoid, which is not a mapping. Raises the
    errors of `build_model`.
    """
    if method.counted:
        raise ValueError(
            f"method.count={method.count}, count_weight={method.count_weight}: expected true and "
            "1 for texts, whose head is the library's"
        )
    # a checkpoint fine-tuned on another task may have an output layer of another size
    model, new_head = with_new_head(
        resolve_model(config.model), num_labels=labels, ignore_mismatched_sizes=True
    )
    if not new_head:  # same size, but other labels or another order
        old = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]
        old.reset_parameters()
    head = make_head(method, model.config.hidden_size, labels)
    if isinstance(head, SigmoidHead):
        return SigmoidText(model)
    return patch_multilabel_head(
        model, head.mapping, sparsity=method.sparsity, loss=method.loss, threshold=head.threshold
    )


def head_of(model: nn.Module) -> Head:
    """Return the head of a model by `build_model`."""
    return next(module for module in model.modules() if isinstance(module, Head))
