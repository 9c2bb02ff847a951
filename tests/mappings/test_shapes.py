"""Any shape, any dimension, any memory layout; parameters as numbers or one tensor for the rows.

That views change no bit and that arguments stay as they are is in tests/fuzz/test_mappings.py.
"""

import numpy as np
import pytest
import torch

from sparse_attn import functional as maps

from . import rows
from .cases import assert_close, cases, forms, one_each, parameters, random_mask, random_scores


@one_each
@forms
@pytest.mark.parametrize("shape", [(5,), (1,), (3, 5), (2, 3, 5), (2, 1, 3, 5), (2, 3, 1)])
def test_a_batch_equals_a_loop(case, shape, log):
    scores, mask = random_scores(*shape), torch.rand(shape) < 0.7
    batch = case(scores, mask=mask, log=log)
    assert batch.shape == scores.shape
    for index in np.ndindex(shape[:-1]):
        assert_close(batch[index], case(scores[index], mask=mask[index], log=log))


@pytest.mark.parametrize("shape", [(0, 3), (2, 0)])
def test_parameters_stay_in_the_graph_of_an_empty_batch(shape):
    t = torch.tensor(1.0, requires_grad=True)
    maps.t_softmax(torch.zeros(shape), t).sum().backward()
    assert t.grad == 0


@cases
@forms
@pytest.mark.parametrize("dim", [0, 1, 2, -2, -3])
def test_any_dimension(case, dim, log):
    scores, mask = random_scores(4, 5, 6), random_mask(4, 5, 6)
    moved = case(scores.movedim(dim, -1), mask=mask.movedim(dim, -1), log=log).movedim(-1, dim)
    result = case(scores, mask=mask, dim=dim, log=log)
    assert result.shape == scores.shape
    assert_close(result, moved)


@cases
def test_any_memory_layout_of_a_mask(case):
    base = random_scores(6, 8, 10)
    for view in (base.transpose(0, 2), base[::2, 1::3], base.unfold(-1, 4, 2)):
        mask = (torch.rand(view.shape[::-1]) < 0.6).permute(*range(view.dim())[::-1])
        assert_close(case(view, mask=mask), case(view.clone(), mask=mask.contiguous()))


# Parameters as tensors


@parameters
def test_a_parameter_for_each_row(parameter):
    """A tensor of the row shape equals the loop over rows, and the independent reference."""
    scores = random_scores(2, 3, 9)
    values = torch.tensor(parameter.values, dtype=torch.float64).view(2, 3)
    result, log_result = parameter(scores, values), parameter(scores, values, log=True)
    for index in np.ndindex(2, 3):
        value = values[index].item()
        alone = parameter(scores[index], value)
        assert_close(result[index], alone)
        assert_close(log_result[index].exp(), alone)
        assert_close(result[index], parameter.reference(scores[index], value))


@parameters
@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 1), (1, 1)])
def test_parameters_broadcast_to_the_rows(parameter, shape):
    scores = random_scores(2, 3, 9)
    value = torch.tensor(parameter.values, dtype=torch.float64)[: int(np.prod(shape))].view(shape)
    expected = parameter(scores, value.expand(2, 3).contiguous())
    assert_close(parameter(scores, value), expected)
    # The row shape is that of scores without `dim`, wherever `dim` is.
    for dim in (0, 1):
        assert_close(parameter(scores.movedim(-1, dim), value, dim=dim).movedim(dim, -1), expected)


@pytest.mark.parametrize("shape", [(2, 3, 9), (9,), (3, 1), (1, 9), (2, 1, 1), (1,), ()])
def test_weights_broadcast_to_the_scores(shape):
    scores, weights = random_scores(2, 3, 9), torch.rand(shape, dtype=torch.float64)
    result, full = maps.weighted_softmax(scores, weights), weights.expand(2, 3, 9)
    for index in np.ndindex(2, 3):
        expected = rows.weighted_softmax(scores[index].numpy(), full[index].numpy())
        assert_close(result[index], torch.from_numpy(np.exp(expected)))


def test_weights_follow_dim_and_ignore_the_mask():
    scores, mask = random_scores(5, 4), random_mask(5, 4)
    weights = torch.rand(5, 4, dtype=torch.float64).masked_fill(~mask, np.nan)
    result = maps.weighted_softmax(scores.T, weights.T, mask=mask.T, dim=0).T
    for row, keep in enumerate(mask):
        expected = rows.weighted_softmax(scores[row, keep].numpy(), weights[row, keep].numpy())
        assert_close(result[row, keep], torch.from_numpy(np.exp(expected)))
    assert (result[~mask] == 0).all()


@parameters
def test_a_tensor_parameter_out_of_range_spoils_its_rows_alone(parameter):
    """Beyond an open end: the end itself is where learned values round to."""
    scores, good = torch.randn(2, 5), parameter.values[1]
    for value in set(parameter.outside) - {1.0, torch.inf, -torch.inf} | {torch.nan}:
        p = parameter(scores, torch.tensor([value, good]))
        assert p[0].isnan().all()
        assert_close(p[1], parameter(scores[1], good), rtol=1e-5, atol=1e-6)
