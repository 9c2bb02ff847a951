"""However rows are given, each is computed alone: batches, dimensions, layouts, masks, parameters.

That views of scores change no bit, that NaN stays in its row and that what lies under a mask does
not matter is in tests/fuzz/test_mappings.py.
"""

import math
import re

import numpy as np
import pytest
import torch

from sparse_attn import functional as maps

from . import rows
from .cases import (
    LEARNABLE,
    PARAMETERS,
    SLOPES,
    UNITS,
    Parameter,
    assert_close,
    cases,
    finite,
    forms,
    function_of,
    parameters,
    random_mask,
    random_scores,
)

# Masks


def gradients(case, scores, mask, cotangent, *, log=False):
    """p or log p, and the gradient of <cotangent, p> (over the finite entries of log p)."""
    scores = scores.clone().requires_grad_()
    result = case(scores, mask=mask, log=log)
    chosen = cotangent.masked_fill(result.detach() == -math.inf, 0)
    (gradient,) = torch.autograd.grad((finite(result) * chosen).sum(), scores)
    return result.detach(), gradient


@cases
@forms
@pytest.mark.parametrize("n", [1, 7, 111])
def test_masked_positions_do_not_exist(case, n, log):
    """Neither do those with a score of -inf, nor where some have one and others the other."""
    scores, mask, cotangent = random_scores(6, n), random_mask(6, n), random_scores(6, n)
    result, gradient = gradients(case, scores, mask, cotangent, log=log)
    for row, keep in enumerate(mask):
        alone = gradients(case, scores[row, keep], None, cotangent[row, keep], log=log)
        assert_close(result[row, keep], alone[0])
        # log p has slope 1 / w at the threshold of a sparse map, which enlarges the rounding.
        assert_close(gradient[row, keep], alone[1], rtol=1e-9, atol=1e-10)
    assert (result[~mask] == (-math.inf if log else 0)).all()
    assert (gradient[~mask] == 0).all()
    additive = scores.masked_fill(~mask, -math.inf)
    for same in (None, mask | (torch.rand(6, n) < 0.5)):
        found = gradients(case, additive, same, cotangent, log=log)
        assert all(map(torch.equal, found, (result, gradient)))


VALUES = [(p.mapping, {p.name: p.values[1]}) for p in LEARNABLE]
VALUES += [("plif", {"raw_slopes": SLOPES, "bound": 2.0}), ("monotone", UNITS)]
VALUES += [("softmax", {"sink": 0.5}), ("scaled-softmax", {"delta": 0.5, "beta": 0.7})]


@pytest.mark.parametrize(("name", "values"), VALUES)
@pytest.mark.parametrize("junk", [math.nan, -math.inf])
def test_parameters_learn_nothing_from_masked_positions(name, values, junk):
    """The gradient of each parameter is that of the compacted row; empty rows add nothing."""

    def parameter_gradients(scores, mask):
        named = {n: torch.tensor(v, dtype=torch.float64) for n, v in values.items() if n != "bound"}
        learned = [value.requires_grad_() for value in named.values()]
        p = function_of(name, sink="sink" in values)(scores, **{**values, **named}, mask=mask)
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


# Batches


@cases
@pytest.mark.parametrize(("dim", "log"), [(-1, False), (1, True), (-3, False)])
def test_a_batch_is_a_loop_over_rows(case, dim, log):
    """Along any dimension, with a mask of any layout that broadcasts."""
    scores = random_scores(4, 3, 6)
    for shape in ((4, 3, 6), (3, 6), (4, 1, 6), (6,), (3, 1), ()):
        mask = (torch.rand(shape[::-1]) < 0.7).permute([*range(len(shape))][::-1])
        result = case(scores, mask=mask, dim=dim, log=log)
        assert result.shape == scores.shape
        moved = [t.movedim(dim, -1) for t in (scores, mask.expand(4, 3, 6), result)]
        for row, keep, found in zip(*(t.reshape(-1, t.shape[-1]) for t in moved), strict=True):
            assert_close(found, case(row, mask=keep, log=log))


@pytest.mark.parametrize("shape", [(0, 3), (2, 0)])
def test_parameters_stay_in_the_graph_of_an_empty_batch(shape):
    t = torch.tensor(1.0, requires_grad=True)
    maps.t_softmax(torch.zeros(shape), t).sum().backward()
    assert t.grad == 0


# Parameters as tensors


@parameters
def test_a_parameter_for_each_row(parameter):
    """Equals the loop over rows and the independent reference; fewer values broadcast."""
    scores = random_scores(2, 3, 9)
    values = torch.tensor(parameter.values, dtype=torch.float64).view(2, 3)
    for value in (values, values[0], values[:, :1], values[0, :1], values[0, 0]):
        result = parameter(scores, value)
        for index in np.ndindex(2, 3):
            single = value.expand(2, 3)[index].item()
            assert_close(result[index], parameter.reference(scores[index], single))
        log_p = parameter(scores, value, log=True)
        assert_close(log_p.exp(), result)
        # The row shape is that of scores without `dim`, wherever `dim` is.
        for dim in (0, 1):
            moved = parameter(scores.movedim(-1, dim), value, dim=dim).movedim(dim, -1)
            assert_close(moved, result)


@pytest.mark.parametrize("shape", [(2, 3, 9), (9,), (3, 1), (1, 9), ()])
def test_weights_broadcast_to_the_scores_and_follow_dim(shape):
    """What they are under the mask does not matter."""
    scores, mask = random_scores(2, 3, 9), random_mask(2, 3, 9)
    weights = torch.rand(shape, dtype=torch.float64)
    full = weights.expand(2, 3, 9)
    if shape == (2, 3, 9):
        weights = weights.masked_fill(~mask, np.nan)
    result = maps.weighted_softmax(scores, weights, mask=mask)
    assert (result[~mask] == 0).all()
    for index in np.ndindex(2, 3):
        keep = mask[index]
        expected = rows.weighted_softmax(scores[index][keep].numpy(), full[index][keep].numpy())
        assert_close(result[index][keep], torch.from_numpy(np.exp(expected)))
    turned = [tensor.movedim(-1, 0) for tensor in (scores, full, mask)]
    result_of_dim = maps.weighted_softmax(*turned[:2], mask=turned[2], dim=0)
    assert_close(result_of_dim.movedim(0, -1), result)


MIX = Parameter("mixed-sparsemax", "mix", (0.3, 0.5), "[0, 1]", (1.1,))


@pytest.mark.parametrize("parameter", [*PARAMETERS, MIX], ids=str)
def test_a_tensor_parameter_out_of_range_spoils_its_rows_alone(parameter):
    """Beyond an open end: the end itself is where learned values round to."""
    scores, good = torch.randn(2, 5), parameter.values[1]
    for value in set(parameter.outside) - {1.0, torch.inf, -torch.inf} | {torch.nan}:
        p = parameter(scores, torch.tensor([value, good]))
        assert p[0].isnan().all()
        assert_close(p[1], parameter(scores[1], good), rtol=1e-5, atol=1e-6)
