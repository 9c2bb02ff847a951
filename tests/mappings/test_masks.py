"""Masked positions do not exist: every mapping equals itself on the compacted row.

That what lies under a mask changes no bit, that NaN stays in its row, and what a row without valid
position gives, is in tests/fuzz/test_mappings.py.
"""

import math
import re

import pytest
import torch

from sparse_attn import functional as maps

from .cases import (
    LEARNABLE,
    SLOPES,
    UNITS,
    assert_close,
    cases,
    finite,
    forms,
    function_of,
    one_each,
    random_mask,
    random_scores,
)


def gradients(case, scores, mask, cotangent, *, log=False):
    """p or log p, and the gradient of <cotangent, p> (over the finite entries of log p)."""
    scores = scores.clone().requires_grad_()
    result = case(scores, mask=mask, log=log)
    chosen = cotangent.masked_fill(result.detach() == -math.inf, 0)
    (gradient,) = torch.autograd.grad((finite(result) * chosen).sum(), scores)
    return result.detach(), gradient


@cases
@forms
@pytest.mark.parametrize("n", [1, 2, 7, 64, 111])
def test_equals_the_compacted_row(case, n, log):
    scores, mask, cotangent = random_scores(6, n), random_mask(6, n), random_scores(6, n)
    result, gradient = gradients(case, scores, mask, cotangent, log=log)
    for row, keep in enumerate(mask):
        alone = gradients(case, scores[row, keep], None, cotangent[row, keep], log=log)
        assert_close(result[row, keep], alone[0])
        # log p has slope 1 / w at the threshold of a sparse map, which enlarges the rounding.
        assert_close(gradient[row, keep], alone[1], rtol=1e-9, atol=1e-10)
    assert (result[~mask] == (-math.inf if log else 0)).all()
    assert (gradient[~mask] == 0).all()


@cases
@forms
def test_a_score_of_minus_infinity_is_a_masked_position(case, log):
    scores, mask, cotangent = random_scores(4, 20), random_mask(4, 20), random_scores(4, 20)
    expected = gradients(case, scores, mask, cotangent, log=log)
    additive = scores.masked_fill(~mask, -math.inf)
    result = gradients(case, additive, None, cotangent, log=log)
    assert all(map(torch.equal, result, expected))
    # Half of the positions hidden by each means at once.
    both = torch.rand(4, 20) < 0.5
    result = case(scores.masked_fill(~mask & both, -math.inf), mask=mask | both, log=log)
    assert torch.equal(result, expected[0])


@one_each
def test_a_plain_backward_through_an_empty_row(case):
    """Without care for the -inf entries: the sum of p, and a cotangent of ones."""
    scores = random_scores(2, 5).requires_grad_()
    mask = torch.tensor([[True] * 5, [False] * 5])
    (gradient,) = torch.autograd.grad(case(scores, mask=mask).sum(), scores)
    assert gradient.isfinite().all()
    assert (gradient[1] == 0).all()
    (gradient,) = torch.autograd.grad(case(scores, mask=mask, log=True)[0, :1].sum(), scores)
    assert not gradient.isnan().any()
    assert (gradient[1] == 0).all()


VALUES = [(p.mapping, {p.name: p.values[1]}) for p in LEARNABLE]
VALUES += [("plif", {"raw_slopes": SLOPES, "bound": 2.0}), ("monotone", UNITS)]


@pytest.mark.parametrize(("name", "values"), VALUES)
@pytest.mark.parametrize("junk", [math.nan, -math.inf])
def test_parameters_learn_nothing_from_masked_positions(name, values, junk):
    """The gradient of each parameter is that of the compacted row; empty rows add nothing."""

    def parameter_gradients(scores, mask):
        named = {n: torch.tensor(v, dtype=torch.float64) for n, v in values.items() if n != "bound"}
        learned = [value.requires_grad_() for value in named.values()]
        p = function_of(name)(scores, **{**values, **named}, mask=mask)
        weight = torch.arange(1.0, 1.0 + p.shape[-1]).cos()
        return torch.autograd.grad((p * weight).sum(), learned)

    # Close together and of positive sum, so that every parameter matters.
    row = random_scores(1, 6, scale=0.5).abs()
    padded = torch.cat([row, torch.full((1, 3), junk).double()], -1)
    padded = torch.cat([padded, torch.full((1, 9), junk).double()])
    mask = torch.zeros(2, 9, dtype=torch.bool)
    mask[0, :6] = True
    alone = parameter_gradients(row, None)
    assert any(gradient.abs().max() > 1e-3 for gradient in alone)
    for result, expected in zip(parameter_gradients(padded, mask), alone, strict=True):
        assert_close(result, expected)


@one_each
@pytest.mark.parametrize("shape", [(7,), (5, 7), (1, 1, 7), (2, 1, 5, 7), (5, 1), (1,), ()])
def test_masks_broadcast(case, shape):
    scores = random_scores(2, 3, 5, 7)
    mask = torch.rand(shape) < 0.7
    expected = case(scores, mask=mask.expand(2, 3, 5, 7).contiguous())
    assert_close(case(scores, mask=mask), expected)


KEEP = torch.tensor([True, True, False])
ADDITIVE = torch.zeros(3).masked_fill(~KEEP, -math.inf)


@pytest.mark.parametrize(
    ("mask", "condition"),
    [(KEEP.to(kind), "1 = takes part") for kind in (torch.int64, torch.uint8, torch.float32)]
    + [(ADDITIVE, "it is added")],
)
def test_the_remedy_for_another_mask_does_not_invert_it(mask, condition):
    with pytest.raises(TypeError, match=f"mask: .*boolean.*{mask.dtype}") as raised:
        maps.r_softmax(torch.zeros(3), 0.15, mask=mask)
    (remedy,) = re.findall(rf"`([^`]+)` if {condition}", str(raised.value))
    assert torch.equal(eval(remedy), KEEP)
    assert ("`mask == 0`" in str(raised.value)) == mask.dtype.is_floating_point
