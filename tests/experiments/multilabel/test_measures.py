"""F1 against scikit-learn, and thresholds."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from experiments.multilabel.measures import f1_scores, micro_f1, micro_f1_by_threshold


def random_labels(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    chance = torch.rand((), generator=generator)
    rows = torch.rand(2, 20, 5, generator=generator) < chance
    return rows[0], rows[1]


@given(st.integers(0, 1000))
def test_micro_f1_is_scikit_learns(seed: int) -> None:
    decided, target = random_labels(seed)
    assert micro_f1(decided, target.float()) == pytest.approx(f1_scores(decided, target)["micro"])


def test_f1_by_hand() -> None:
    decided = torch.tensor([[1, 1, 0], [0, 1, 0], [0, 0, 0]]).bool()
    target = torch.tensor([[1.0, 0, 0], [0, 1, 1], [0, 0, 0]])
    # labels: 1, 2/3, 0; rows: 2/3, 2/3 and one without labels
    assert f1_scores(decided, target) == pytest.approx(
        {"micro": 4 / 6, "macro": 5 / 9, "samples": 4 / 9}
    )


def test_every_threshold_is_strict_and_0_is_the_support() -> None:
    log_p = torch.tensor([[0.5, 0.25, 0.25, 0.0]]).log()
    target = torch.tensor([[1.0, 1, 1, 0]])
    found = micro_f1_by_threshold(log_p, target, [0.0, 0.25, 0.5])
    assert found == {0.0: 1.0, 0.25: pytest.approx(0.5), 0.5: 0.0}


def test_a_label_less_likely_than_float32_reaches_is_in_the_support() -> None:
    log_p = torch.tensor([[0.0, -200.0, -math.inf]])
    found = micro_f1_by_threshold(log_p, torch.tensor([[1.0, 1, 0]]), [0.0])
    assert found == {0.0: 1.0}
