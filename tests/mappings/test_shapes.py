"""Any shape, any dimension, any memory layout; parameters as numbers or one tensor for the rows."""

import numpy as np
import pytest
import torch

from sparse_attn import functional as maps

from . import rows
from .cases import CASES, FLOAT64, ONE_EACH, random_mask, random_scores

cases = pytest.mark.parametrize("case", CASES, ids=str)
one_each = pytest.mark.parametrize("case", ONE_EACH, ids=str)
forms = pytest.mark.parametrize("log", [False, True], ids=["p", "log"])


@one_each
@forms
@pytest.mark.parametrize("shape", [(5,), (1,), (3, 5), (2, 3, 5), (2, 1, 3, 5), (2, 3, 1)])
def test_a_batch_equals_a_loop(case, shape, log):
    scores, mask = random_scores(*shape), torch.rand(shape) < 0.7
    batch = case(scores, mask=mask, log=log)
    assert batch.shape == scores.shape
    for index in np.ndindex(shape[:-1]):
        alone = case(scores[index], mask=mask[index], log=log)
        torch.testing.assert_close(batch[index], alone, **FLOAT64)


@one_each
@forms
@pytest.mark.parametrize("shape", [(0, 5), (2, 0, 5), (3, 0)])
def test_nothing_in_nothing_out(case, shape, log):
    """An empty batch, and rows of no position at all, keep their shape."""
    scores = torch.zeros(shape, requires_grad=True)
    result = case(scores, log=log)
    assert result.shape == shape
    result.sum().backward()
    assert scores.grad.shape == shape


@cases
@forms
@pytest.mark.parametrize("dim", [0, 1, 2, -2, -3])
def test_any_dimension(case, dim, log):
    scores, mask = random_scores(4, 5, 6), random_mask(4, 5, 6)
    moved = case(scores.movedim(dim, -1), mask=mask.movedim(dim, -1), log=log).movedim(-1, dim)
    result = case(scores, mask=mask, dim=dim, log=log)
    assert result.shape == scores.shape
    torch.testing.assert_close(result, moved, **FLOAT64)


@cases
def test_any_memory_layout(case):
    """Transposed, strided, expanded and offset scores give what their copies give."""
    base = random_scores(6, 8, 10)
    views = [
        base.transpose(0, 2),
        base[::2, 1::3],
        base[:1].expand(3, 8, 10),
        base.permute(2, 0, 1)[1:],
        base.unfold(-1, 4, 2),
    ]
    for view in views:
        torch.testing.assert_close(case(view), case(view.clone().contiguous()), **FLOAT64)
        mask = (torch.rand(view.shape[::-1]) < 0.6).permute(*range(view.dim())[::-1])
        copied = case(view.clone().contiguous(), mask=mask.contiguous())
        torch.testing.assert_close(case(view, mask=mask), copied, **FLOAT64)


@one_each
@forms
def test_arguments_are_left_untouched(case, log):
    scores, mask = random_scores(3, 7), random_mask(3, 7)
    before = scores.clone(), mask.clone()
    case(scores, mask=mask, log=log)
    assert torch.equal(scores, before[0])
    assert torch.equal(mask, before[1])


@one_each
def test_the_result_is_reproducible(case):
    scores, mask = random_scores(3, 200), random_mask(3, 200)
    assert torch.equal(case(scores, mask=mask), case(scores, mask=mask))


# Parameters as tensors

PARAMETERS = [
    ("t_softmax", "t", rows.t_softmax, [0.5, 2.0, 1.0, 0.0, np.inf, 7.0]),
    ("r_softmax", "r", rows.r_softmax, [0.1, 0.45, 0.0, 1.0, 0.8, 0.33]),
    ("sparsegen", "lam", rows.sparsegen, [0.9, 0.0, -1.0, 0.5, -20.0, 0.3]),
    ("sparsecone", "q", rows.sparsecone, [0.0, 0.1, 1.0, 10.0, 0.5, 3.0]),
    ("sparsehourglass", "q", rows.sparsehourglass, [0.0, 0.1, 1.0, 10.0, 0.5, 3.0]),
    ("entmax", "alpha", rows.entmax, [1.0, 1.5, 2.0, 1.25, 1.001, 1.75]),
    ("sigsoftmax", "bias", rows.sigsoftmax, [0.0, -3.0, 2.0, 50.0, -50.0, 0.7]),
    ("spherical_softmax", "eps", rows.spherical_softmax, [0.0, 0.0198, 1.0, 100.0, 0.5, 1e-3]),
    ("temperature_softmax", "temperature", rows.temperature_softmax, [1.0, 0.5, 2.0, 9.0, 0.1, 3]),
    ("top_k_softmax", "k", rows.top_k_softmax, [1.0, 2.0, 2.1, 9.0, np.inf, 5.0]),
    ("random_drop_softmax", "r", rows.random_drop_softmax, [0.1, 0.45, 0.0, 1.0, 0.8, 0.33]),
]
parameters = pytest.mark.parametrize(
    ("name", "argument", "reference", "values"), PARAMETERS, ids=[p[0] for p in PARAMETERS]
)


@parameters
def test_a_parameter_for_each_row(name, argument, reference, values):
    """A tensor of the row shape equals the loop over rows, and the independent reference."""
    scores, values = random_scores(2, 3, 9), torch.tensor(values, dtype=torch.float64).view(2, 3)
    result = getattr(maps, name)(scores, **{argument: values})
    log_result = getattr(maps, f"log_{name}")(scores, **{argument: values})
    for index in np.ndindex(2, 3):
        value = values[index].item()
        alone = getattr(maps, name)(scores[index], **{argument: value})
        torch.testing.assert_close(result[index], alone, **FLOAT64)
        torch.testing.assert_close(log_result[index].exp(), alone, **FLOAT64)
        expected = np.exp(reference(scores[index].numpy(), value))
        torch.testing.assert_close(result[index], torch.from_numpy(expected), **FLOAT64)


@parameters
@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 1), (1, 1)])
def test_parameters_broadcast_to_the_rows(name, argument, reference, values, shape):
    scores = random_scores(2, 3, 9)
    value = torch.tensor(values, dtype=torch.float64)[: int(np.prod(shape))].reshape(shape)
    full = value.expand(2, 3).contiguous()
    call = getattr(maps, name)
    expected = call(scores, **{argument: full})
    torch.testing.assert_close(call(scores, **{argument: value}), expected, **FLOAT64)
    # The row shape is that of scores without `dim`, wherever `dim` is.
    for dim in (0, 1):
        moved = call(scores.movedim(-1, dim), **{argument: value}, dim=dim)
        torch.testing.assert_close(moved.movedim(dim, -1), expected, **FLOAT64)


@parameters
def test_a_tensor_parameter_must_fit_the_rows(name, argument, reference, values):
    call = getattr(maps, name)
    for shape in [(9,), (3, 1, 1), (2, 3, 9), (2, 3, 1)]:
        with pytest.raises(ValueError, match=argument):
            call(random_scores(2, 3, 9), **{argument: torch.full(shape, 1.0)})


@parameters
def test_a_float_equals_the_same_tensor(name, argument, reference, values):
    scores, mask = random_scores(4, 9), random_mask(4, 9)
    call = getattr(maps, name)
    for value in values:
        tensor = torch.tensor(value, dtype=torch.float64)
        expected = call(scores, **{argument: tensor}, mask=mask)
        torch.testing.assert_close(
            call(scores, **{argument: value}, mask=mask), expected, **FLOAT64
        )


@pytest.mark.parametrize("shape", [(2, 3, 9), (9,), (3, 1), (1, 9), (2, 1, 1), (1,), ()])
def test_weights_broadcast_to_the_scores(shape):
    scores, weights = random_scores(2, 3, 9), torch.rand(shape, dtype=torch.float64)
    result = maps.weighted_softmax(scores, weights)
    full = weights.expand(2, 3, 9).contiguous()
    for index in np.ndindex(2, 3):
        expected = rows.weighted_softmax(scores[index].numpy(), full[index].numpy())
        expected = torch.from_numpy(np.exp(expected))
        torch.testing.assert_close(result[index], expected, **FLOAT64)


def test_weights_follow_dim_and_ignore_the_mask():
    scores, mask = random_scores(5, 4), random_mask(5, 4)
    weights = torch.rand(5, 4, dtype=torch.float64).masked_fill(~mask, np.nan)
    result = maps.weighted_softmax(scores.T, weights.T, mask=mask.T, dim=0).T
    for row in range(5):
        keep = mask[row]
        expected = rows.weighted_softmax(scores[row, keep].numpy(), weights[row, keep].numpy())
        torch.testing.assert_close(result[row, keep], torch.from_numpy(np.exp(expected)), **FLOAT64)
    assert (result[~mask] == 0).all()


def test_weights_must_fit_the_scores():
    for shape in [(4,), (3, 5), (2, 2, 5)]:
        with pytest.raises(ValueError, match="weights"):
            maps.weighted_softmax(random_scores(2, 5), torch.ones(shape))


# Arguments that cannot be served

RANGES = [
    ("r_softmax", "r", [-0.1, 1.1, np.nan, np.inf], ("0", "1")),
    ("t_softmax", "t", [-0.5, np.nan, -np.inf], ("0",)),
    ("sparsegen", "lam", [1.0, 1.5, np.nan, np.inf], ("1",)),
    ("sparsecone", "q", [-0.5, np.inf, np.nan], ("0",)),
    ("sparsehourglass", "q", [-0.5, np.inf, np.nan], ("0",)),
    ("entmax", "alpha", [0.9, -1.5, np.inf, np.nan], ("1",)),
    ("sigsoftmax", "bias", [np.inf, -np.inf, np.nan], ("inf",)),
    ("spherical_softmax", "eps", [-0.5, np.inf, np.nan], ("0",)),
    ("temperature_softmax", "temperature", [0.0, -1.0, np.inf, np.nan], ("0.001",)),
    ("top_k_softmax", "k", [0.5, -3.0, -np.inf, np.nan], ("1",)),
    ("random_drop_softmax", "r", [-0.1, 1.1, np.nan, np.inf], ("0", "1")),
]


@pytest.mark.parametrize(("name", "argument", "values", "bounds"), RANGES)
@pytest.mark.parametrize("prefix", ["", "log_"])
def test_values_out_of_range(name, argument, values, bounds, prefix):
    """ValueError, naming the argument, the value and the range."""
    for value in values:
        with pytest.raises(ValueError, match=rf"\b{argument}\b") as error:
            getattr(maps, prefix + name)(random_scores(2, 5), **{argument: value})
        message = str(error.value)
        assert str(value) in message
        rest = message.replace(str(value), "", 1)
        assert all(bound in rest for bound in bounds)


@one_each
@forms
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.uint8])
def test_scores_must_be_floating_point(case, log, dtype):
    if case.name == "weighted-softmax":
        call = maps.log_weighted_softmax if log else maps.weighted_softmax
        with pytest.raises(TypeError, match="scores"):
            call(torch.ones(2, 3, dtype=dtype), 1.0)
        return
    with pytest.raises(TypeError, match="scores"):
        case(torch.ones(2, 3, dtype=dtype), log=log)


def test_an_unknown_gradient_is_refused():
    with pytest.raises(ValueError, match=r"gradient.*'exakt'.*exact.*detached"):
        maps.r_softmax(random_scores(2, 5), 0.3, gradient="exakt")
    with pytest.raises(ValueError, match=r"gradient.*'exakt'.*exact.*detached"):
        maps.log_r_softmax(random_scores(2, 5), 0.3, gradient="exakt")
