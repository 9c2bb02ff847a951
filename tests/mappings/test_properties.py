"""What each mapping promises of every row, as hypothesis properties.

That every row lies on the simplex is in tests/fuzz/test_mappings.py.
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from sparse_attn import functional as maps

from .cases import CASES, assert_close, calm, cases, each


def grid(low: float, high: float) -> st.SearchStrategy[float]:
    """Multiples of 1/64: their sums and differences are exact, and ties are common."""
    return st.integers(int(64 * low), int(64 * high)).map(lambda k: k / 64)


def row_strategy(low=-5.0, high=5.0, *, min_size=1, unique=False):
    values = st.lists(grid(low, high), min_size=min_size, max_size=40, unique=unique)
    return values.map(lambda row: torch.tensor(row, dtype=torch.float64))


@cases
@given(row=row_strategy(), data=st.data())
def test_matches_the_reference_with_any_mask(case, row, data):
    n = len(row)
    mask = torch.tensor(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    p = case(row, mask=mask)
    expected = case.log_rows(row[None], mask[None])[0].exp()
    assert_close(p, expected)
    assert (p[~mask] == 0).all()


@cases
@given(row=row_strategy())
def test_equal_scores_get_equal_probabilities(case, row):
    p = case(row)
    same = row[:, None] == row
    assert (p[:, None] == p)[same].all()


@cases
@given(value=st.floats(-5, 5), n=st.integers(1, 40))
def test_an_all_equal_row_is_uniform(case, value, n):
    """n = 1 gives exactly one; the rows at which a formula is 0/0 are included."""
    p = case(torch.full((n,), value, dtype=torch.float64))
    assert_close(p, p[:1].expand(n))
    if case.mass == "one":
        assert_close(p, torch.full_like(p, 1 / n))
        assert n > 1 or p.item() == 1


@each([c for c in CASES if c.mass == "at most one"])
@given(row=row_strategy())
def test_a_mass_is_at_most_one(case, row):
    assert 0 <= case(row).sum() <= 1 + 1e-12


@calm
@given(row=row_strategy())
def test_keeps_its_order(case, row):
    """p does not fall where z rises; |z| for spherical and abs, |z + 1| for Taylor."""
    order = case.key(row).argsort()
    assert (case(row)[order].diff() >= -1e-15).all()


@each([c for c in CASES if c.shift])
@given(row=row_strategy(), shift=grid(-50, 50))
def test_ignores_a_common_shift(case, row, shift):
    # tau and the quantile are rounded at the size of the shifted scores.
    assert_close(case(row + shift), case(row), rtol=1e-11, atol=1e-12)


@each([c for c in CASES if c.scale])
@given(row=row_strategy(), factor=st.sampled_from([1e-3, 0.5, 3.0, 64.0, 1e4]))
def test_ignores_a_positive_factor(case, row, factor):
    # |sum z| is a difference that rounding may move from zero when the factor is not a power of 2.
    assume(case.name != "sparsehourglass" or row.sum() != 0 or factor in (0.5, 64.0))
    assert_close(case(row * factor), case(row), rtol=1e-10, atol=1e-12)


@each([c for c in CASES if not c.shift])
def test_a_common_shift_matters_elsewhere(case):
    """The table's `no`: these mappings do react to a shift, so a bias changes them."""
    row = torch.tensor([-0.4, 1.0, 2.0], dtype=torch.float64)
    assert (case(row + 1) - case(row)).abs().max() > 1e-3


@each([c for c in CASES if not c.scale])
def test_a_factor_matters_elsewhere(case):
    row = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    assert (case(3 * row) - case(row)).abs().max() > 1e-3


@cases
def test_zeros_are_returned_by_the_sparse_mappings_only(case):
    row = torch.tensor([3.0, 0.0, -2.0, 1.0], dtype=torch.float64)
    assert (case(row) == 0).any() == case.zeros


@cases
@given(row=row_strategy())
def test_log_form_is_the_logarithm(case, row):
    p, log_p = case(row), case(row, log=True)
    assert_close(log_p.exp(), p)
    assert torch.equal(log_p == -math.inf, p == 0)
    assert_close(log_p[p > 1e-3], p[p > 1e-3].log(), rtol=1e-11, atol=1e-11)


# t-softmax


@given(row=row_strategy(), small=grid(0, 8), large=grid(0, 8))
def test_t_softmax_has_a_zero_exactly_where_the_gap_reaches_t(row, small, large):
    small, large = sorted([small, large])
    gap = row.max() - row
    for t in (small, large):
        expected = (gap >= t) if t > 0 else gap > 0
        assert torch.equal(maps.t_softmax(row, t) == 0, expected)
    assert not ((maps.t_softmax(row, large) == 0) & (maps.t_softmax(row, small) > 0)).any()


@given(row=row_strategy())
def test_t_softmax_as_t_vanishes(row):
    """A t below the gap to the maxima lets them share, as t = 0 does."""
    expected = (row == row.max()).double()
    expected /= expected.sum()
    for t in (0.0, 1e-300, 1 / 128):
        assert_close(maps.t_softmax(row, t), expected)


# r-softmax


@given(row=row_strategy(min_size=2, unique=True), r=st.floats(0, 1, exclude_max=True))
def test_r_softmax_zero_count(row, r):
    """floor(r (n - 1)) + 1 zeros without ties."""
    position = r * (len(row) - 1)
    assume(position == 0 or abs(position - round(position)) > 1e-9)
    assert (maps.r_softmax(row, r) == 0).sum() == math.floor(position) + 1


@pytest.mark.parametrize("n", [2, 3, 7, 10, 64, 128, 513, 2049])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_r_softmax_gives_k_zeros_at_k_over_n(n, dtype):
    row = torch.randperm(n).to(dtype) / 256  # a range of 8, so that no exp underflows
    for k in {1, 2, n // 3, n // 2, n - 2, n - 1} & set(range(1, n)):
        zeros = maps.r_softmax(row, k / n) == 0
        assert zeros.sum() == k
        assert row[zeros].max() < row[~zeros].min()
    assert (maps.r_softmax(row, 0.0) == 0).sum() == 1
    assert (maps.r_softmax(row, 1.0) == 0).sum() == n - 1


@given(row=row_strategy(), r=st.floats(0, 1), s=st.floats(0, 1))
def test_r_softmax_supports_nest_and_keep_the_maximum(row, r, s):
    low, high = sorted([r, s])
    dense, sparse = maps.r_softmax(row, low), maps.r_softmax(row, high)
    assert (dense[sparse > 0] > 0).all()
    assert (sparse[row == row.max()] == sparse.max()).all()


@given(row=row_strategy(), r=st.floats(0, 1))
def test_r_softmax_is_t_softmax_at_the_quantile(row, r):
    t = row.max() - np.quantile(row.numpy(), r)
    assume(t == 0 or t > 1e-6)  # else the rounding of the quantile is all there is of t
    assert_close(maps.r_softmax(row, r), maps.t_softmax(row, t), rtol=1e-8, atol=1e-8)


# Projections


@given(row=row_strategy())
def test_sparsemax_leaves_the_simplex_alone(row):
    p = maps.sparsemax(row)
    assert_close(maps.sparsemax(p), p)


@given(row=row_strategy())
def test_sparsegen_at_its_limits(row):
    uniform = torch.full_like(row, 1 / len(row))
    assert_close(maps.sparsegen(row, -1e12), uniform, rtol=0, atol=1e-11)
    top = (row == row.max()).double()
    assert_close(maps.sparsegen(row, 1 - 1e-6), top / top.sum())


@given(row=row_strategy(), q=grid(0, 4))
def test_sparsehourglass_mirrors_sparsecone(row, q):
    """Equal where sum z >= 0, and the cone of z - 2 sum(z) / n otherwise."""
    total = row.sum()
    assume(total != 0 or q > 0)
    mirrored = row if total >= 0 else row - 2 * total / len(row)
    # q = 0 with a small sum multiplies the scores, and their rounding, by up to 64 n.
    expected = maps.sparsecone(mirrored, q)
    assert_close(maps.sparsehourglass(row, q), expected, rtol=1e-9, atol=1e-11)


# Pointwise mappings


@given(row=row_strategy(), eps=grid(0, 2))
def test_symmetries_of_the_even_mappings(row, eps):
    assert torch.equal(maps.spherical_softmax(-row, eps), maps.spherical_softmax(row, eps))
    assert torch.equal(maps.softmax_abs(-row), maps.softmax_abs(row))
    assert_close(maps.taylor_softmax(-2 - row), maps.taylor_softmax(row))
    assert_close(maps.spherical_softmax(row, 1.0, -1.0), maps.taylor_softmax(row))


@given(row=row_strategy(), a=grid(0.25, 4), b=grid(-4, 4), rest=grid(0.25, 4))
def test_spherical_softmax_is_any_quadratic_without_roots(row, a, b, rest):
    """a z^2 + b z + c over its sum, with center and eps as the docstring has them; any a scales."""
    c = b * b / (4 * a) + rest  # 4 a c - b^2 = 4 a rest > 0
    g = a * row**2 + b * row + c
    eps, center = (4 * a * c - b * b) / (4 * a * a), -b / (2 * a)
    assert_close(maps.spherical_softmax(row, eps, center), g / g.sum(), rtol=1e-9, atol=1e-12)


# Weighted softmax

ROW = row_strategy(min_size=4).map(lambda row: row[:4])


@given(row=ROW, weights=st.lists(grid(0, 3), min_size=4, max_size=4))
def test_weighted_softmax_is_its_formula(row, weights):
    """w e^z / sum w e^z; no positive weight gives zeros, one gives a one-hot row."""
    weights = torch.tensor(weights, dtype=torch.float64)
    mass = weights * row.exp()
    expected = mass / mass.sum() if mass.any() else mass
    p = maps.weighted_softmax(row, weights)
    assert_close(p, expected)
    assert torch.equal(p == 0, weights == 0)
    assert_close(maps.weighted_softmax(row, weights, log=True).exp(), expected)


@given(row=ROW, constant=st.floats(1e-300, 1e300))
def test_constant_weights_are_softmax(row, constant):
    weights = torch.full_like(row, constant)
    assert_close(maps.weighted_softmax(row, weights), maps.softmax(row))


def test_a_zero_weight_cannot_lower_the_maximum():
    """The maximum is taken over positive weights, so that 0 * e^1000 does not hide the rest."""
    row = torch.tensor([1000.0, 1.0, 2.0])
    expected = torch.tensor([0.0, 1.0, math.e]) / (1 + math.e)
    p = maps.weighted_softmax(row, torch.tensor([0.0, 1.0, 1.0]))
    assert_close(p, expected, rtol=0, atol=1e-6)
