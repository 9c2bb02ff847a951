"""The controls of a comparison: what they promise beyond what all mappings do."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import pearsonr, rankdata

from sparse_attn import Mapping
from sparse_attn import functional as maps

from .cases import assert_close, forms, random_mask, random_scores
from .rows import murmur


def distinct_scores(*shape):
    """Random scores of which no two in a row are the same float32."""
    scores = random_scores(*shape)
    assert (scores.float().sort(-1).values.diff() > 0).all()
    return scores


# temperature-softmax


def test_temperature_at_its_ends():
    """T -> inf is uniform, T = 1 softmax, and the lowest T leaves the maximum."""
    scores = distinct_scores(5, 20)
    uniform = torch.full_like(scores, 1 / 20)
    hot = maps.temperature_softmax(scores, 1e15)
    assert_close(hot, uniform, rtol=0, atol=1e-13)
    cold = maps.temperature_softmax(torch.tensor([1.0, 0.9, -2.0]), 1e-3)
    assert_close(cold, torch.tensor([1.0, 0.0, 0.0]))
    assert torch.equal(maps.temperature_softmax(scores, 1.0), maps.softmax(scores))


# top-k-softmax


# random-drop-softmax


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("r", [0.15, 0.5])
def test_random_drop_prefers_no_position_and_no_rank(dtype, r):
    """Over many rows the correlations are those of chance, and no position stands out."""
    rows, n = 20000, 32
    scores = random_scores(rows, n, dtype=dtype)
    dropped = (maps.random_drop_softmax(scores, r) == 0).double().numpy()
    scores = scores.float().numpy()
    rank, position = rankdata(scores, axis=-1), np.broadcast_to(np.arange(n), (rows, n))
    # the number of drops in a row is fixed, which makes it as good as n - 1 draws
    sigma = 1 / math.sqrt(rows * (n - 1))
    # a score has one hash for good: normal scores of bfloat16 are about 500 numbers of 7 bits
    by_score = sigma if dtype == torch.float32 else 0.6 / math.sqrt(500)
    for what, chance in ((position, sigma), (rank, by_score), (np.abs(scores), by_score)):
        assert abs(pearsonr(dropped.ravel(), what.ravel()).statistic) < 5 * chance
    share = dropped.mean()
    spread = math.sqrt(share * (1 - share) / rows)
    assert np.abs(dropped.mean(0) - share).max() < 5 * spread
    if dtype == torch.float32:
        by_rank = np.take_along_axis(dropped, rank.argsort(-1), -1)
        assert np.abs(by_rank.mean(0) - share).max() < 5 * spread


def test_the_hash_of_the_reference_is_that_of_murmur():
    """fmix32(0) and fmix32(1), from MurmurHash3's own tests; -0.0 is 0.0."""
    bits = np.array([0, 1, 1 << 31], dtype=np.uint32).view(np.float32)
    assert murmur(bits).tolist() == [0, 0x514E28B7, 0]


def test_the_same_row_drops_the_same():
    """In any batch, in training and in evaluation, and when a layer is recomputed."""
    scores, mask = random_scores(6, 40), random_mask(6, 40)
    module = Mapping("random-drop-softmax", r=0.3)
    expected = module.train()(scores, mask)
    torch.manual_seed(1)
    assert torch.equal(module.eval()(scores, mask), expected)
    assert torch.equal(module(scores[[3]], mask[[3]]), expected[[3]])
    again = torch.utils.checkpoint.checkpoint(module, scores, mask, use_reentrant=False)
    assert torch.equal(again, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_negative_zero_is_zero(dtype):
    plus = random_scores(30, 9, dtype=dtype)
    plus[:, 3] = 0.0
    minus = plus.clone()
    minus[:, 3] = -0.0
    for r in (0.2, 0.6, 1.0):
        expected = maps.random_drop_softmax(plus, r)
        assert torch.equal(maps.random_drop_softmax(minus, r), expected)


@forms
def test_random_drop_has_the_gradient_of_softmax_over_what_is_kept(log):
    """The support is a step function of the scores, which finite differences would see."""
    scores, cotangent = distinct_scores(5, 12).requires_grad_(), random_scores(5, 12)
    kept = maps.random_drop_softmax(scores, 0.4) > 0
    cotangent = cotangent.masked_fill(~kept, 0.0)
    result = maps.random_drop_softmax(scores, 0.4, log=log)
    expected = maps.softmax(scores, mask=kept, log=log)
    assert_close(result, expected)
    finite = [torch.where(kept, p, 0) for p in (result, expected)]
    (gradient,) = torch.autograd.grad(finite[0], scores, cotangent)
    (expected,) = torch.autograd.grad(finite[1], scores, cotangent)
    assert_close(gradient, expected)
    assert (gradient[~kept] == 0).all()
    assert (gradient[kept] != 0).any()
