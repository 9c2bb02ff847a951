"""The controls of a comparison: what they promise beyond what all mappings do."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
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


@forms
def test_a_learned_temperature_at_the_end_of_its_range_has_gradients(log):
    """softplus underflows to 0; 0/0 would make the whole model NaN in one step."""
    module = Mapping("temperature-softmax", learn="temperature")
    scores = random_scores(3, 7, dtype=torch.float32).requires_grad_()
    with torch.no_grad():
        module.raw_temperature.fill_(-1e3)
    result = module.log(scores) if log else module(scores)
    result.pow(2).sum().backward()
    assert result.isfinite().all()
    assert scores.grad.isfinite().all()
    assert module.raw_temperature.grad.isfinite().all()


# top-k-softmax


@pytest.mark.parametrize("n", [1, 2, 9, 64])
@pytest.mark.parametrize("k", [1.0, 1.01, 2.0, 2.5, 8.999, 63.0])
def test_top_k_keeps_the_largest(n, k):
    """Exactly ceil(k) without ties, and all of them where there are not more."""
    scores = distinct_scores(6, n)
    p = maps.top_k_softmax(scores, k)
    kept = min(math.ceil(k), n)
    assert ((p > 0).sum(-1) == kept).all()
    largest = scores.topk(kept, -1)
    expected = torch.zeros_like(p).scatter(-1, largest.indices, largest.values.softmax(-1))
    assert_close(p, expected)


@pytest.mark.parametrize("k", [12.0, 12.5, 1e9, 1e300, math.inf])
def test_top_k_of_all_is_softmax(k):
    scores, mask = random_scores(5, 12), random_mask(5, 12)
    assert torch.equal(maps.top_k_softmax(scores, k), maps.softmax(scores))
    assert torch.equal(maps.top_k_softmax(scores, k, mask=mask), maps.softmax(scores, mask=mask))
    single = scores.float()
    assert torch.equal(maps.top_k_softmax(single, k), maps.softmax(single))


# random-drop-softmax


@pytest.mark.parametrize("n", [1, 2, 3, 10, 65, 128])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_random_drop_zero_count(n, dtype):
    """floor(r (n - 1)) + 1 for 0 < r < 1, none for r = 0, all but one for r = 1."""
    scores = distinct_scores(20, n).to(dtype)
    for r in (1e-6, 0.05, 0.15, 0.3, 0.51, 0.77, 0.99):
        zeros = (maps.random_drop_softmax(scores, r) == 0).sum(-1)
        assert (zeros == min(math.floor(r * (n - 1)) + 1, n - 1)).all()
    for k in {1, n // 3, n // 2, n - 1} & set(range(1, n)):
        assert ((maps.random_drop_softmax(scores, k / n) == 0).sum(-1) == k).all()
    assert (maps.random_drop_softmax(scores, 0.0) > 0).all()
    assert ((maps.random_drop_softmax(scores, 1.0) > 0).sum(-1) == 1).all()


@pytest.mark.parametrize("r", [0.15, 0.5])
def test_random_drop_prefers_no_position_and_no_rank(r):
    """Over many rows the correlations are those of chance, and no position or rank stands out."""
    rows, n = 20000, 32
    scores = random_scores(rows, n, dtype=torch.float32)
    dropped = (maps.random_drop_softmax(scores, r) == 0).double().numpy()
    rank = rankdata(scores.numpy(), axis=-1)
    position = np.broadcast_to(np.arange(n), (rows, n))
    size = np.abs(scores.numpy())
    # the number of drops in a row is fixed, which makes it as good as n - 1 draws
    sigma = 1 / math.sqrt(rows * (n - 1))
    for what in (rank, position, size):
        assert abs(pearsonr(dropped.ravel(), what.ravel()).statistic) < 5 * sigma
    share = dropped.mean()
    spread = math.sqrt(share * (1 - share) / rows)
    by_rank = np.take_along_axis(dropped, rank.argsort(-1), -1)
    for columns in (dropped, by_rank):
        assert np.abs(columns.mean(0) - share).max() < 5 * spread


def test_random_drop_of_bfloat16_prefers_no_position_and_hardly_a_rank():
    """A score has one hash for good, and few numbers of 8 bits are scores: chance is wider."""
    rows, n = 20000, 32
    scores = random_scores(rows, n, dtype=torch.bfloat16)
    dropped = (maps.random_drop_softmax(scores, 0.15) == 0).double().numpy()
    position = np.broadcast_to(np.arange(n), (rows, n)).ravel()
    sigma = 1 / math.sqrt(rows * (n - 1))
    assert abs(pearsonr(dropped.ravel(), position).statistic) < 5 * sigma
    # normal scores put their weight on about 500 numbers of 7 bits
    rank = rankdata(scores.float().numpy(), axis=-1).ravel()
    assert abs(pearsonr(dropped.ravel(), rank).statistic) < 3 / math.sqrt(500)


def test_random_drop_of_neighbouring_scores_is_unrelated():
    """Scores that differ by one unit in the last place are dropped as if independent."""
    start = torch.rand(5000, 1) + 1
    near = (start.view(torch.int32) + torch.arange(16, dtype=torch.int32)).view(torch.float32)
    dropped = (maps.random_drop_softmax(near, 0.5) == 0).double()
    correlation = torch.corrcoef(dropped.T)
    off = correlation[~torch.eye(16, dtype=torch.bool)]
    # 8 of 16 are dropped, so that two of them are at -1/15; one of 240 may be 5 sigma away
    assert (off + 1 / 15).abs().max() < 5 / math.sqrt(5000)


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


@given(data=st.data(), r=st.floats(0, 1))
def test_padding_and_order_change_no_drop(data, r):
    n = data.draw(st.integers(1, 30))
    row = distinct_scores(n)
    p = maps.random_drop_softmax(row, r)
    order = torch.tensor(data.draw(st.permutations(range(n))))
    assert torch.equal(maps.random_drop_softmax(row[order], r) == 0, (p == 0)[order])
    keep = torch.tensor(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    junk = torch.randn(len(keep), dtype=torch.float64)
    padded = torch.stack([row, junk], -1).flatten()
    mask = torch.stack([torch.ones(n, dtype=torch.bool), torch.zeros(n, dtype=torch.bool)], -1)
    assert_close(maps.random_drop_softmax(padded, r, mask=mask.flatten())[::2], p)
    alone = maps.random_drop_softmax(row[keep], r)
    assert torch.equal(maps.random_drop_softmax(row, r, mask=keep)[keep] == 0, alone == 0)


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
