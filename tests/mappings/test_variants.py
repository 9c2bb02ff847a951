"""Mappings made of others: `mixed-`, `scaled-` and `detached-NAME`, and those with a sink.

Values of some are in cases.py, beside the numpy reference.
"""

import math

import pytest
import torch
from torch.autograd import gradcheck

from sparse_attn import Mapping, mapping_names
from sparse_attn import functional as maps
from sparse_attn.losses import r_softmax_multilabel_loss
from sparse_attn.mappings import get_spec
from sparse_attn.mappings.registry import ALSO_CALLED

from .cases import (
    CHECK,
    LEARNABLE,
    assert_close,
    defaults,
    finite,
    forms,
    function_of,
    random_mask,
    random_scores,
)

LIBRARY = [
    name
    for name in mapping_names()
    if get_spec(name).function.__module__.startswith("sparse_attn") and name != "weighted-softmax"
]
MIXABLE = [name for name in LIBRARY if get_spec(name).weights is None]
# which has a gamma and rows of any mass of its own
SCALABLE = [name for name in LIBRARY if name != "clipped-softmax"]
WITH_SINK = [name for name in LIBRARY if get_spec(name).mass != "free"]


# Each meets what it is made of


@pytest.mark.parametrize("name", MIXABLE)
def test_mixed_meets_softmax_and_the_mapping(name):
    """Bit for bit at both ends, values and logarithms, of any dtype and mask."""
    spec, mixed = get_spec(name), get_spec(f"mixed-{name}")
    own = defaults(spec)
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        scores, mask = random_scores(6, 20, dtype=dtype), random_mask(6, 20)
        mask[2] = False
        for end, near, params in [(0.0, maps.softmax, {}), (1.0, spec.function, own)]:
            for log in (False, True):
                p = mixed.function(scores, **own, mix=end, mask=mask, log=log)
                assert torch.equal(p, near(scores, **params, mask=mask, log=log))
    # the default of mix is the mapping itself
    assert torch.equal(mixed.function(scores), spec.function(scores, **own))


@pytest.mark.parametrize("name", SCALABLE)
def test_a_factor_of_one_changes_nothing(name):
    scores, values = random_scores(4, 9), defaults(get_spec(name))
    p = get_spec(f"scaled-{name}").function(scores, **values, delta=1.0, beta=0.0)
    assert torch.equal(p, get_spec(name).function(scores, **values))


@pytest.mark.parametrize("name", WITH_SINK)
def test_a_sink_is_one_more_score(name):
    scores, mask, sink = random_scores(4, 9), random_mask(4, 9), random_scores(4)
    mask[2] = False
    wide = torch.cat([scores, sink[:, None]], -1)
    seen = torch.cat([mask, torch.ones(4, 1, dtype=torch.bool)], -1)
    values = defaults(get_spec(name))
    expected = get_spec(name).function(wide, **values, mask=seen)[:, :-1]
    expected = expected.masked_fill(~mask, 0.0)
    with_sink = get_spec(name, sink=True).function
    assert_close(with_sink(scores, **values, sink=sink, mask=mask), expected)
    moved = with_sink(scores.mT.contiguous(), **values, sink=sink, mask=mask.mT, dim=0)
    assert_close(moved.mT, expected)
    assert with_sink(scores, **values, sink=torch.full((4,), math.nan)).isnan().all()


def test_a_factor_does_not_touch_the_sink():
    scores = random_scores(2, 5)
    p = Mapping("scaled-softmax", delta=2.0, beta=0.0, sink=0.3)(scores.float())
    assert_close(p, Mapping("softmax", sink=0.3)(2 * scores.float()), rtol=1e-5, atol=1e-6)


def test_records():
    for name in LIBRARY:
        spec = get_spec(name)
        if name in MIXABLE:
            mixed = get_spec(f"mixed-{name}")
            assert [p.name for p in mixed.parameters] == [*(p.name for p in spec.parameters), "mix"]
            assert mixed.zeros == spec.zeros
            assert mixed.translation_invariant == spec.translation_invariant
            assert (mixed.kernel, mixed.log_g) == (None, None)
        if name in SCALABLE:
            assert get_spec(f"scaled-{name}").mass == spec.mass
    detached = get_spec("detached-r-softmax")
    assert detached.kernel is None
    assert [p.learnable for p in detached.parameters] == [False]
    dial = get_spec("r-softmax").dial
    assert (detached.zeros, detached.mass, detached.dial, detached.predicts) == (
        True, "one", dial, "r")  # fmt: skip


@pytest.mark.parametrize("here", sorted({*ALSO_CALLED.values()}))
def test_names_of_the_literature_lead_to_mappings(here):
    name, _, sink = here.partition(" with ")
    assert get_spec(name, sink=bool(sink))


def test_mixed_golden():
    """Half softmax, half sparsemax at z = [1, 0.2, -1.5, 0.7]."""
    mixed = get_spec("mixed-sparsemax").function
    row = torch.tensor([1.0, 0.2, -1.5, 0.7], dtype=torch.float64)
    expected = torch.tensor([0.545048, 0.098874, 0.018063, 0.338016], dtype=torch.float64)
    assert_close(mixed(row, mix=0.5), expected, rtol=0, atol=1e-6)
    assert_close(mixed(row, mix=0.5, log=True).exp(), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("mix", [1e-30, 1e-6, 0.5, 1 - 2**-20])
def test_logarithms_of_mixed_hold_where_probabilities_vanish(mix):
    """p underflows at scores of -200 in float32; its logarithm is that of the larger share."""
    row = torch.tensor([0.0, -200.0, -1e4])
    log_p = get_spec("mixed-spherical-softmax").function(row, eps=0.0198, mix=mix, log=True)
    far = maps.spherical_softmax(row.double(), 0.0198, log=True) + math.log(mix)
    near = maps.softmax(row.double(), log=True) + math.log1p(-mix)
    assert_close(log_p.double(), torch.logaddexp(near, far), rtol=1e-5, atol=1e-5)


# Gradients, to the scores and the parameters jointly

MIXES = {"mix": (0.1, 0.4, 0.7, 0.95)}
FACTOR = {"delta": 0.3, "beta": 0.6, "gamma": 1.4}
SMOOTH = [
    *((f"mixed-{p.mapping}", {p.name: p.values[1], **MIXES}) for p in LEARNABLE
      if p.mapping != "sparsecone"),
    ("mixed-sparsemax", MIXES),
    *((f"scaled-{name}", FACTOR) for name in ("softmax", "entmax")),
    *((name, {"sink": (0.3, -1.0, 2.0, 0.1)})
      for name in ("softmax", "r-softmax", "entmax", "sparsehourglass", "softpick")),
]  # fmt: skip


@pytest.mark.parametrize(("name", "values"), SMOOTH, ids=[name for name, _ in SMOOTH])
@forms
def test_gradients(name, values, log):
    """Under a mask, which leaves one row a single entry: log n = 0."""
    spec = get_spec(name, sink="sink" in values)
    scores = random_scores(4, 7, scale=1.0).add(0.05).requires_grad_()
    mask = random_mask(4, 7)
    mask[3] = torch.arange(7) == 2
    tensors = [torch.ones(4, dtype=torch.float64) * torch.tensor(v) for v in values.values()]
    tensors = [tensor.double().requires_grad_() for tensor in tensors]

    def call(scores, *tensors):
        named = dict(zip(values, tensors, strict=True))
        return finite(spec.function(scores, **named, mask=mask, log=log))

    gradients = torch.autograd.grad(call(scores, *tensors).pow(2).sum(), tensors)
    assert all(gradient.abs().max() > 1e-4 for gradient in gradients)
    assert gradcheck(call, (scores, *tensors), **CHECK)


# detached-r-softmax


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
