"""Heads made from a config: every method takes a step, and the sigmoid control is BCE."""

import pytest
import torch
from torch.nn import functional as F

from experiments.multilabel.config import MethodConfig
from experiments.multilabel.models import SigmoidHead, make_head
from pipeline.config import ScheduleConfig
from tests.experiments.multilabel.methods_and_data import METHODS

HIDDEN, LABELS = 6, 4


@pytest.mark.parametrize("name", METHODS)
def test_a_step_lowers_the_loss_rows_without_labels_among_them(name: str) -> None:
    torch.manual_seed(0)
    head = make_head(MethodConfig(**METHODS[name]), HIDDEN, LABELS)
    hidden = torch.randn(5, HIDDEN)
    target = torch.tensor([[1, 0, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1], [0, 1, 0, 0], [0, 0, 1, 1.0]])
    optimizer = torch.optim.SGD(head.parameters(), 0.02)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = head.loss(hidden, target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert all(map(torch.isfinite, (p for q in head.parameters() for p in q.flatten())))
    assert losses[-1] < losses[0]
    decided = head.decide(head(hidden))
    assert decided.dtype == torch.bool
    assert decided.shape == target.shape


def test_sigmoid_is_binary_cross_entropy_and_its_threshold_one_of_p() -> None:
    torch.manual_seed(0)
    head = make_head(MethodConfig("sigmoid"), HIDDEN, LABELS)
    assert isinstance(head, SigmoidHead)
    hidden = torch.randn(7, HIDDEN)
    target = torch.randint(2, (7, LABELS))
    p = torch.sigmoid(hidden @ head.weight.T + head.bias)
    torch.testing.assert_close(head(hidden).exp(), p)
    torch.testing.assert_close(head.loss(hidden, target), F.binary_cross_entropy(p, target.float()))
    for threshold in (0.5, 0.3):
        head.threshold = threshold
        assert torch.equal(head.decide(head(hidden)), p > threshold)


def test_thresholds_of_mappings_with_zeros_are_0() -> None:
    assert make_head(MethodConfig("sparsemax"), HIDDEN, LABELS).threshold == 0
    assert make_head(MethodConfig(**METHODS["t-softmax"]), HIDDEN, LABELS).threshold == 0


@pytest.mark.parametrize(
    "own",
    [
        {"params": {"r": 0.5}},
        {"loss": "nll"},
        {"sparsity": "predicted"},
        {"learn": ["t"]},
        {"schedule": ScheduleConfig("t", 1.0)},
    ],
)
def test_sigmoid_has_nothing_of_a_mapping(own: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"method\.mapping=sigmoid: has no params"):
        MethodConfig("sigmoid", **own)  # type: ignore[arg-type]


@pytest.mark.parametrize("thresholds", [[0.0], [1.0], [0.2, 0.2], [-0.1]])
def test_thresholds_out_of_range(thresholds: list[float]) -> None:
    with pytest.raises(ValueError, match=r"method\.thresholds"):
        MethodConfig(thresholds=thresholds)


def test_a_schedule_ends_at_a_parameter_of_the_method() -> None:
    method = MethodConfig("r-softmax", {"r": 0.5}, schedule=ScheduleConfig("r", 0.1))
    schedule = method.sparsity_schedule()
    assert schedule is not None
    assert (schedule.value(0), schedule.value(1)) == (0.1, 0.5)
    with pytest.raises(
        ValueError, match=r"method\.schedule\.parameter='t': expected a parameter of"
    ):
        MethodConfig("r-softmax", schedule=ScheduleConfig("t", 0.1)).sparsity_schedule()
    learned = MethodConfig("t-softmax", learn=["t"], schedule=ScheduleConfig("t", 0.1))
    with pytest.raises(ValueError, match=r"method\.schedule\.parameter='t': it is learned"):
        learned.sparsity_schedule()
    with pytest.raises(ValueError, match=r"method\.schedule\.initial: r=2"):
        MethodConfig("r-softmax", {"r": 0.5}, schedule=ScheduleConfig("r", 2.0)).sparsity_schedule()


def test_what_a_head_refuses() -> None:
    with pytest.raises(ValueError, match="softmaxx"):
        make_head(MethodConfig("softmaxx"), HIDDEN, LABELS)
    with pytest.raises(ValueError, match="predicted"):
        make_head(MethodConfig("sparsemax", sparsity="predicted"), HIDDEN, LABELS)
    with pytest.raises(ValueError, match="nll"):
        make_head(MethodConfig("sparsemax", loss="nll"), HIDDEN, LABELS)
