"""Multi-label head: one distribution over the labels; entries above a threshold are predicted."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sparse_attn.heads.base import as_mapping, check_hidden, positive
from sparse_attn.heads.linear import word_biases, word_vectors
from sparse_attn.heads.multilabel_threshold import above, check_log_p, check_target, check_threshold
from sparse_attn.losses import label_count_loss
from sparse_attn.losses.dense import check_distribution, spec_nll
from sparse_attn.losses.row_blocks import check_reduction, reduce
from sparse_attn.mappings import Mapping, MappingSpec, get_spec, mapping_names
from sparse_attn.mappings.base import widened
from sparse_attn.mappings.values import into_range
from sparse_attn.mappings.variants import SINK, is_scaled
from sparse_attn.mappings.weighted import R

NLL = "nll"  # -log p, for mappings without zeros
DENSE_THRESHOLD = 0.1  # for mappings without zeros


class MultiLabelHead(nn.Module):
    """p = map(W h + b); the labels are those with p > threshold.

    With a mapping that returns zeros and threshold 0, the labels are its support. Its sparsity is
    fixed, scheduled or learned in the mapping, or predicted for every h by a second linear layer:

        r-softmax: r = 1 - k / labels, k = argmax (A h + a) the number of labels, at least 1;
        t-softmax: t = softplus(a . h + a0), which starts at the mapping's t; likewise the parameter
        `predicts` of another mapping's spec, mapped into its range as if learned.

    Without ties r-softmax then keeps exactly k labels, except at k = labels > 1, where r = 0 drops
    the minimum. With a sink, as in `Mapping("sparsemax", sink=0.0)`, "none of them" is one more
    label, the true label of a row without labels, so the head can predict the empty set. Scores,
    log p and losses are computed in at least float32 for any dtype of h and W, also under autocast,
    because rounded scores tie. Do not learn alpha of entmax or q of sparsehourglass: they only
    change the scale of their loss, and end where it is lowest for any labels. Learn t, or predict.
    Source: Balazy et al. 2023, eq. 3 and 4.

    Args:
        hidden: size d of the hidden states h.
        labels: number of labels n.
        mapping: a registered name or a `Mapping`, such as `Mapping("t-softmax", learn="t")`, whose
            rows sum to one except for a sink.
        sparsity: "fixed", or "predicted" for r-softmax and t-softmax without a sink.
        loss: one of the `losses` of the mapping's spec, or "nll" for a mapping without zeros; None
            for the default. The losses are "sparsemax" and "sparsegen-hinge" of sparsemax,
            "entmax", "sparsegen-hinge" of sparsegen, "sparsehourglass", and "r-softmax" of r- and
            t-softmax.
        threshold: in [0, 1); None for 0, or 0.1 for a mapping without zeros. `search_threshold`
            finds one.

    Attributes:
        weight, bias: W, [labels, hidden], and b, [labels].
        described: what `describe` returns, kept up to date.
        predictor: the second linear layer, or None.

    Raises:
        ValueError: a size below 1, a mapping that cannot be trained or whose sparsity cannot be
            predicted, a loss that is not the mapping's, or a threshold out of range.
        TypeError: a mapping that is neither a name nor a `Mapping`, a threshold that is not a
            number.
    """

    bias: nn.Parameter | None

    def __init__(
        self,
        hidden: int,
        labels: int,
        mapping: str | Mapping = "r-softmax",
        *,
        sparsity: str = "fixed",
        loss: str | None = None,
        threshold: float | None = None,
    ) -> None:
        super().__init__()
        for name, size in (("hidden", hidden), ("labels", labels)):
            if size < 1:
                raise ValueError(f"{name}={size}: expected at least 1")
        self.hidden = hidden
        self.labels = labels
        self.mapping = as_mapping("mapping", mapping)
        check_distribution("mapping", self._base, "a multi-label head")
        if self.mapping.has_sink and is_scaled(self._base):
            raise ValueError(
                f"mapping={self.mapping.name!r}: its sink is not scaled, and so is not one more "
                "label; leave `sink` or the scaling out"
            )
        self.sparsity = sparsity
        self.predicted = _predicted(self.mapping, sparsity)
        self.criterion = _criterion(self.mapping, self._base, loss)
        self.weight = word_vectors(labels, hidden, None)
        self.register_parameter("bias", word_biases(self.weight))
        self.predictor = self._make_predictor()
        described = self.mapping.describe()
        self.described: dict[str, Any] = {
            **{name: described[name] for name in ("mapping", "params", "learn")},
            "sparsity": self.sparsity,
            "loss": self.criterion,
        }
        usual = DENSE_THRESHOLD if self._never_zero else 0.0
        self.threshold = usual if threshold is None else threshold

    def _make_predictor(self) -> nn.Linear | None:
        if self.predicted is None:
            return None
        if self.predicted == R.name:
            return nn.Linear(self.hidden, self.labels + 1)
        predictor = nn.Linear(self.hidden, 1)
        value: dict[str, Any] = {self.predicted: self.mapping.value(self.predicted)}
        start = Mapping(self.mapping.name, learn=self.predicted, **value)
        with torch.no_grad():
            predictor.weight.zero_()
            predictor.bias.copy_(start.get_parameter(f"raw_{self.predicted}"))
        return predictor

    @property
    def _base(self) -> MappingSpec:
        """Return the record of the mapping without its sink."""
        return get_spec(self.mapping.name)

    @property
    def _never_zero(self) -> bool:
        return self.criterion == NLL or not self.mapping.spec.zeros

    @property
    def threshold(self) -> float:
        """A label is predicted where p > threshold."""
        return self._threshold

    @threshold.setter
    def threshold(self, value: float) -> None:
        check_threshold("threshold", value)
        if value == 0 and self._never_zero:
            raise ValueError(
                f"threshold=0: {self.mapping.name} gives every label p > 0; expected a number in "
                "(0, 1), which search_threshold finds"
            )
        self._threshold = float(value)
        self.described["threshold"] = self._threshold

    def set_parameter(self, name: str, value: float, ends: Sequence[float] = ()) -> None:
        """Set a fixed parameter of the mapping, as a schedule does.

        Args:
            name: name of the parameter.
            value: value to set.
            ends: values that it will reach, checked first.

        Raises:
            ValueError: out of range, or the mapping has no such fixed parameter.
        """
        if name == self.predicted or name not in self.mapping.fixed:
            raise ValueError(
                f"parameter={name!r}: {self.mapping.name} with sparsity={self.sparsity!r} has no "
                "such fixed parameter; choose another"
            )
        for end in ends:
            self.mapping.spec.parameter(name).check(end)
        self.mapping.set_value(name, value)

    def describe(self) -> dict[str, Any]:
        """Return the arguments that recreate this head, without sizes and learned values.

        They are mapping, params and learn of the `Mapping`, then sparsity, loss and threshold.
        """
        return dict(self.described)

    def forward(self, hidden: Tensor) -> Tensor:
        """log p of every label, in nats: (..., hidden) to (..., labels), -inf at exact zeros.

        Raises:
            ValueError: hidden states of the wrong size.
            TypeError: hidden states that are not floating point.
        """
        arguments = self._arguments(self._prediction(hidden))
        return self.mapping.spec.log_function(self.scores(hidden), **arguments)

    def loss(self, hidden: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
        """Return the loss named `criterion`.

        A predicted r is replaced by the r of the true number of labels, and the cross entropy of
        that number is added. Without a sink, a row without labels contributes only the latter.

        Args:
            hidden: (..., hidden).
            target: (..., labels) of 0 and 1, any dtype.
            reduction: "mean" over the rows, "sum", or "none".

        Returns:
            In at least float32, () or (...). On a GPU, NaN for a row with values other than 0 and
            1, because checking them would synchronise.

        Raises:
            ValueError: mismatched shapes, an unknown reduction or, on the CPU, a target other than
                0 and 1.
            TypeError: hidden states that are not floating point, a target that is not a real
                tensor.
        """
        check_reduction(reduction)
        check_hidden(hidden, self.hidden)
        wrong = check_target(target, (*hidden.shape[:-1], self.labels))
        present = target == 1
        prediction = self._prediction(hidden)
        losses = self._row_losses(self.scores(hidden), present, prediction)
        if prediction is not None and self.predicted == R.name:
            losses = losses + label_count_loss(prediction, present, reduction="none")
        losses = losses.masked_fill(wrong.any(-1), torch.nan)
        return reduce(losses, losses.numel(), reduction)

    def _row_losses(self, scores: Tensor, present: Tensor, prediction: Tensor | None) -> Tensor:
        arguments = self._arguments(prediction, present.sum(-1))
        if self.mapping.has_sink:
            sink = arguments.pop(SINK.name) + torch.zeros_like(scores[..., :1])
            scores = torch.cat([scores, sink], -1)
            present = torch.cat([present, ~present.any(-1, keepdim=True)], -1)
        loss = self._base.losses.get(self.criterion)
        if loss is None:
            # -sum eta log p is undefined for a row without labels
            loss, arguments["mask"] = partial(spec_nll, self._base), present.any(-1, keepdim=True)
        return loss(scores, present, **arguments, reduction="none")

    @torch.no_grad()
    def predict(self, hidden: Tensor) -> Tensor:
        """Return the predicted labels: (..., hidden) to a boolean (..., labels).

        A row with NaN has none.
        """
        return above(self(hidden), self.threshold)

    def decide(self, log_p: Tensor) -> Tensor:
        """Return p > threshold, a boolean in the shape of log_p.

        Raises:
            ValueError: a log_p above 0, such as a probability.
        """
        if not torch.compiler.is_compiling():
            check_log_p(log_p)
        return above(log_p, self.threshold)

    def scores(self, hidden: Tensor) -> Tensor:
        """W h + b in at least float32: (..., hidden) to (..., labels). Errors as `forward`."""
        return _linear(hidden, self.weight, self.bias)

    def _prediction(self, hidden: Tensor) -> Tensor | None:
        """Return scores of 0 to n labels, (..., labels + 1), or t before the softplus, (..., 1)."""
        if self.predictor is None:
            return None
        return _linear(hidden, self.predictor.weight, self.predictor.bias)

    def _arguments(self, prediction: Tensor | None, counts: Tensor | None = None) -> dict[str, Any]:
        """Return the mapping's arguments except the scores; `counts` (...) replace predictions."""
        arguments = self.mapping.arguments()
        if prediction is None:
            return arguments
        if self.predicted == R.name:
            counts = prediction.argmax(-1) if counts is None else counts
            value = 1 - counts.clamp(min=1).to(prediction) / self.labels
        else:
            spec = self.mapping.spec.parameter(str(self.predicted))
            value = into_range(spec, prediction).squeeze(-1)
        return {**arguments, str(self.predicted): value}

    def extra_repr(self) -> str:
        return (
            f"hidden={self.hidden}, labels={self.labels}, bias={self.bias is not None}, "
            f"sparsity={self.sparsity!r}, loss={self.criterion!r}, "
            f"threshold={self.threshold}"
        )


def _linear(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return W h + b in at least float32, also under autocast."""
    check_hidden(hidden, weight.shape[-1])
    if not hidden.is_floating_point():
        raise TypeError(f"hidden: expected floating point, got {hidden.dtype}; use .float()")
    bias = None if bias is None else widened(bias)
    kind = hidden.device.type
    # the meta device has no autocast; torch 2.11 cannot compile is_autocast_available
    off = nullcontext() if kind == "meta" else torch.autocast(kind, enabled=False)
    with off:
        return F.linear(widened(hidden), widened(weight), bias)


def _predicted(mapping: Mapping, sparsity: str) -> str | None:
    """Return the name of the predicted parameter, or None."""
    if sparsity not in ("fixed", "predicted"):
        raise ValueError(f"sparsity={sparsity!r}: expected 'fixed' or 'predicted'")
    if sparsity == "fixed":
        return None
    predicted = mapping.spec.predicts
    if predicted is None or mapping.learned:
        learned = f" that learns {', '.join(mapping.learned)}" if mapping.learned else ""
        learned += " with a sink" if mapping.has_sink else ""
        known = [name for name in mapping_names() if get_spec(name).predicts]
        raise ValueError(
            f"sparsity='predicted': expected {' or '.join(known)}, none of them learned, without a "
            f"sink, got {mapping.name}{learned}"
        )
    if predicted == R.name and mapping.value(R.name) != R.default:
        raise ValueError(
            f"sparsity='predicted': r={mapping.value(R.name)} would have no effect; leave r out"
        )
    return predicted


def _criterion(mapping: Mapping, base: MappingSpec, loss: str | None) -> str:
    """Return the name of the loss, by default the mapping's."""
    known = [*base.losses, *([NLL] if positive(mapping) else [])]
    if not known:
        others = [name for name in mapping_names() if get_spec(name).losses]
        raise ValueError(
            f"mapping={mapping.name}: it returns zeros and has no loss that could train it; "
            f"expected a mapping without zeros or one of {', '.join(others)}"
        )
    if loss is not None and loss not in known:
        raise ValueError(f"loss={loss!r}: {mapping.name} can be trained by {', '.join(known)}")
    return loss or known[0]
