"""Every loss beside its formula in plain loops (oracle.py)."""

import math

import numpy
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sparse_attn import losses
from tests.losses import oracle
from tests.losses.cases import (
    BOTH,
    CASES,
    EPS,
    EXTREME,
    Z,
    assert_close,
    batches,
    every_case,
)

# The oracle


@pytest.mark.parametrize(
    ("ours", "expected"),
    [
        (oracle.sparsemax_loss(Z, [0, 1, 0, 0]), 0.9225),
        (oracle.sparsemax_loss(Z, BOTH), 0.0225),
        (oracle.entmax_loss(Z, [0, 1, 0, 0], 2.0), 0.9225),
        (oracle.sparsegen_hinge(Z, BOTH), 0.3),
        (oracle.sparsehourglass_hinge(Z, BOTH, 0.5), 0.3),
        (oracle.r_softmax_loss(Z, BOTH, 0.5), 0.1230984),
        (oracle.bouchard_least(Z, per_class=False), 2.7583199),
        (oracle.bouchard_least(Z, per_class=True), 2.6328423),
        (oracle.bouchard_least_per_class(Z), 2.6328423),
        (oracle.bouchard(Z, 1.2883502, 1.5320497), 2.7583199),
        (oracle.nll(Z, [0, 1, 0, 0], "sigsoftmax"), -math.log(0.166022)),
        (oracle.nll(Z, [0, 1, 0, 0], "taylor-softmax"), -math.log(0.193959)),
        (oracle.nll(Z, [0, 0, 0, 1], "softmax-abs"), -math.log(0.192978)),
        (oracle.nll(Z, [1, 0, 0, 0], "spherical-softmax", eps=EPS), -math.log(0.264252)),
    ],
)
def test_the_oracle_gives_the_known_values(ours, expected):
    assert ours == pytest.approx(expected, abs=4e-6)


# Values


@every_case
@given(data=st.data())
def test_values(case, data):
    batch = data.draw(batches(case))
    ours = case(batch.scores, batch.target, mask=batch.mask, reduction="none")
    assert ours.shape == batch.scores.shape[:-1]
    assert_close(ours, case.exact(batch.scores, batch.weights, batch.mask))


@every_case
@given(data=st.data())
@settings(max_examples=10)
def test_dtypes_are_widened_to_float32(case, data):
    batch = data.draw(batches(case))
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        scores = batch.scores.to(dtype)
        ours = case(scores, batch.target, mask=batch.mask, reduction="none")
        assert ours.dtype == torch.float32
        exact = case.exact(scores.double(), batch.weights, batch.mask)
        size = (1 + scores.double().abs().max().item()) ** 2
        assert_close(ours, exact, rtol=1e-5, atol=2e-6 * size)


@every_case
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=8)
def test_gradients_are_the_slopes_of_the_formula(case, seed):
    rng = numpy.random.default_rng(seed)
    z = rng.normal(0, 1.5, 5)
    eta = (rng.random(5) < 0.5).astype(float)
    eta[0] = 1
    if not case.binary:
        eta = eta * (0.2 + rng.random(5))
    expected, kink = oracle.slope(lambda x: case.row(x, eta, **case.parameters), z)
    assume(kink < 1e-4)
    scores = torch.tensor(z, requires_grad=True)
    case(scores, torch.tensor(eta)).backward()
    assert_close(scores.grad, expected, rtol=0, atol=2e-7)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.slopes])
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=8)
def test_gradients_of_parameters_are_slopes_too(name, seed):
    case, rng = CASES[name], numpy.random.default_rng(seed)
    z, eta = rng.normal(0, 1.5, 6), numpy.array([1.0, 0, 1, 0, 0, 0])
    (parameter,) = case.slopes

    def row(x):
        return case.row(z, eta, **{**case.parameters, parameter: x.item()})

    value = torch.tensor(case.parameters[parameter], dtype=torch.float64, requires_grad=True)
    expected, kink = oracle.slope(row, [value.item()])
    assume(kink < 1e-4)
    arguments = {**case.parameters, parameter: value}
    case.loss(torch.tensor(z), torch.tensor(eta), **arguments).backward()
    assert_close(value.grad, expected[0], rtol=0, atol=2e-7)


@every_case
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_extreme_scores(case, dtype):
    scores = torch.tensor(EXTREME, dtype=dtype).unsqueeze(1).expand(-1, 3, -1).clone()
    y = torch.tensor([BOTH, [0.0, 1.0, 0.0, 0.0], [1.0] * 4]).expand(len(EXTREME), -1, -1)
    scores.requires_grad_()
    rows = case(scores, y, reduction="none")
    rows.sum().backward()
    assert_close(rows, case.exact(scores.detach().double(), y), rtol=1e-5, atol=1e-5)
    assert scores.grad.isfinite().all()


# Rows with no label, every label, one class, no row


@every_case
def test_one_class(case):
    """p = 1 = eta, whatever the score; only the squared error looks at it."""
    scores = torch.tensor([[3.0], [-7.0]], dtype=torch.float64, requires_grad=True)
    rows = case(scores, torch.ones(2, 1), reduction="none")
    rows.sum().backward()
    expected = [2.0, 32.0] if case.loss is losses.squared_error else [0.0, 0.0]
    assert_close(rows, expected)
    assert_close(scores.grad, scores.detach() - 1 if any(expected) else torch.zeros(2, 1))


@every_case
def test_meta_device(case):
    scores = torch.zeros(3, 4, device="meta", requires_grad=True)
    case(scores, torch.zeros(3, 4, device="meta")).backward()
    assert scores.grad.shape == (3, 4)
    assert case(scores, torch.zeros(3, device="meta").long(), reduction="none").shape == (3,)
