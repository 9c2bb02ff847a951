"""Which positions keep a probability, and what is left of the row, by definition."""

import itertools
import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from sparse_attn import functional as maps
from tests.fuzz.strategies import grid, grid_rows

from .cases import assert_close


def of_maxima(row):
    """The maxima share."""
    top = (row == row.max()).double()
    return top / top.sum()


@given(row=grid_rows(), low=st.floats(0, 1), high=st.floats(0, 1))
def test_supports_nest_and_keep_the_maximum(row, low, high):
    low, high = sorted([low, high])
    pairs = [
        (maps.r_softmax(row, high), maps.r_softmax(row, low)),
        (maps.t_softmax(row, 8 * low), maps.t_softmax(row, 8 * high)),
        (maps.top_p_softmax(row, low), maps.top_p_softmax(row, high)),
        (maps.threshold_softmax(row, high), maps.threshold_softmax(row, low)),
        (maps.max_gap(row, 10 * high), maps.max_gap(row, 10 * low)),
    ]
    for small, large in pairs:
        assert not ((small > 0) & (large == 0)).any()
        assert (small[row == row.max()] == small.max()).all()


@given(row=grid_rows())
def test_the_ends(row):
    n = float(len(row))
    for maxima in (
        maps.r_softmax(row, 1.0),
        # a t below the gap to the maxima lets them share, as t = 0 does
        *(maps.t_softmax(row, t) for t in (0.0, 1e-300, 1 / 128)),
        maps.sparsegen(row, 1 - 1e-6),
        maps.top_p_softmax(row, 0.0),
        maps.threshold_softmax(row, 1.0),
        maps.max_gap(row, n),
        maps.max_gap(row, 1e30),
    ):
        assert_close(maxima, of_maxima(row))
    for softmax in (
        maps.t_softmax(row, math.inf),
        maps.top_p_softmax(row, 1.0),
        maps.threshold_softmax(row, 0.0),
        maps.max_gap(row, 0.0),
    ):
        assert_close(softmax, maps.softmax(row))
    assert_close(maps.sparsegen(row, -1e12), torch.full_like(row, 1 / n), rtol=0, atol=1e-11)
    far = torch.tensor([0.0, -200.0])
    assert_close(maps.top_p_softmax(far, 1.0, log=True), far, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_scores_whose_shares_round_to_the_same_are_tied(dtype):
    row = torch.tensor([0.0, torch.finfo(dtype).eps / 128, -1.0], dtype=dtype)
    for mapping, end in ((maps.top_p_softmax, 0.0), (maps.threshold_softmax, 1.0)):
        assert mapping(row, end).tolist() == [0.5, 0.5, 0]


@given(row=grid_rows(), t=grid(0, 8))
def test_t_softmax_has_a_zero_exactly_where_the_gap_reaches_t(row, t):
    gap = row.max() - row
    assert torch.equal(maps.t_softmax(row, t) == 0, (gap >= t) if t > 0 else gap > 0)


@given(row=grid_rows(unique=True), r=st.floats(0, 1, exclude_max=True))
def test_r_softmax_has_a_zero_for_each_place_up_to_its_quantile(row, r):
    position = r * (len(row) - 1)
    assume(len(row) > 1 and (position == 0 or abs(position - round(position)) > 1e-9))
    assert (maps.r_softmax(row, r) == 0).sum() == math.floor(position) + 1


@pytest.mark.parametrize("n", [2, 3, 7, 10, 64, 128, 513, 2049])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_k_zeros_at_k_over_n(n, dtype):
    row = torch.randperm(n).to(dtype) / 256  # a range of 8, so that no exp underflows
    for k in {1, 2, n // 3, n // 2, n - 2, n - 1} & set(range(1, n)):
        zeros = maps.r_softmax(row, k / n) == 0
        assert zeros.sum() == k
        assert row[zeros].max() < row[~zeros].min()
        assert (maps.random_drop_softmax(row, k / n) == 0).sum() == k
    for mapping, fewest in ((maps.r_softmax, 1), (maps.random_drop_softmax, 0)):
        assert (mapping(row, 0.0) == 0).sum() == fewest
        assert (mapping(row, 1.0) == 0).sum() == n - 1


@given(row=grid_rows().map(lambda row: row[:8]), p=st.floats(0.01, 0.99))
def test_top_p_keeps_the_smallest_sets_of_enough_mass(row, p):
    share = maps.softmax(row)
    sets = [c for k in range(1, len(row) + 1) for c in itertools.combinations(range(len(row)), k)]
    masses = {chosen: share[list(chosen)].sum().item() for chosen in sets}
    assume(all(abs(mass - p) > 1e-9 for mass in masses.values()))
    least = min(len(chosen) for chosen, mass in masses.items() if mass >= p)
    best = max((c for c in sets if len(c) == least), key=masses.__getitem__)
    kept = share >= share[list(best)].min()
    got = maps.top_p_softmax(row, p)
    assert torch.equal(got > 0, kept)
    assert_close(got, torch.where(kept, share, 0) / share[kept].sum())


def test_a_zero_weight_cannot_lower_the_maximum():
    """The maximum is taken over positive weights, so that 0 * e^1000 does not hide the rest."""
    row = torch.tensor([1000.0, 1.0, 2.0])
    expected = torch.tensor([0.0, 1.0, math.e]) / (1 + math.e)
    p = maps.weighted_softmax(row, torch.tensor([0.0, 1.0, 1.0]))
    assert_close(p, expected, rtol=0, atol=1e-6)
