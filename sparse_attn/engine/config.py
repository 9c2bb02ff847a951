"""Parts of configs that several pipelines share: checks of fields, and a schedule."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from sparse_attn.engine.types import Mapping, SparsitySchedule

LONGEST_LABEL = 100


def check_fields(
    config: Any, section: str = "", *, counts: Sequence[str] = (), **limits: tuple[bool, str]
) -> None:
    """Raise ValueError for the first field whose condition does not hold.

    Args:
        config: the dataclass.
        section: key of the dataclass in a file; empty for the outermost one.
        counts: fields that must be None or at least 1.
        **limits: for each other field, whether its value is valid, and the expected values.
    """
    values = {name: getattr(config, name) for name in counts}
    whole = {name: (n is None or n > 0, "at least 1") for name, n in values.items()}
    for name, (holds, expected) in {**whole, **limits}.items():
        if not holds:
            key = f"{section}.{name}" if section else name
            raise ValueError(f"{key}={getattr(config, name)!r}: expected {expected}")


def valid_seed(seed: int) -> tuple[bool, str]:
    """Return a limit for `check_fields`: whether every library accepts the seed."""
    return 0 <= seed < 2**32, "an integer in [0, 2^32)"


def check_rates(sweep: Any, **instead: str) -> None:
    """Raise ValueError for wrong `learning_rates` or `seeds` of a sweep, or for its `train`.

    Args:
        sweep: a config whose `learning_rates` replace `train.learning_rate`.
        **instead: passed to `check_left_alone`, for other fields of `train` that the sweep sets.
    """
    rates = sweep.learning_rates
    check_fields(
        sweep,
        learning_rates=(0 < len(rates) == len(set(rates)), "at least one, without duplicates"),
        counts=("seeds",),
    )
    for rate in rates:
        replace(sweep.train, learning_rate=rate)  # __post_init__ checks the rate
    check_left_alone(sweep.train, "train", learning_rate="learning_rates", **instead)


def check_baseline(key: str, labels: Iterable[str], baseline: str) -> None:
    """Raise ValueError if the baseline is missing."""
    if baseline not in labels:
        raise ValueError(
            f"{key}: expected the baseline {baseline!r} among them, got "
            f"{', '.join(labels) or 'none'}"
        )


def check_labels(labels: Iterable[str]) -> None:
    """Raise ValueError for a label that cannot be part of a file name."""
    for label in labels:
        if not label.strip(".") or set(label) & set("/\\\0"):
            raise ValueError(f"the name {label!r} must fit into file names; use none with / or \\")
        # a file name has two labels and a hash; most systems allow 255 bytes
        if len(label.encode()) > LONGEST_LABEL:
            raise ValueError(
                f"the name {label!r} must fit into file names; use at most {LONGEST_LABEL} bytes"
            )


def check_left_alone(config: Any, section: str, **instead: str) -> None:
    """Raise ValueError if the config sets a field that the sweep sets itself.

    Args:
        config: a dataclass whose fields all have defaults.
        section: key of the config in a file.
        **instead: for each such field, the key to set instead.
    """
    plain = type(config)()
    for name, key in instead.items():
        if getattr(config, name) != getattr(plain, name):
            raise ValueError(
                f"{section}.{name}={getattr(config, name)}: a sweep sets it; give {key}"
            )


@dataclass(frozen=True)
class ScheduleConfig:
    """The schedule of a parameter of the mapping, up to its value in `params`.

    Args:
        parameter: name of the parameter, such as r, t or alpha.
        initial: its value at the start.
        shape: linear, cosine or cubic.
        begin: fraction of training at which it starts to move.
        end: fraction of training at which it reaches its value.
    """

    parameter: str
    initial: float
    shape: str = "linear"
    begin: float = 0.0
    end: float = 1.0

    def of(self, mapping: Mapping, learn: Sequence[str], section: str) -> SparsitySchedule:
        """Return the schedule, with both ends checked against the range of the parameter.

        Args:
            mapping: a mapping at its final values; its parameter is set to the initial value.
            learn: names of the parameters that are learned in training.
            section: key of the mapping's config in a file.

        Raises:
            ValueError, TypeError: invalid schedule.
        """
        if self.parameter in learn:
            raise ValueError(
                f"{section}.schedule.parameter={self.parameter!r}: it is learned; choose a "
                "schedule or learning, not both"
            )
        names = [p.name for p in mapping.spec.parameters]
        if self.parameter not in names:
            raise ValueError(
                f"{section}.schedule.parameter={self.parameter!r}: expected a parameter of "
                f"{mapping.name}, which has {', '.join(names) or 'none'}"
            )
        final = mapping.value(self.parameter)
        if not isinstance(final, float):
            raise ValueError(
                f"{section}.params.{self.parameter}: a schedule needs one number, got {final}"
            )
        try:
            mapping.set_value(self.parameter, self.initial)
        except ValueError as error:
            raise ValueError(f"{section}.schedule.initial: {error}") from None
        from sparse_attn.hf.schedules import SparsitySchedule as Schedule

        return Schedule(final=final, **asdict(self))


@dataclass(frozen=True)
class ReportConfig:
    """Select the sweep to report on.

    Args:
        results_dir: output_dir of a sweep, finished or not.
        output_dir: folder for report.md and its files; results_dir by default.
    """

    results_dir: str
    output_dir: str | None = None
