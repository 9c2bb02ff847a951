"""What each loss is, what is reported of it, and which class it predicts."""

import math

import pytest
import torch

from experiments.images.config import LossConfig
from experiments.images.criteria import Criterion, check_start, make_criterion

Z = torch.tensor([[1.0, 0.2, -1.5, 0.7]], dtype=torch.float64)
TARGET = torch.tensor([2])
DENSE = ("softmax", "softmax-abs", "spherical-softmax", "taylor-softmax", "sigsoftmax")


def made(name: str, **params: float | str) -> Criterion:
    return make_criterion(LossConfig(name, params))


@pytest.mark.parametrize(
    ("name", "p"),
    [
        ("softmax", 0.036125),
        ("softmax-abs", 0.429481),
        ("spherical-softmax", 0.588153),
        ("taylor-softmax", 0.099364),
    ],
)
def test_a_mapping_without_zeros_is_trained_by_its_likelihood(name: str, p: float) -> None:
    criterion = made(name)
    assert criterion.measure == "negll"
    assert criterion.loss(Z, TARGET).tolist() == pytest.approx([-math.log(p)], abs=2e-5)
    assert torch.equal(criterion.loss(Z, TARGET), criterion.reported(Z, TARGET))


def test_squared_error_is_reported_as_the_mean_over_classes() -> None:
    criterion = made("mse")
    # (1 + .04 + 2.25 + .49) + 2 * 1.5 + 1 = 7.78
    assert criterion.loss(Z, TARGET).item() == pytest.approx(3.89)
    assert criterion.reported(Z, TARGET).item() == pytest.approx(7.78 / 4)
    assert criterion.measure == "mse"
    assert criterion.log_p(Z) is None


def test_bouchard_bounds_the_softmax_whose_likelihood_is_measured() -> None:
    shared, per_class = made("bouchard"), made("bouchard", xi="per_class")
    assert shared.loss(Z, TARGET).item() == pytest.approx(2.7583199 + 1.5)
    assert per_class.loss(Z, TARGET).item() == pytest.approx(2.6328423 + 1.5)
    log_p = shared.log_p(Z)
    assert log_p is not None
    assert log_p[0, 2].item() == pytest.approx(-1.5 - 1.8207627)
    fixed = made("bouchard", xi=1.0, alpha=0.0)
    assert fixed.loss(Z, TARGET).item() > shared.loss(Z, TARGET).item()


def test_a_mapping_with_zeros_has_its_own_loss() -> None:
    criterion = made("sparsemax")
    assert criterion.measure == "sparsemax loss"
    assert criterion.loss(Z, torch.tensor([1])).item() == pytest.approx(0.9225)
    with pytest.raises(ValueError, match=r"loss\.name=normalized-relu: .*exact zeros"):
        made("normalized-relu")


def test_classes_are_predicted_by_p_not_by_the_score() -> None:
    # the score of class 2 is the lowest, its g the largest
    for name in ("softmax-abs", "spherical-softmax"):
        assert made(name).predictions(Z).tolist() == [2]
    for name in ("mse", "softmax", "taylor-softmax", "bouchard", "sparsemax"):
        assert made(name).predictions(Z).tolist() == [0]
    # Taylor's g is lowest at -1
    assert made("taylor-softmax").predictions(torch.tensor([[-5.0, 1.0, 0.0]])).tolist() == [0]


@pytest.mark.parametrize("name", ["spherical-softmax", "softmax-abs"])
def test_even_mappings_have_no_slope_at_zero(name: str) -> None:
    scores = torch.zeros(3, 10, requires_grad=True)
    made(name).loss(scores, torch.tensor([0, 4, 9])).sum().backward()
    assert scores.grad is not None
    assert not scores.grad.any()
    with pytest.raises(ValueError, match=r"network\.output_std=0: .* never start; expected"):
        check_start(made(name), 10, 0.0)
    check_start(made(name), 10, 0.01)


@pytest.mark.parametrize("name", ["mse", "softmax", "taylor-softmax", "bouchard", "sparsemax"])
def test_other_losses_start_from_zero(name: str) -> None:
    check_start(made(name), 10, 0.0)


def test_a_parameter_of_the_mapping_can_be_learned() -> None:
    criterion = make_criterion(LossConfig("sigsoftmax", {"bias": 0.5}, ["bias"]))
    criterion.loss(Z.float(), TARGET).sum().backward()
    (bias,) = criterion.parameters()
    assert bias.grad is not None
    assert bias.grad.item() != 0
