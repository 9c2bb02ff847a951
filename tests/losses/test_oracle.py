"""Every loss beside its formula in plain loops (oracle.py)."""

import math

import entmax
import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparse_attn import Mapping, losses
from sparse_attn.mappings import get_spec, mapping_names
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
    every_slope,
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
        (oracle.bouchard_least_shared(Z), 2.7583199),
        (oracle.bouchard_least_per_class(Z), 2.6328423),
        (oracle.bouchard(Z, 1.2883502, 1.5320497), 2.7583199),
        (oracle.bouchard_loss(Z, [0, 1, 0, 0], 1.5320497), 2.7583199 - 0.2),
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
    counted = torch.ones_like(batch.scores) if batch.mask is None else batch.mask
    for reduction, expected in (("sum", ours.sum()), ("mean", ours.sum() / counted.any(-1).sum())):
        assert_close(
            case(batch.scores, batch.target, mask=batch.mask, reduction=reduction), expected
        )


@every_slope
def test_a_parameter_of_its_own_for_every_row(name, parameter):
    case, rows = CASES[name], (2, 3)
    z, y = torch.randn(*rows, 5, dtype=torch.float64), torch.rand(*rows, 5) < 0.5
    y[..., 2] |= ~y.any(-1)
    values = case.parameters[parameter] + 0.09 * torch.rand(rows, dtype=torch.float64)
    given_ones = values.unsqueeze(-1) if parameter == "xi" else values
    arguments = {**case.parameters, parameter: given_ones}
    ours = case.loss(z, y, **arguments, reduction="none")
    for i in numpy.ndindex(rows):
        one = {**case.parameters, parameter: values[i].item()}
        assert_close(ours[i], case.row(z[i].numpy(), y[i].numpy().astype(float), **one))


DISTRIBUTIONS = [
    spec.name for spec in map(get_spec, mapping_names()) if not spec.zeros and spec.mass == "one"
]


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_nll_is_minus_the_log_of_the_mapping(name):
    """-log p_c for a class, the mean of them for equal labels; a name stands for its defaults."""
    mapping, z = Mapping(name), torch.randn(2, 5, dtype=torch.float64)
    labels = torch.tensor([[1, 0, 0, 1, 0], [0, 1, 0, 0, 0]])
    log_p = mapping.log(z).detach()
    for given_mapping in (mapping,) if mapping.spec.weights else (mapping, name):
        found = losses.mapping_nll(z, labels, given_mapping, reduction="none")
        assert_close(found, [-(log_p[0, 0] + log_p[0, 3]) / 2, -log_p[1, 1]], 0, 1e-12)
        classes = losses.mapping_nll(z, torch.tensor([4, 1]), given_mapping, reduction="none")
        assert_close(classes, [-log_p[0, 4], -log_p[1, 1]], 0, 1e-12)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (losses.sparsemax_loss, entmax.sparsemax_loss),
        (losses.entmax_loss, entmax.entmax15_loss),
    ],
)
def test_agrees_with_the_entmax_package(ours, theirs):
    z, target = 2 * torch.randn(20, 7, dtype=torch.float64), torch.randint(7, (20,))
    assert_close(ours(z, target, reduction="none"), theirs(z, target), 0, 1e-12)


@given(seed=st.integers(0, 2**32 - 1), rows=st.sampled_from([(), (3,), (2, 2)]))
def test_label_count_loss(seed, rows):
    rng = numpy.random.default_rng(seed)
    logits, y = rng.normal(size=(*rows, 6)), rng.random((*rows, 5)) < rng.random()
    ours = losses.label_count_loss(torch.tensor(logits), torch.tensor(y), reduction="none")
    assert ours.shape == rows
    for i in numpy.ndindex(rows):
        assert_close(ours[i], oracle.label_count_loss(logits[i], y[i]))
    half, floats = torch.tensor(logits).half(), torch.tensor(y * 1.0)
    for reduction, expected in (("sum", ours.sum()), ("mean", ours.mean())):
        loss = losses.label_count_loss(torch.tensor(logits), floats, reduction=reduction)
        assert_close(loss, expected)
    assert losses.label_count_loss(half, floats).dtype == torch.float32
    assert losses.label_count_loss(torch.zeros(0, 6), torch.zeros(0, 5)).isnan()


# Precision


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
    """p = 1 = eta, whatever the score; squared error and bounds of a fixed xi look at it."""
    scores = torch.tensor([[3.0], [-7.0]], dtype=torch.float64, requires_grad=True)
    rows = case(scores, torch.ones(2, 1), reduction="none")
    rows.sum().backward()
    if case.loss is losses.squared_error:
        assert_close(rows, [2.0, 32.0])
        assert_close(scores.grad, scores.detach() - 1)
    elif isinstance(case.parameters.get("xi"), float):
        assert_close(rows, case.exact(scores.detach(), torch.ones(2, 1)))
    else:
        assert_close(rows, [0.0, 0.0])
        assert_close(scores.grad, torch.zeros(2, 1))


@every_case
def test_meta_device(case):
    scores = torch.zeros(3, 4, device="meta", requires_grad=True)
    case(scores, torch.zeros(3, 4, device="meta")).backward()
    assert scores.grad.shape == (3, 4)
    assert case(scores, torch.zeros(3, device="meta").long(), reduction="none").shape == (3,)
    counts = torch.zeros(3, 3, device="meta")
    assert losses.label_count_loss(scores, counts, reduction="none").shape == (3,)
