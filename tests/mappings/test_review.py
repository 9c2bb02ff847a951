"""Rows and parameters at the edge that once went wrong."""

import math

import pytest
import torch

from sparse_attn import SparsitySchedule
from sparse_attn import functional as maps
from sparse_attn.mappings import get_spec


def test_sparsemax_of_a_plateau_in_float32() -> None:
    scores = torch.full((2048,), -0.999)
    scores[0] = 0.0
    p, exact = maps.sparsemax(scores), maps.sparsemax(scores.double())
    # tau is a sum of 2048 differences, each right to a float32 ulp of 1
    torch.testing.assert_close(p.double(), exact, rtol=0, atol=6e-8)
    assert abs(p.double().sum().item() - 1) < 2048 * 6e-8


@pytest.mark.parametrize(
    ("function", "value"),
    [
        (maps.entmax, 3.0),
        (maps.entmax, 0.0),
        (maps.sparsegen, 2.0),
        (maps.t_softmax, -1.0),
        (maps.r_softmax, 1.5),
        (maps.r_softmax, -0.5),
        (maps.r_softmax, math.nan),
        (maps.sparsecone, -1.0),
        (maps.spherical_softmax, -1.0),
    ],
)
def test_tensor_parameter_out_of_range_spoils_its_rows_alone(function, value) -> None:
    scores = torch.randn(2, 5)
    good = 1.0 if function is maps.entmax else 0.5
    p = function(scores, torch.tensor([value, good]))
    assert p[0].isnan().all()
    torch.testing.assert_close(p[1], function(scores[1], good))


@pytest.mark.parametrize("end", ["initial", "final"])
def test_schedule_from_infinity_is_refused(end: str) -> None:
    with pytest.raises(ValueError, match=f"{end}=inf: expected a finite number"):
        SparsitySchedule("t", **{"initial": 1.0, "final": 2.0, end: math.inf})


@pytest.mark.parametrize("name", ["sigsoftmax", "taylor-softmax", "spherical-softmax", "plif"])
def test_log_g_of_the_spec_gives_the_mapping(name: str) -> None:
    spec, scores = get_spec(name), torch.randn(3, 7)
    if name == "plif":
        arguments = (torch.randn(12), 6.0)
    else:
        arguments = tuple(parameter.default for parameter in spec.parameters)
    p = spec.log_g(scores, *arguments).softmax(-1)
    torch.testing.assert_close(p, spec.function(scores, *arguments))


MOST = torch.finfo(torch.float32).max


@pytest.mark.parametrize(
    ("function", "arguments", "row", "expected"),
    [
        (maps.r_softmax, (0.15,), [MOST, -MOST, -MOST], [1, 0, 0]),
        (maps.t_softmax, (math.inf,), [MOST, -MOST, MOST], [0.5, 0, 0.5]),
        (maps.sparsehourglass, (0.0,), [MOST, MOST, 0], [0.5, 0.5, 0]),
        (maps.sparsecone, (0.0,), [MOST, MOST, 0], [0.5, 0.5, 0]),
        (maps.sparsehourglass, (1e300,), [0.25, 0, 0.75], [0.25, 0, 0.75]),
        (maps.sparsecone, (MOST,), [0.25, 0, 0.75], [0.25, 0, 0.75]),
        (maps.sigsoftmax, (), [-MOST, -MOST], [0.5, 0.5]),
        (maps.temperature_softmax, (1e-3,), [MOST, 0, MOST], [0.5, 0, 0.5]),
        (maps.plif, (torch.tensor([3.0, 3.0]),), [MOST, 0, MOST], [0.5, 0, 0.5]),
        (maps.spherical_softmax, (1e300,), [0, 1, 2], [1 / 3, 1 / 3, 1 / 3]),
        (maps.weighted_softmax, (torch.tensor([MOST, MOST]),), [0, 0], [0.5, 0.5]),
        (maps.weighted_softmax, (1e300,), [0, 0], [0.5, 0.5]),
        (maps.weighted_softmax, (1e-300,), [0, 0], [0.5, 0.5]),
    ],
)
def test_what_overflows_float32_on_the_way_is_no_nan(function, arguments, row, expected) -> None:
    p = function(torch.tensor(row, dtype=torch.float32), *arguments)
    torch.testing.assert_close(p, torch.tensor(expected, dtype=torch.float32))


def test_a_constant_weight_is_not_rounded_to_half_precision() -> None:
    scores = torch.randn(5).half()
    assert torch.equal(maps.weighted_softmax(scores, 1e-8), maps.softmax(scores))


def test_the_gradient_of_eps_at_0() -> None:
    """dp_i/d eps = p_i (1/z_i^2 - sum_j p_j / z_j^2), also at the end of its range."""
    eps = torch.zeros((), dtype=torch.float64, requires_grad=True)
    z = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    p = maps.spherical_softmax(z, eps)
    (gradient,) = torch.autograd.grad(p[0], eps)
    expected = p[0] * (1 - (p / z.square()).sum())
    torch.testing.assert_close(gradient, expected.detach())


def test_a_subnormal_t_leaves_other_entries_without_gradient() -> None:
    scores = torch.tensor([2.0, 2.0, 1.0], requires_grad=True)
    log_p = maps.log_t_softmax(scores, 1.4e-45)
    (gradient,) = torch.autograd.grad(log_p[0], scores)
    assert gradient.isfinite().all()


def test_an_overflowing_temperature_still_learns() -> None:
    temperature = torch.tensor(1e-3, requires_grad=True)
    scores = torch.tensor([[MOST, 0.0], [1e-3, 0.0]])
    p = maps.temperature_softmax(scores, temperature)
    (gradient,) = torch.autograd.grad(p[:, 0].sum(), temperature)
    assert gradient.isfinite()
    assert gradient != 0


@pytest.mark.parametrize("shape", [(0, 3), (2, 0)])
def test_parameters_stay_in_the_graph_of_an_empty_batch(shape) -> None:
    t = torch.tensor(1.0, requires_grad=True)
    maps.t_softmax(torch.zeros(shape), t).sum().backward()
    assert t.grad == 0


def test_subnormal_scores_of_spherical_softmax():
    scores = torch.tensor([1e-41, 5e-42, 0.0], requires_grad=True)
    p = maps.spherical_softmax(scores, 0.0)
    # twelve bits of 5e-42 are left
    torch.testing.assert_close(p, torch.tensor([0.8, 0.2, 0.0]), rtol=1e-3, atol=0)
    single = torch.tensor([1e-45, 0.0, 0.0], requires_grad=True)
    (gradient,) = torch.autograd.grad(maps.spherical_softmax(single, 0.0)[0], single)
    assert gradient.isfinite().all()


def test_rows_of_no_position_are_checked_too():
    with pytest.raises(ValueError, match=r"r=2\.0"):
        maps.r_softmax(torch.zeros(2, 0), 2.0)
    with pytest.raises(ValueError, match="mask: shape"):
        maps.softmax(torch.zeros(2, 0), mask=torch.ones(9, 9, dtype=torch.bool))
