"""The factored head refuses what is wrong, and goes on as before."""

import math

import pytest
import torch

from sparse_attn.heads import FactoredSphericalHead
from tests.heads.small_factored import (
    HIDDEN,
    OBJECTIVES,
    VOCAB,
    assert_untouched,
    batch,
    make,
    state,
)


@pytest.mark.parametrize("wrong", [-1, VOCAB, 10**12])
def test_target_outside_the_vocabulary(wrong):
    head = make()
    with pytest.raises(ValueError, match=f"targets: {wrong} is outside the vocabulary"):
        head(torch.randn(2, HIDDEN), torch.tensor([0, wrong]))


@pytest.mark.parametrize(
    ("hidden", "targets", "error", "message"),
    [
        (torch.zeros(2, HIDDEN + 1), torch.zeros(2).long(), ValueError, "hidden: expected shape"),
        (torch.zeros(2, HIDDEN), torch.zeros(3).long(), ValueError, "targets: expected shape"),
        (torch.zeros(2, HIDDEN), torch.zeros(2), TypeError, "targets: expected whole numbers"),
    ],
)
def test_wrong_shapes_and_types(hidden, targets, error, message):
    with pytest.raises(error, match=message):
        make()(hidden, targets)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("rows", [3, 9])
def test_hidden_that_is_not_finite_is_refused_and_training_goes_on(objective, poison, rows):
    head, (hidden, targets) = make(objective), batch(rows)
    before = state(head)
    spoiled = hidden.clone()
    spoiled[1, 2] = poison
    head(spoiled, targets).backward()
    with pytest.raises(ValueError, match=r"hidden: expected finite values.*weights are as before"):
        head.step(0.1)
    assert_untouched(head, before)
    head(hidden, targets).backward()
    head.step(0.1)
    assert head.W.isfinite().all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lr": 0.0}, "lr=0.0"),
        ({"lr": -0.1}, "lr=-0.1"),
        ({"lr": math.nan}, "lr=nan"),
        ({"lr": math.inf}, "lr=inf"),
        ({"lr": 0.1, "max_norm": 0.0}, "max_norm=0.0"),
        ({"lr": 0.1, "weight_decay": -1.0}, "weight_decay=-1.0"),
        ({"lr": 0.1, "weight_decay": 10.0}, "below 1/lr = 10"),
    ],
)
def test_arguments_of_step_out_of_range(arguments, message):
    head = make()
    head(*batch()).backward()
    before = state(head)
    with pytest.raises(ValueError, match=message):
        head.step(**arguments)
    assert_untouched(head, before)
    head.step(0.1)  # the gradient is still there


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eps": 0.0}, "eps=0.0: expected a finite number above 0"),
        ({"eps": -1.0}, "eps=-1.0"),
        ({"eps": math.nan}, "eps=nan"),
        (
            {"objective": "softmax"},
            "objective='softmax' is unknown; expected one of spher",
        ),
        ({"vocab": 0}, "vocab=0: expected at least 1"),
        ({"hidden": 0}, "hidden=0: expected at least 1"),
    ],
)
def test_arguments_of_the_head_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        FactoredSphericalHead(**{"hidden": HIDDEN, "vocab": VOCAB, **options})
