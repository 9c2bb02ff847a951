"""What is compared: outputs with their losses and thresholds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from pipeline.config import ScheduleConfig
from pipeline.types import SparsitySchedule

SIGMOID = "sigmoid"


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

    def sparsity_schedule(self) -> SparsitySchedule | None:
        """The schedule, its ends checked against the range of the parameter.

        Raises:
            ValueError, TypeError: what is wrong with the mapping or the schedule.
        """
        from sparse_attn import Mapping

        if self.schedule is None:
            return None
        parameters: dict[str, Any] = dict(self.params)
        return self.schedule.of(Mapping(self.mapping, **parameters), self.learn, "method")
