"""match_prior: at W h = 0 a head predicts words by their frequency."""

import functools

import pytest
import torch

from sparse_attn import Mapping, MappingSpec, register_mapping
from sparse_attn.heads import (
    LinearHead,
    match_prior,
)
from sparse_attn.mappings import registry
from sparse_attn.mappings.base import on_rows
from sparse_attn.mappings.pointwise import normalize
from tests.heads.plain import BY_NAME, CASES, HIDDEN, VOCAB, assert_same, linear_head, mixture_head

COUNTS = torch.tensor([100, 60, 60, 31, 20, 11, 7, 7, 2, 1, 1])
PRIOR = COUNTS.double() / COUNTS.sum()

pointwise = [case for case in CASES if case.name not in ("weighted-softmax", "monotone")]
cases = pytest.mark.parametrize("case", pointwise, ids=str)


def at_zero(head):
    """p where W h = 0, [V]."""
    return head.log_prob(torch.zeros(head.hidden, dtype=torch.float64)).exp()


@cases
@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
def test_predicts_the_prior(case, dtype, rtol):
    head = LinearHead(HIDDEN, VOCAB, case.mapping).to(dtype)
    match_prior(head, COUNTS)
    p = head.log_prob(torch.zeros(HIDDEN, dtype=dtype)).exp().double()
    assert_same(p, PRIOR, rtol=rtol, atol=0)


@cases
def test_words_learn_at_the_prior(case):
    """No word is left where its score has no gradient, as even mappings have at 0."""
    head = linear_head(case)
    match_prior(head, COUNTS)
    with torch.no_grad():
        head.weight.zero_()
    hidden = torch.ones(VOCAB, HIDDEN, dtype=torch.float64)
    (gradient,) = torch.autograd.grad(head.nll(hidden, torch.arange(VOCAB)), head.weight)
    assert (gradient.abs().amax(-1) > 1e-6).all()


def test_other_eps():
    """Also a learned one, and 0, where scale is free."""
    for mapping in (
        Mapping("spherical-softmax", eps=0.5),
        Mapping("spherical-softmax", eps=0.5, learn="eps"),
        Mapping("spherical-softmax", eps=0.0),
        Mapping("spherical-softmax", center=2.53),
        Mapping("spherical-softmax", center=-0.3, eps=0.5, learn="center"),
        Mapping("spherical-softmax", center=2.53, eps=0.0),
    ):
        head = LinearHead(HIDDEN, VOCAB, mapping).double()
        match_prior(head, COUNTS)
        assert_same(at_zero(head), PRIOR, rtol=1e-9, atol=0)


def test_mixture():
    """Where W h_k = 0 every component predicts map(b); the order of the words is theirs."""
    head, order = mixture_head(BY_NAME["sigsoftmax"]), torch.randperm(VOCAB)
    match_prior(head, COUNTS[order])
    with torch.no_grad():
        head.weight.zero_()
    assert_same(at_zero(head), PRIOR[order], rtol=1e-9, atol=0)


def test_words_that_never_occur():
    """As half an occurrence; those that do keep their ratios."""
    counts = torch.tensor([6.0, 0.0, 3.0, 0.0])
    for smoothing in (0.5, 0.01):
        head = LinearHead(HIDDEN, 4, "sigsoftmax").double()
        match_prior(head, counts, smoothing=smoothing)
        p = torch.tensor([6, smoothing, 3, smoothing], dtype=torch.float64)
        assert_same(at_zero(head), p / p.sum(), rtol=1e-9, atol=0)
    head = LinearHead(HIDDEN, 4, "sigsoftmax").double()
    match_prior(head, counts)
    assert at_zero(head)[1].item() == pytest.approx(0.05)
    head = LinearHead(HIDDEN, 4, "taylor-softmax").double()
    match_prior(head, torch.full((4,), 3))
    assert_same(at_zero(head), torch.full((4,), 0.25, dtype=torch.float64))


def test_monotone_network_within_its_reach():
    """It starts with a span that holds this prior; with one small unit it holds none."""
    head = LinearHead(HIDDEN, VOCAB, "monotone").double()
    match_prior(head, COUNTS)
    assert_same(at_zero(head), PRIOR, rtol=1e-6, atol=0)
    with torch.no_grad():
        head.mapping.raw_gain.fill_(-5.0)
    before = head.bias.detach().clone()
    with pytest.raises(ValueError, match=r"counts.*monotone"):
        match_prior(head, COUNTS)
    assert torch.equal(head.bias, before)


@pytest.fixture
def register(monkeypatch):
    """Registers p = g(z) / sum g(z) for one test."""
    monkeypatch.setattr(registry, "_SPECS", dict(registry._SPECS))

    def register(name, log_g):
        def mapping(scores, *, mask=None, dim=-1, log=False):
            return on_rows(normalize, scores, mask=mask, dim=dim, log_g=log_g, log=log)

        log_mapping = functools.partial(mapping, log=True)
        register_mapping(MappingSpec(name, mapping, log_mapping, log_g=log_g))

    return register


@pytest.mark.parametrize(
    ("name", "log_g"),
    [
        ("soft-sign-here", lambda z: torch.log1p(z.abs())),
        ("moved-here", lambda z: torch.log1p((z - 30).square())),
        ("square-here", lambda z: (z + 2).square().log()),
        ("silu-here", torch.nn.functional.silu),
        ("relu-here", lambda z: z.relu().log()),
    ],
)
def test_a_registered_mapping_that_rises_right_of_its_lowest_point(name, log_g, register):
    register(name, log_g)
    head = LinearHead(HIDDEN, VOCAB, name).double()
    match_prior(head, COUNTS)
    assert_same(at_zero(head), PRIOR, rtol=1e-9, atol=0)
    bias = head.bias.detach().requires_grad_()
    (slope,) = torch.autograd.grad(log_g(bias).sum(), bias)
    assert (slope > 1e-3).all()


@pytest.mark.parametrize(
    ("name", "log_g"),
    [
        ("falling-here", torch.neg),
        ("constant-here", torch.zeros_like),
        ("wave-here", torch.sin),
        ("bell-here", lambda z: -z.abs()),
        ("overflow-here", lambda z: z.cosh().log()),
    ],
)
def test_a_mapping_that_does_not_increase(name, log_g, register):
    register(name, log_g)
    head = LinearHead(HIDDEN, VOCAB, name)
    with pytest.raises(ValueError, match=f"mapping={name}: its g does not increase"):
        match_prior(head, COUNTS)
