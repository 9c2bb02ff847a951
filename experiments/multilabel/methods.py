"""What is compared: outputs with their losses and thresholds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from torch import Tensor, nn
from torch.nn import functional as F

from pipeline.config import ScheduleConfig
from sparse_attn import Mapping, SparsitySchedule
from sparse_attn.heads import MultiLabelHead
from sparse_attn.heads.multilabel_threshold import above

SIGMOID = "sigmoid"


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


@dataclass(frozen=True)
class MethodConfig:
    """A mapping as the output of a classifier.

    Args:
        mapping: a registered mapping, such as softmax, sparsemax, r-softmax; or sigmoid: every
            label by itself, with binary cross entropy.
        params: the mapping's parameters, such as `--method.params.r 0.5`.
        loss: nll, sparsemax, entmax, sparsegen-hinge, sparsehourglass or r-softmax; the mapping's
            own if left out.
        sparsity: fixed: by the parameters; predicted: r (of r-softmax) or t (of t-softmax) comes
            from the row itself.
        learn: names of the parameters to learn.
        schedule: ramps one parameter from `initial` to its value in `params`.
        thresholds: a label applies where p is above the one of these that is best on the validation
            set; if left out, above the head's own, which for mappings with zeros is 0.
    """

    mapping: str = "softmax"
    params: dict[str, float] = field(default_factory=dict)
    loss: str | None = None
    sparsity: Literal["fixed", "predicted"] = "fixed"
    learn: list[str] = field(default_factory=list)
    schedule: ScheduleConfig | None = None
    thresholds: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        outside = [value for value in self.thresholds if not 0 < value < 1]
        if outside or len(set(self.thresholds)) < len(self.thresholds):
            raise ValueError(
                f"method.thresholds={self.thresholds}: expected values in (0, 1), each once"
            )
        own = (self.params, self.loss, self.learn, self.schedule, self.sparsity != "fixed")
        if self.mapping == SIGMOID and any(own):
            raise ValueError(
                "method.mapping=sigmoid: has no params, loss, learn, schedule or predicted "
                "sparsity; leave them out"
            )

    def head(self, hidden: int, labels: int) -> Head:
        """The output layer; raises as `Mapping` and `MultiLabelHead` do."""
        if self.mapping == SIGMOID:
            return SigmoidHead(hidden, labels)
        try:
            mapping = Mapping(self.mapping, learn=self.learn, **self._params)
            return MultiLabelHead(hidden, labels, mapping, sparsity=self.sparsity, loss=self.loss)
        except (ValueError, TypeError) as error:
            raise type(error)(f"method: {error}") from None

    def sparsity_schedule(self) -> SparsitySchedule | None:
        """The schedule, its ends checked against the range of the parameter.

        Raises:
            ValueError, TypeError: what is wrong with the mapping or the schedule.
        """
        if self.schedule is None:
            return None
        return self.schedule.of(Mapping(self.mapping, **self._params), self.learn, "method")

    @property
    def _params(self) -> dict[str, Any]:
        return dict(self.params)
