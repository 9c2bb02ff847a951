"""Sinks, `scaled-NAME` and `detached-r-softmax`; `mixed-NAME` has a file of its own."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck

from sparse_attn import Mapping, mapping_names
from sparse_attn import functional as maps
from sparse_attn.kernels import attention
from sparse_attn.losses import r_softmax_multilabel_loss
from sparse_attn.mappings import get_spec
from sparse_attn.mappings.registry import ALSO_CALLED

from .cases import (
    CHECK,
    assert_close,
    defaults,
    finite,
    forms,
    function_of,
    random_mask,
    random_scores,
)
from .test_properties import grid, row_strategy

LIBRARY = [n for n in mapping_names() if get_spec(n).function.__module__.startswith("sparse_attn")]
WITH_SINK = [
    name for name in LIBRARY if get_spec(name).mass != "free" and name != "weighted-softmax"
]


def with_sink(name, scores, sink, **options):
    spec = get_spec(name, sink=True)
    return spec.function(scores, **defaults(get_spec(name)), sink=sink, **options)


@pytest.mark.parametrize("name", WITH_SINK)
def test_a_sink_is_one_more_score(name):
    scores, mask = random_scores(4, 9), random_mask(4, 9)
    sink = random_scores(4)
    wide = torch.cat([scores, sink[:, None]], -1)
    seen = torch.cat([mask, torch.ones(4, 1, dtype=torch.bool)], -1)
    values = defaults(get_spec(name))
    expected = get_spec(name).function(wide, **values, mask=seen)[:, :-1]
    expected = expected.masked_fill(~mask, 0.0)
    assert_close(with_sink(name, scores, sink, mask=mask), expected)
    moved = with_sink(name, scores.mT.contiguous(), sink, mask=mask.mT, dim=0)
    assert_close(moved.mT, expected)


@given(row=row_strategy(), low=grid(-8, 8), high=grid(-8, 8))
def test_a_larger_sink_takes_more(row, low, high):
    low, high = sorted([low, high])
    for name in ("softmax", "sparsemax", "entmax"):
        less, more = (with_sink(name, row, sink) for sink in (low, high))
        assert more.sum() <= less.sum() + 1e-12
        assert (more <= less + 1e-12).all()


@given(row=row_strategy())
def test_softmax_off_by_one(row):
    assert_close(with_sink("softmax", row, 0.0), row.exp() / (1 + row.exp().sum()))
    assert_close(with_sink("softmax", row, -1e9), maps.softmax(row))


def test_a_row_without_a_key_stays_zero():
    leaf = torch.ones(3, requires_grad=True)
    sink = torch.tensor(0.5, requires_grad=True)
    p = with_sink("softmax", leaf, sink, mask=torch.zeros(3, dtype=torch.bool))
    p.sum().backward()
    assert (p == 0).all()
    assert (leaf.grad == 0).all()
    assert sink.grad == 0
    assert with_sink("softmax", torch.ones(2, 3), torch.tensor([math.nan, 0.0]))[0].isnan().all()


@forms
@pytest.mark.parametrize("name", ["softmax", "r-softmax", "entmax", "sparsehourglass", "softpick"])
def test_gradients_of_a_sink(name, log):
    scores, sink = random_scores(3, 6).requires_grad_(), random_scores(3).requires_grad_()
    mask, spec = random_mask(3, 6), get_spec(name, sink=True)

    def call(scores, sink):
        p = spec.function(scores, sink=sink, mask=mask, log=log)
        return p.masked_fill(p == -math.inf, 0.0)

    assert gradcheck(call, (scores, sink), **CHECK)


@pytest.mark.parametrize("name", [n for n in LIBRARY if n not in ("weighted-softmax",)])
def test_a_factor_of_one_changes_nothing(name):
    if name == "clipped-softmax":  # which has a gamma of its own
        return
    scores, values = random_scores(4, 9), defaults(get_spec(name))
    spec = get_spec(f"scaled-{name}")
    assert torch.equal(
        spec.function(scores, **values, delta=1.0, beta=0.0),
        get_spec(name).function(scores, **values),
    )
    assert spec.mass == get_spec(name).mass


@given(row=row_strategy(), n=st.integers(1, 40))
def test_the_factor_counts_valid_positions(row, n):
    mask = torch.arange(len(row)) < n
    factor = 0.5 + 0.25 * math.log(min(n, len(row))) ** 2
    p = get_spec("scaled-softmax").function(row, delta=0.5, beta=0.25, gamma=2.0, mask=mask)
    assert_close(p, maps.softmax(row * factor, mask=mask), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["scaled-softmax", "scaled-entmax"])
@pytest.mark.parametrize("n", [1, 2, 6])
def test_gradients_of_a_factor(name, n):
    scores = random_scores(3, n).requires_grad_()
    values = [torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (0.3, 0.6, 1.4)]
    spec = get_spec(name)

    def call(scores, delta, beta, gamma):
        return spec.function(scores, delta=delta, beta=beta, gamma=gamma)

    assert gradcheck(call, (scores, *values), **CHECK)


def test_a_factor_does_not_touch_the_sink():
    scores = random_scores(2, 5)
    p = Mapping("scaled-softmax", delta=2.0, beta=0.0, sink=0.3)(scores.float())
    assert_close(p, Mapping("softmax", sink=0.3)(2 * scores.float()), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "learned", "start"),
    [
        ("sigmoid", "bias", -2.0),
        ("clipped-softmax", "gamma", -0.1),
        ("clipped-softmax", "zeta", 1.25),
        ("scaled-softmax", "delta", 0.5),
        ("mixed-sparsemax", "mix", 0.5),
        ("t-softmax", "t", 2.0),
        ("softmax", "sink", 1.0),
    ],
)
@pytest.mark.parametrize("heads", [None, 2])
def test_a_description_makes_what_learns_again(name, learned, start, heads):
    """Also where the default is no number to learn from."""
    value = start if heads is None else [start] * heads
    made = Mapping(name, learn=learned, num_heads=heads, **{learned: value}).describe()
    again = Mapping(made["mapping"], learn=made["learn"], num_heads=heads, **made["params"])
    assert again.describe() == made
    assert again.get_parameter(f"raw_{learned}").numel() == (heads or 1)


def slope(result, leaf):
    """The gradient of a sum of the result with different weights."""
    weights = torch.linspace(-1, 2, result.numel()).view(result.shape).to(result)
    (gradient,) = torch.autograd.grad(finite(result), leaf, weights, retain_graph=True)
    return gradient


def differs(result, other, leaf):
    return (slope(result, leaf) - slope(other, leaf)).abs().max() > 1e-3


@forms
def test_detached_holds_the_threshold_constant(log):
    scores, mask = random_scores(4, 9).requires_grad_(), random_mask(4, 9)
    p, exact = (
        function_of(name, log)(scores, r=0.4, mask=mask)
        for name in ("detached-r-softmax", "r-softmax")
    )
    assert torch.equal(p, exact)
    authors = maps.r_softmax(scores, 0.4, gradient="detached", mask=mask, log=log)
    assert torch.equal(slope(p, scores), slope(authors, scores))
    assert differs(p, exact, scores)


def test_detached_record():
    spec, exact = get_spec("detached-r-softmax"), get_spec("r-softmax")
    assert spec.kernel is None
    assert [p.learnable for p in spec.parameters] == [False]
    assert (spec.zeros, spec.mass, spec.dial, spec.predicts) == (True, "one", exact.dial, "r")


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("mixed-{}", {"mix": 0.3}),
        ("scaled-{}", {"beta": 0.7}),
        ("{}", {"sink": 0.5}),
        ("scaled-{}", {"sink": 0.5}),
    ],
)
def test_detached_in_another(name, values):
    """It stays detached, without a kernel, and learns what is not r."""
    scores = random_scores(3, 9, scale=1.0, dtype=torch.float32).requires_grad_()
    ours, exact = (
        Mapping(name.format(n), r=0.4, learn=tuple(values), **values)
        for n in ("detached-r-softmax", "r-softmax")
    )
    assert ours.spec.kernel is None
    p, expected = ours(scores), exact(scores)
    assert torch.equal(p, expected)
    assert differs(p, expected, scores)
    assert all(slope(p, learned).abs() > 0 for learned in ours.parameters())
    with pytest.raises(TypeError, match="learn='r': no gradient reaches it; "):
        Mapping(name.format("detached-r-softmax"), learn="r")


def test_detached_loss():
    """The one of the multi-label head, whose p is r-softmax."""
    scores, target = random_scores(3, 6).requires_grad_(), random_mask(3, 6)
    loss = get_spec("detached-r-softmax").losses["r-softmax"]
    ours, exact = loss(scores, target, 0.4), r_softmax_multilabel_loss(scores, target, 0.4)
    assert torch.equal(ours, exact)
    p = maps.r_softmax(scores, 0.4, gradient="detached")
    eta = target / target.sum(-1, keepdim=True)
    matched = (p - eta).masked_fill(~target, 0.0).square().sum(-1).mean()
    margin = eta[..., :, None] - scores[..., :, None] + scores[..., None, :]
    pairs = target[..., :, None] & ~target[..., None, :]
    hinge = margin.relu().masked_fill(~pairs, 0.0).sum((-2, -1)).mean()
    assert_close(slope(ours, scores), slope(matched + hinge, scores))
    assert differs(ours, exact, scores)


def test_a_sink_that_would_be_scaled_is_refused():
    with pytest.raises(ValueError, match="sink: scaled-plif cannot have one, because"):
        Mapping("scaled-plif", sink=0.0)


def test_one_sink_is_enough():
    with pytest.raises(ValueError, match="sink: softmax has one of its own"):
        Mapping("softmax", sink=1.0)(random_scores(2, 5), sink=torch.zeros(2))
    q = torch.zeros(1, 2, 3, 4)
    with pytest.raises(ValueError, match="sink: softmax has one of its own"):
        attention(q, q, q, Mapping("softmax", sink=1.0), sink=torch.zeros(2))


@pytest.mark.parametrize("here", sorted({*ALSO_CALLED.values()}))
def test_names_of_the_literature_lead_to_mappings(here):
    name, _, sink = here.partition(" with ")
    assert get_spec(name, sink=bool(sink))


def test_top_p_of_one_is_softmax():
    row = torch.tensor([0.0, -200.0])
    assert_close(maps.top_p_softmax(row, 1.0, log=True), row, rtol=0, atol=0)


def test_a_suggestion_does_not_combine_prefixes():
    with pytest.raises(ValueError, match=r"did you mean scaled-entmax\?"):
        get_spec("mixed-asentmax")
