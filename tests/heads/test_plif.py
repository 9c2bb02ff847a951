"""The learned monotone functions as output layers: PLIF, and the network with one hidden layer."""

import math
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sparse_attn import Mapping
from sparse_attn.heads import LinearHead, MixtureHead
from sparse_attn.inspection import learned_function, slope_statistics
from sparse_attn.mappings import get_spec
from tests.heads.plain import (
    assert_same,
)

# Scores, slopes and the bound


@pytest.mark.parametrize(("knots", "spread"), [(1000, 0.02), (1000, 0.5), (10, 1.0)])
def test_plif_slopes_get_exact_gradients_in_float32(knots, spread):
    torch.manual_seed(0)
    z, raw = spread * torch.randn(64, 33_278), torch.zeros(knots, requires_grad=True)
    grad = z.softmax(-1)
    grad[torch.arange(64), torch.randint(33_278, (64,))] -= 1

    def gradient(dtype):
        f = get_spec("plif").log_g(z.to(dtype), raw.to(dtype), 20.0)
        return torch.autograd.grad(f, raw, grad.to(dtype))[0]

    expected = gradient(torch.float64)
    assert (gradient(torch.float32) - expected).norm() < 1e-3 * expected.norm() + 1e-6


# Size


def test_a_million_knots_in_float32_are_accurate():
    """Sums over 5e5 slopes of 1: f(x) = log p_0 - log p_1 = x to 1e-4 all the same."""
    head = LinearHead(1, 2, Mapping("plif", knots=1_000_000, bound=20.0), bias=False)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[1.0], [0.0]]))
        head.mapping.raw_slopes.fill_(math.log(math.e - 1))  # softplus of it is 1
    x = torch.linspace(-19, 19, 101)
    log_p = head.log_prob(x.unsqueeze(-1))
    assert_same(log_p[:, 0] - log_p[:, 1], x, rtol=0, atol=1e-4)
    head.nll(x.unsqueeze(-1), torch.zeros(101, dtype=torch.long), chunk=64).backward()
    assert head.mapping.raw_slopes.grad.isfinite().all()


# A bound that is too small


@pytest.mark.parametrize("kind", [LinearHead, MixtureHead])
@pytest.mark.parametrize("method", ["nll", "loss", "log_prob"])
def test_scores_outside_the_bound_warn_with_their_share(kind, method):
    """Half of all scores are 5, beyond T = 4."""
    head = kind(1, 4, Mapping("plif", knots=10, bound=4.0), bias=False)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[5.0], [1.0], [-5.0], [3.9]]))
        if kind is MixtureHead:  # tanh(10) = 1
            head.latent.weight.fill_(5.0)
            head.latent.bias.fill_(5.0)
    arguments = () if method == "log_prob" else (torch.arange(6) % 4,)
    message = r"plif: 50% of the scores lie outside \[-4, 4\].*increase its bound"
    with pytest.warns(UserWarning, match=message) as caught:
        getattr(head, method)(torch.ones(6, 1), *arguments).sum().backward()
    assert len(caught) == 1


def test_the_share_outside_is_that_of_the_whole_call():
    """Up to one in a hundred does not warn, in no chunk."""
    head = LinearHead(1, 10, Mapping("plif", knots=10, bound=5.0), bias=False)
    with torch.no_grad():
        head.weight.fill_(1.0)
    hidden = torch.zeros(1000, 1)
    hidden[0] = 100.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        head.nll(hidden, torch.zeros(1000, dtype=torch.long), chunk=2)
        head.mapping.set_value("bound", 1e3)
        head.watch.calls = 0
        head.nll(torch.full((10, 1), 100.0), torch.zeros(10, dtype=torch.long))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch, to itself
def test_a_compiled_model_is_not_compiled_anew_at_every_step():
    head = LinearHead(4, 7, Mapping("plif", knots=10))
    body = nn.Linear(4, 4)
    frames = []

    def backend(graph, inputs):
        frames.append(graph)
        return graph

    @torch.compile(backend=backend)
    def loss(x, targets):
        return head.nll(body(x), targets)

    targets = torch.tensor([0, 1, 2])
    loss(torch.randn(3, 4), targets).backward()
    first = len(frames)
    for _ in range(4):
        loss(torch.randn(3, 4), targets).backward()
    assert len(frames) == first


# What is reported


def test_slope_statistics():
    slopes = torch.tensor([0.5, 1.0, 2.0, 4.5])
    mapping = Mapping("plif", knots=4)
    with torch.no_grad():
        mapping.raw_slopes.copy_(torch.log(torch.expm1(slopes)))
    found = slope_statistics(mapping)
    assert set(found) == {"mean", "std", "min", "max"}
    assert found["mean"] == pytest.approx(2.0, rel=1e-5)
    assert (found["min"], found["max"]) == pytest.approx((0.5, 4.5), rel=1e-5)
    # over the slopes there are: sqrt((2.25 + 1 + 0 + 6.25) / 4)
    assert found["std"] == pytest.approx(math.sqrt(9.5 / 4), rel=1e-5)
    assert all(type(value) is float for value in found.values())
    with pytest.raises(ValueError, match="monotone"):
        slope_statistics(Mapping("monotone"))


def test_the_learned_function_has_the_slopes_of_the_mapping():
    """Four bins on [-2, 2] and five points: those at the knots."""
    mapping = Mapping("plif", knots=4, bound=2.0)
    slopes = torch.tensor([0.5, 2.0, 1.0, 3.0])
    mapping.raw_slopes.data = torch.log(torch.expm1(slopes))
    z, f = zip(*learned_function(mapping, 5), strict=True)
    assert z == (-2.0, -1.0, 0.0, 1.0, 2.0)
    assert f == pytest.approx((-2.5, -2.0, 0.0, 1.0, 4.0), abs=1e-6)


def test_the_learned_function_of_a_monotone_network():
    mapping = Mapping("monotone", units=2, bound=3.0)
    mapping.offset.data = torch.tensor([-1.0, 0.5])
    gain, slope = (F.softplus(mapping.get_parameter(f"raw_{name}")) for name in ("gain", "slope"))
    for z, f in learned_function(mapping, 7):
        steps = torch.sigmoid(slope * z + mapping.offset) - torch.sigmoid(mapping.offset)
        assert f == pytest.approx((gain * steps).sum().item(), abs=1e-5)
    with pytest.raises(ValueError, match="expected plif or monotone"):
        learned_function(Mapping("softmax"))
