"""What every mapping promises of every row.

First on the rows and parameters that are hardest, then on rows with ties and exact sums, where the
table of tests/mappings/cases.py says which symmetries each has.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from sparse_attn.mappings import MappingSpec, get_spec, mapping_names
from tests.fuzz.call import Call
from tests.fuzz.strategies import (
    DTYPES,
    FINITE,
    LAYOUTS,
    SHAPES,
    SPOILING,
    absorbs,
    computed,
    examples,
    grid,
    grid_rows,
    invertible,
    masks,
    parameters,
    same,
    tensors,
    unchanged,
)
from tests.mappings.cases import Case, assert_close, calm, cases

DERIVED = (
    *("mixed-r-softmax", "mixed-sparsehourglass", "mixed-spherical-softmax"),
    *("scaled-softmax", "scaled-entmax"),
)
SINK = " and a sink"  # in the name of a test
NAMES = (*mapping_names(), *DERIVED, *(n + SINK for n in ("softmax", "r-softmax", "entmax")))


def record(name: str) -> MappingSpec:
    """Of a mapping in NAMES."""
    return get_spec(name.removesuffix(SINK), sink=name.endswith(SINK))


each = pytest.mark.parametrize("name", NAMES)


@dataclass
class Row(Call):
    """A call of a mapping along a dimension."""

    name: str
    dim: int

    @property
    def tensors(self) -> dict[str, Tensor]:
        fixed = [p.name for p in record(self.name).parameters if not p.learnable]
        return {n: tensor for n, tensor in super().tensors.items() if n not in fixed}

    def __call__(self, log: bool = False, **changed: Any) -> Tensor:
        """p, or log p."""
        spec = record(self.name)
        function = spec.log_function if log else spec.function
        return function(**{**self.inputs, **changed}, mask=self.mask, dim=self.dim)

    def rows(self, tensor: Tensor) -> Tensor:
        """A tensor of the shape of scores as rows, (rows, n)."""
        moved = tensor.movedim(self.dim, -1)
        return moved.reshape(math.prod(moved.shape[:-1]), moved.shape[-1])

    @property
    def present(self) -> Tensor:
        """(rows, n): neither masked nor -inf."""
        valid = self.scores != -math.inf
        return self.rows(valid if self.mask is None else valid & self.mask)

    @property
    def spoiled(self) -> Tensor:
        """(rows,): with NaN or +inf at a position that is present."""
        bad = self.scores.isnan() | (self.scores == math.inf)
        return (self.present & self.rows(bad)).any(-1)


@st.composite
def calls(
    draw: Any, name: str, kinds: Sequence[str], dtypes: Sequence[torch.dtype] = DTYPES
) -> Row:
    spec = record(name)
    dtype, shape = draw(st.sampled_from(dtypes)), draw(st.sampled_from(SHAPES))
    dim = draw(st.integers(-len(shape), len(shape) - 1))
    rows = list(shape)
    n = rows.pop(dim)
    scores = draw(tensors((*rows, n), dtype, kinds)).movedim(-1, dim)
    call = Row({"scores": scores}, draw(masks(shape)), name, dim)
    for parameter in () if spec.weights else spec.parameters:
        if parameter.instead_of in call.inputs:
            continue
        if parameter.default is None and draw(st.booleans()):
            continue
        broadcasts_to = shape if parameter.per_entry else rows
        call.inputs[parameter.name] = draw(parameters(parameter, broadcasts_to, computed(dtype)))
    if spec.weights is not None:
        raw = st.sampled_from([-104.0, -1.0, 0.0, 0.5, 3.0])
        for argument in spec.weights(**{o.name: min(o.default, 3) for o in spec.options}):
            values = draw(st.lists(raw, min_size=3, max_size=3))
            call.inputs[argument] = torch.tensor(values, dtype=computed(dtype))
    return call


@each
@given(data=st.data(), log=st.booleans())
@examples(0.25)
def test_rules(name, data, log):
    """The mass it says; 0 and no gradient where masked; NaN in the rows that hold NaN, alone."""
    call = data.draw(calls(name, FINITE + SPOILING))
    with unchanged(*call.tensors.values()):
        result, gradients = call.solve(log)
        p, log_p = call(), call(True)
    assert_mass(call, p, log_p)
    assert same(result, log_p if log else p)
    for n, gradient in gradients.items():
        assert gradient.shape == call.tensors[n].shape
        assert gradient.dtype == call.tensors[n].dtype
    by_scores = call.rows(gradients["scores"])
    assert (by_scores[~call.present] == 0).all()
    # the other rows do not know what stands in a spoiled one, or under a mask
    good = ~call.spoiled
    mask = torch.tensor(True) if call.mask is None else call.mask
    kept = call.rows(mask.expand(call.scores.shape)) & good.unsqueeze(-1)
    hidden = ~kept.view(call.scores.movedim(call.dim, -1).shape).movedim(-1, call.dim)
    other = call.changed(scores=call.scores.masked_fill(hidden, 0.25))
    expected, others = other.solve(log)
    assert same(call.rows(result)[good], call.rows(expected)[good])
    assert same(by_scores[good], call.rows(others["scores"])[good])


def assert_mass(call, p, log_p):
    """p and log p of the rows that are not spoiled; NaN in those that are, 0 where masked."""
    assert p.shape == log_p.shape == call.scores.shape
    assert p.dtype == log_p.dtype == call.scores.dtype
    present, spoiled = call.present, call.spoiled.unsqueeze(-1)
    eps, least = torch.finfo(p.dtype).eps, torch.finfo(p.dtype).smallest_normal
    rounding = torch.finfo(computed(p.dtype)).eps
    p, log_p = call.rows(p).double(), call.rows(log_p).double()
    for result, zero in ((p, 0.0), (log_p, -math.inf)):
        assert (result[~present] == zero).all()
        assert result[present & spoiled].isnan().all()
        assert not result[present & ~spoiled].isnan().any(), "NaN where none went in"
    inside = present & ~spoiled
    assert (p[inside] >= 0).all()
    some = inside.any(-1)
    if "weights" in call.inputs:  # a row whose weights are all 0 is 0
        weights = torch.as_tensor(call.inputs["weights"], dtype=torch.float64)
        weights = weights.broadcast_to(call.scores.shape)
        some = (inside & (call.rows(weights) > 0)).any(-1)
    # a sum in float32 at least, of entries that are each rounded to the dtype
    n, mass = p.shape[-1], record(call.name).mass
    wrong = p.masked_fill(~inside, 0.0).sum(-1) - some.double()
    wrong = wrong.abs() if mass == "one" else wrong
    if mass != "free" and "zeta" not in call.inputs:
        assert (wrong <= eps + 8 * n * rounding + n * least * eps).all(), "wrong mass"
    p, log_p = p[inside], log_p[inside]
    # log w and log p of the largest weight cancel, |log w| < 745
    assert call.name == "relu" or (log_p <= 1e3 * rounding).all(), "log p > 0"
    assert (p[log_p == -math.inf] == 0).all(), "p > 0 where log p is -inf"
    # float16 ends log p at -65504, where p is 0
    size = 1 + log_p.clamp(min=-745).abs()
    wrong = (log_p.exp() - p).abs()
    assert (wrong <= 4 * (eps + 64 * rounding) * size * p + 64 * rounding + least).all(), "log p"


@each
@given(data=st.data(), log=st.booleans())
@examples(0.25)
def test_views_and_subsets(name, data, log):
    call = data.draw(calls(name, FINITE))
    call.check_views_and_subsets({"scores": data.draw(st.sampled_from(LAYOUTS))}, log)


@each
@given(data=st.data(), log=st.booleans())
@examples(0.25)
def test_gradients_are_finite_where_float64_has_them(name, data, log):
    """An intermediate number that over- or underflows makes no NaN."""
    call = data.draw(calls(name, FINITE, DTYPES[:3]))
    gradients, exact = call.solve(log)[1], within_range(call, Tensor.double).solve(log)[1]
    if name.endswith("spherical-softmax"):
        center = torch.as_tensor(call.inputs["center"]).to(call.scores).unsqueeze(-1)
        if ((call.scores.movedim(call.dim, -1) - center).abs() < 1e-18).any():
            gradients.pop("eps", None)  # its slope is 1 / (z - center)^2
    for n, gradient in gradients.items():
        assert not exact[n].isnan().any(), f"{n} in float64"
        fits = exact[n].abs() < torch.finfo(gradient.dtype).max / 8
        # slopes such as 1 / eps may be infinite, and only their sum finite
        # nor is their sum promised of scores beyond 1e30, or of learned slopes of e^-80
        wide = (call.scores.abs() > 1e30).any() or (call.tensors[n] < -80).any()
        if n != "scores" and wide:
            continue
        if (n == "scores" and not log) or invertible(call.tensors[n]):
            assert gradient[fits].isfinite().all(), f"gradient of {n}"


# the support of random-drop-softmax hangs on the bits of the scores
@pytest.mark.parametrize("name", [n for n in NAMES if n != "random-drop-softmax"])
@given(data=st.data())
@examples(0.25)
def test_values_are_those_of_float64(name, data):
    """But for what a few roundings of scores and parameters change there."""
    call = within_range(data.draw(calls(name, FINITE, DTYPES[:3])), within_float32)
    random = torch.Generator().manual_seed(0)

    def moved(value: Tensor) -> Tensor:
        sign = torch.rand(value.shape, generator=random, dtype=torch.float64) * 2 - 1
        return value.double() * (1 + 4 * torch.finfo(torch.float32).eps * sign)

    assume(name != "sigsoftmax" or not absorbs(call.inputs["bias"]))
    exact, p = within_range(call, Tensor.double)(), call()
    nearby = torch.stack([within_range(call, moved)() for _ in range(6)])
    budget = 2 * (nearby - exact).abs().nan_to_num(math.inf).amax(0)
    end = torch.finfo(p.dtype)
    budget += (1e-5 + end.eps) * exact + 1e-6 + end.smallest_normal
    assert ((p.double() - exact).abs() <= budget).all()


def within_range(call: Row, change: Callable[[Tensor], Tensor]) -> Row:
    """The call with its scores changed, and its parameters where they stay in their range."""
    inputs = {"scores": change(call.scores)}
    ranges = {p.name: p for p in record(call.name).parameters}
    for name, value in list(call.inputs.items())[1:]:
        old = torch.as_tensor(value, dtype=None if isinstance(value, Tensor) else torch.float64)
        new = change(old)
        if name in ranges:
            fits = [ranges[name].contains(x) for x in new.flatten().tolist()]
            new = new.where(torch.tensor(fits, dtype=torch.bool).view(new.shape), old)
        inputs[name] = new if isinstance(value, Tensor) else new.item()
    return call.changed(**inputs)


def within_float32(values: Tensor) -> Tensor:
    """Without numbers whose products and quotients are beyond float32.

    A subnormal t or temperature counts as 0, a log g that overflows as the last finite number.
    """
    values = values.where(values.abs() >= 1e-30, 0.0)
    return values.where((values.abs() <= 1e37) | values.isinf(), values.sign())


# Rows with ties


@cases
@given(row=grid_rows(), data=st.data())
def test_the_reference_with_any_mask(case: Case, row: Tensor, data: Any) -> None:
    n = len(row)
    mask = torch.tensor(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    p, log_p = case(row, mask=mask), case(row, mask=mask, log=True)
    assert_close(p, case.log_rows(row[None], mask[None])[0].exp())
    assert (p[~mask] == 0).all()
    assert torch.equal(log_p == -math.inf, p == 0)
    assert_close(log_p[p > 1e-3], p[p > 1e-3].log(), rtol=1e-11, atol=1e-11)


@cases
@given(row=grid_rows(), value=st.floats(-5, 5))
def test_equal_scores_get_equal_probabilities(case: Case, row: Tensor, value: float) -> None:
    """An all-equal row is uniform: n = 1 gives exactly one, and so where a formula is 0/0."""
    p = case(row)
    assert (p[:, None] == p)[row[:, None] == row].all()
    n = len(row)
    p = case(torch.full_like(row, value))
    assert_close(p, p[:1].expand(n))
    if case.mass == "one":
        assert_close(p, torch.full_like(p, 1 / n))
        assert n > 1 or p.item() == 1


@calm
@given(row=grid_rows())
def test_keeps_its_order(case: Case, row: Tensor) -> None:
    """p does not fall where z rises; |z| for spherical and abs, |z + 1| for Taylor."""
    order = case.key(row).argsort()
    assert (case(row)[order].diff() >= -1e-15).all()


@cases
@given(row=grid_rows(), shift=grid(-50, 50))
def test_a_common_shift(case: Case, row: Tensor, shift: float) -> None:
    if not case.shift:
        row = torch.tensor([-0.4, 1.0, 2.0], dtype=torch.float64)
        assert (case(row + 1) - case(row)).abs().max() > 1e-3
        return
    # tau and the quantile are rounded at the size of the shifted scores.
    assert_close(case(row + shift), case(row), rtol=1e-11, atol=1e-12)


@cases
@given(row=grid_rows(), factor=st.sampled_from([1e-3, 0.5, 3.0, 64.0, 1e4]))
def test_a_positive_factor(case: Case, row: Tensor, factor: float) -> None:
    if not case.scale:
        row = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
        assert (case(3 * row) - case(row)).abs().max() > 1e-3
        return
    # |sum z| is a difference that rounding may move from zero when the factor is not a power of 2.
    assume(case.name != "sparsehourglass" or row.sum() != 0 or factor in (0.5, 64.0))
    assert_close(case(row * factor), case(row), rtol=1e-10, atol=1e-12)


@cases
def test_zeros_are_returned_by_the_sparse_mappings_only(case: Case) -> None:
    row = torch.tensor([3.0, 0.0, -2.0, 1.0], dtype=torch.float64)
    assert (case(row) == 0).any() == case.zeros
