"""`mixed-NAME`, the ramp from softmax to a mapping."""

import math
from functools import partial

import pytest
import torch
from torch.autograd import gradcheck

from sparse_attn import functional as maps
from sparse_attn import mapping_names
from sparse_attn.mappings import get_spec

from .cases import CHECK, LEARNABLE, assert_close, defaults, forms, random_mask, random_scores

MIXABLE = [
    name
    for name in mapping_names()
    if get_spec(name).weights is None and name != "weighted-softmax"
]
SMOOTH = [(p.mapping, {p.name: p.values[1]}) for p in LEARNABLE if p.mapping != "sparsecone"]
SMOOTH += [("sparsemax", {})]


def test_a_mix_out_of_range_spoils_its_rows_alone():
    scores, mixed = torch.randn(2, 5), get_spec("mixed-sparsemax").function
    p = mixed(scores, mix=torch.tensor([1.1, 0.5]))
    assert p[0].isnan().all()
    assert_close(p[1], mixed(scores[1], mix=0.5))


@pytest.mark.parametrize("name", MIXABLE)
def test_mixed_meets_softmax_and_the_mapping(name):
    """Bit for bit at both ends, values and logarithms, of any dtype and mask."""
    spec, mixed = get_spec(name), get_spec(f"mixed-{name}")
    own = defaults(spec)
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        scores, mask = random_scores(6, 20, dtype=dtype), random_mask(6, 20)
        mask[2] = False
        for end, near, log_near, params in [
            (0.0, maps.softmax, partial(maps.softmax, log=True), {}),
            (1.0, spec.function, spec.log_function, own),
        ]:
            p = mixed.function(scores, **own, mix=end, mask=mask)
            assert torch.equal(p, near(scores, **params, mask=mask))
            log_p = mixed.log_function(scores, **own, mix=end, mask=mask)
            assert torch.equal(log_p, log_near(scores, **params, mask=mask))


@pytest.mark.parametrize("name", MIXABLE)
def test_mixed_records(name):
    spec, mixed = get_spec(name), get_spec(f"mixed-{name}")
    assert mixed.name == f"mixed-{name}"
    assert [p.name for p in mixed.parameters] == [*(p.name for p in spec.parameters), "mix"]
    assert (mixed.zeros, mixed.translation_invariant) == (spec.zeros, spec.translation_invariant)
    assert mixed.kernel is None
    assert mixed.log_g is None
    scores = random_scores(3, 6)
    # the default of mix is the mapping itself
    assert torch.equal(mixed.function(scores), spec.function(scores, **defaults(spec)))


def test_mixed_golden():
    """Half softmax, half sparsemax at z = [1, 0.2, -1.5, 0.7]."""
    spec = get_spec("mixed-sparsemax")
    row = torch.tensor([1.0, 0.2, -1.5, 0.7], dtype=torch.float64)
    expected = torch.tensor([0.545048, 0.098874, 0.018063, 0.338016], dtype=torch.float64)
    assert_close(spec.function(row, mix=0.5), expected, rtol=0, atol=1e-6)
    log_p = spec.log_function(row, mix=0.5)
    assert_close(log_p.exp(), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("name", "params"), SMOOTH, ids=[name for name, _ in SMOOTH])
@forms
def test_mixed_gradients(name, params, log):
    """To the scores, to mix and to the parameters of the mapping, jointly, under a mask."""
    spec = get_spec(f"mixed-{name}")
    function = spec.log_function if log else spec.function
    scores = random_scores(4, 7, scale=1.0).add(0.05).requires_grad_()
    mask = random_mask(4, 7)
    values = [torch.full((4,), v, dtype=torch.float64) for v in params.values()]
    mix = torch.tensor([0.1, 0.4, 0.7, 0.95], dtype=torch.float64)
    tensors = [t.requires_grad_() for t in (*values, mix)]
    names = (*params, "mix")

    def call(scores, *values):
        result = function(scores, **dict(zip(names, values, strict=True)), mask=mask)
        return result.masked_fill(~mask, 0.0)

    gradients = torch.autograd.grad(call(scores, *tensors).pow(2).sum(), tensors)
    assert all(gradient.abs().max() > 1e-4 for gradient in gradients)
    assert gradcheck(call, (scores, *tensors), **CHECK)


@pytest.mark.parametrize("end", [0.0, 1.0])
@forms
def test_mixed_gradients_at_the_ends_are_finite(end, log):
    spec = get_spec("mixed-sparsemax")
    scores = random_scores(5, 9).requires_grad_()
    mix = torch.full((5,), end, dtype=torch.float64, requires_grad=True)
    result = (spec.log_function if log else spec.function)(scores, mix=mix)
    torch.where(result > -math.inf, result, 0).pow(2).sum().backward()
    assert scores.grad.isfinite().all()
    assert mix.grad.isfinite().all()


@pytest.mark.parametrize("mix", [1e-30, 1e-6, 0.5, 1 - 2**-20])
def test_logarithms_of_mixed_hold_where_probabilities_vanish(mix):
    """p underflows at scores of -200 in float32; its logarithm is that of the larger share."""
    row = torch.tensor([0.0, -200.0, -1e4])
    log_p = get_spec("mixed-spherical-softmax").log_function(row, eps=0.0198, mix=mix)
    far = maps.spherical_softmax(row.double(), 0.0198, log=True) + math.log(mix)
    near = maps.softmax(row.double(), log=True) + math.log1p(-mix)
    assert_close(log_p.double(), torch.logaddexp(near, far), rtol=1e-5, atol=1e-5)
    sparse = get_spec("mixed-sparsemax").log_function(row, mix=0.5).double()
    expected = (
        maps.softmax(row.double(), log=True) + torch.tensor([2.0, 1.0, 1.0]).log() - math.log(2)
    )
    assert_close(sparse, expected, rtol=1e-6, atol=1e-6)
