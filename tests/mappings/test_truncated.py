"""top-p-softmax, threshold-softmax and max-gap: which positions stay."""

import itertools

import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from sparse_attn import functional as maps

from .cases import assert_close
from .test_properties import row_strategy


@given(row=row_strategy().map(lambda row: row[:8]), p=st.floats(0.01, 0.99))
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


@given(row=row_strategy(), low=st.floats(0, 1), high=st.floats(0, 1))
def test_supports_nest(row, low, high):
    low, high = sorted([low, high])
    top_p = [maps.top_p_softmax(row, p) > 0 for p in (low, high)]
    above = [maps.threshold_softmax(row, lam) > 0 for lam in (high, low)]
    near = [maps.max_gap(row, 10 * a) > 0 for a in (high, low)]
    for small, large in (top_p, above, near):
        assert not (small & ~large).any()
        assert small[row == row.max()].all()


@given(row=row_strategy())
def test_the_ends(row):
    top = (row == row.max()).double()
    n = float(len(row))
    for maxima in (
        maps.top_p_softmax(row, 0.0),
        maps.threshold_softmax(row, 1.0),
        maps.max_gap(row, n),
        maps.max_gap(row, 1e30),
    ):
        assert_close(maxima, top / top.sum())
    for softmax in (
        maps.top_p_softmax(row, 1.0),
        maps.threshold_softmax(row, 0.0),
        maps.max_gap(row, 0.0),
    ):
        assert_close(softmax, maps.softmax(row))


@given(row=row_strategy(), lam=st.floats(0.001, 0.9))
def test_threshold_keeps_shares_of_lam_and_more(row, lam):
    share = maps.softmax(row)
    assume(((share - lam).abs() > 1e-9).all())
    expected = (share >= lam) | (row == row.max())
    assert torch.equal(maps.threshold_softmax(row, lam) > 0, expected)


@given(row=row_strategy(), a=st.floats(0.001, 100), copies=st.integers(2, 4))
def test_max_gap_keeps_shares_relative_to_the_largest(row, a, copies):
    """At most n / a times smaller; a row that is repeated, with a as often, keeps the same."""
    share = maps.softmax(row)
    ratio = share / share.max()
    assume(((ratio * len(row) / a - 1).abs() > 1e-9).all())
    kept = (ratio >= a / len(row)) | (row == row.max())
    assert torch.equal(maps.max_gap(row, a) > 0, kept)
    assert torch.equal(maps.max_gap(row.repeat(copies), a * copies) > 0, kept.repeat(copies))


def test_max_gap_counts_valid_positions():
    row = torch.tensor([2.0, 1.0, -1.0, 5.0, 5.0])
    mask = torch.tensor([True, True, True, False, False])
    got = maps.max_gap(row, 1.0, mask=mask)  # log(1 / 3) is -1.10, log(1 / 5) -1.61
    assert torch.equal(got > 0, torch.tensor([True, True, False, False, False]))
