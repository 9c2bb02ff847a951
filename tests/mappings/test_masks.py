"""Masked positions do not exist: every mapping equals itself on the compacted row."""

import math
import re

import numpy as np
import pytest
import torch

from sparse_attn import functional as maps

from .cases import CASES, FLOAT64, ONE_EACH, random_mask, random_scores

cases = pytest.mark.parametrize("case", CASES, ids=str)
one_each = pytest.mark.parametrize("case", ONE_EACH, ids=str)
forms = pytest.mark.parametrize("log", [False, True], ids=["p", "log"])


def gradients(case, scores, mask, cotangent, *, log=False):
    """p or log p, and the gradient of <cotangent, p> (over the finite entries of log p)."""
    scores = scores.clone().requires_grad_()
    result = case(scores, mask=mask, log=log)
    chosen = torch.where(result.detach() > -math.inf, cotangent, 0)
    finite = torch.where(result.detach() > -math.inf, result, 0)
    (gradient,) = torch.autograd.grad((finite * chosen).sum(), scores)
    return result.detach(), gradient


@cases
@forms
@pytest.mark.parametrize("n", [1, 2, 7, 64, 111])
def test_equals_the_compacted_row(case, n, log):
    scores, mask, cotangent = random_scores(6, n), random_mask(6, n), random_scores(6, n)
    result, gradient = gradients(case, scores, mask, cotangent, log=log)
    for row in range(6):
        keep = mask[row]
        alone = gradients(case, scores[row, keep], None, cotangent[row, keep], log=log)
        torch.testing.assert_close(result[row, keep], alone[0], **FLOAT64)
        # log p has slope 1 / w at the threshold of a sparse map, which enlarges the rounding.
        torch.testing.assert_close(gradient[row, keep], alone[1], rtol=1e-9, atol=1e-10)
    assert (result[~mask] == (-math.inf if log else 0)).all()
    assert (gradient[~mask] == 0).all()


@cases
def test_masked_values_match_the_reference(case):
    scores, mask = random_scores(8, 40), random_mask(8, 40)
    expected = case.log_rows(scores, mask).exp()
    torch.testing.assert_close(case(scores, mask=mask), expected, **FLOAT64)


@cases
@forms
@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf, 1e308, -1e308])
def test_what_lies_under_the_mask_is_ignored(case, junk, log):
    """Values and gradients are bit for bit those of another score under the mask."""
    scores, mask, cotangent = random_scores(4, 20), random_mask(4, 20), random_scores(4, 20)
    expected = gradients(case, scores, mask, cotangent, log=log)
    result = gradients(case, scores.masked_fill(~mask, junk), mask, cotangent, log=log)
    assert torch.equal(result[0], expected[0])
    assert torch.equal(result[1], expected[1])


@cases
@forms
def test_a_score_of_minus_infinity_is_a_masked_position(case, log):
    scores, mask, cotangent = random_scores(4, 20), random_mask(4, 20), random_scores(4, 20)
    expected = gradients(case, scores, mask, cotangent, log=log)
    additive = scores.masked_fill(~mask, -math.inf)
    result = gradients(case, additive, None, cotangent, log=log)
    assert torch.equal(result[0], expected[0])
    assert torch.equal(result[1], expected[1])
    # Half of the positions hidden by each means at once.
    both = torch.rand(4, 20) < 0.5
    result = case(scores.masked_fill(~mask & both, -math.inf), mask=mask | both, log=log)
    assert torch.equal(result, expected[0])


@cases
@forms
@pytest.mark.parametrize("fill", [0.0, math.nan, -math.inf])
def test_a_row_without_valid_position(case, fill, log):
    """Exactly zero (log: -inf), exactly no gradient, and the neighbouring rows do not notice."""
    scores, mask, cotangent = random_scores(3, 9), random_mask(3, 9), random_scores(3, 9)
    others = gradients(case, scores[[0, 2]], mask[[0, 2]], cotangent[[0, 2]], log=log)
    mask[1] = False
    scores[1] = fill
    result, gradient = gradients(case, scores, mask, cotangent, log=log)
    assert (result[1] == (-math.inf if log else 0)).all()
    assert (gradient[1] == 0).all()
    torch.testing.assert_close(result[[0, 2]], others[0], **FLOAT64)
    torch.testing.assert_close(gradient[[0, 2]], others[1], **FLOAT64)


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


PARAMETERS = [
    ("t_softmax", {"t": 1.7}),
    ("r_softmax", {"r": 0.3}),
    ("sparsegen", {"lam": 0.4}),
    ("sparsecone", {"q": 0.5}),
    ("sparsehourglass", {"q": 0.5}),
    ("entmax", {"alpha": 1.5}),
    ("sigsoftmax", {"bias": 0.5}),
    ("spherical_softmax", {"eps": 0.1}),
    ("temperature_softmax", {"temperature": 0.5}),
    ("plif", {"raw_slopes": (0.3, -1.0, 0.8), "bound": 2.0}),
    ("monotone", {"raw_gain": (0.3, 1.0), "raw_slope": (0.1, -1.0), "offset": (0.5, -0.5)}),
]


@pytest.mark.parametrize(("name", "params"), PARAMETERS)
@pytest.mark.parametrize("junk", [math.nan, -math.inf])
def test_parameters_learn_nothing_from_masked_positions(name, params, junk):
    """The gradient of each parameter is that of the compacted row; empty rows add nothing."""

    def parameter_gradients(scores, mask):
        tensors = {
            key: value if key == "bound" else torch.tensor(value, dtype=torch.float64)
            for key, value in params.items()
        }
        learned = [value.requires_grad_() for key, value in tensors.items() if key != "bound"]
        p = getattr(maps, name)(scores, **tensors, mask=mask)
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
        torch.testing.assert_close(result, expected, **FLOAT64)


@cases
@forms
@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_a_poisoned_row_stays_alone(case, poison, log):
    """NaN (or +inf, which gives NaN) at a valid position spoils its own row and no other."""
    scores, mask = random_scores(3, 12), random_mask(3, 12)
    expected = case(scores, mask=mask, log=log)
    mask[1, 4] = True
    scores[1, 4] = poison
    result = case(scores, mask=mask, log=log)
    assert result[1, mask[1]].isnan().all()
    torch.testing.assert_close(result[[0, 2]], expected[[0, 2]], **FLOAT64)


@one_each
@pytest.mark.parametrize("shape", [(7,), (5, 7), (1, 1, 7), (2, 1, 5, 7), (5, 1), (1,), ()])
def test_masks_broadcast(case, shape):
    scores = random_scores(2, 3, 5, 7)
    mask = torch.rand(shape) < 0.7
    expected = case(scores, mask=mask.expand(2, 3, 5, 7).contiguous())
    torch.testing.assert_close(case(scores, mask=mask), expected, **FLOAT64)


@one_each
def test_causal_mask_with_padding(case):
    """The mask of a decoder: row i sees the unpadded positions 0..i, and the first rows none."""
    scores = random_scores(1, 2, 9, 9)
    mask = torch.ones(9, 9, dtype=torch.bool).tril() & (torch.arange(9) >= 2)
    p = case(scores, mask=mask)
    assert (p[:, :, :2] == 0).all()
    for head in range(2):
        for query in range(2, 9):
            expected = case.log_row(scores[0, head, query, 2 : query + 1].numpy())
            expected = torch.from_numpy(np.exp(expected))
            torch.testing.assert_close(p[0, head, query, 2 : query + 1], expected, **FLOAT64)


@one_each
@forms
def test_masks_must_be_boolean_and_fit(case, log):
    scores = random_scores(2, 5)
    with pytest.raises(TypeError, match="mask"):
        case(scores, mask=torch.ones(2, 5), log=log)
    with pytest.raises(TypeError, match="mask"):
        case(scores, mask=torch.ones(2, 5, dtype=torch.long), log=log)
    for shape in [(2, 4), (3, 5), (3, 2, 5)]:
        with pytest.raises(ValueError, match="mask"):
            case(scores, mask=torch.ones(shape, dtype=torch.bool), log=log)


KEEP = torch.tensor([True, True, False])


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.float32])
def test_the_remedy_for_another_mask_does_not_invert_it(dtype):
    mask = KEEP.to(dtype)
    with pytest.raises(TypeError, match=f"mask: .*boolean.*{dtype}") as raised:
        maps.r_softmax(torch.zeros(3), 0.15, mask=mask)
    (remedy,) = re.findall(r"`([^`]+)` if 1 = takes part", str(raised.value))
    assert torch.equal(eval(remedy), KEEP)
    assert ("`mask == 0`" in str(raised.value)) == dtype.is_floating_point


def test_the_remedy_for_an_additive_mask():
    mask = torch.zeros(3).masked_fill(~KEEP, -math.inf)
    with pytest.raises(TypeError) as raised:
        maps.r_softmax(torch.zeros(3), 0.15, mask=mask)
    (remedy,) = re.findall(r"`([^`]+)` if it is added", str(raised.value))
    assert torch.equal(eval(remedy), KEEP)
