"""Forward mode, second derivatives and batched gradients of every mapping."""

import pytest
import torch
from torch.autograd import gradcheck
from torch.autograd.functional import hessian, jacobian

from .cases import CHECK, assert_close, calm, finite, forms, function_of, random_mask, smooth_scores
from .test_gradients import VALUES, tensor

# of PyTorch's own rules: for forward mode, and for operators without a rule for batches
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning"),
]
EVERY = {**CHECK, "check_forward_ad": True, "check_batched_grad": True}


@calm
@forms
def test_scores(case, log):
    scores, mask = smooth_scores(case, 2, 5).requires_grad_(), random_mask(2, 5)
    assert gradcheck(lambda z: finite(case(z, mask=mask, log=log)), scores, **EVERY)


@pytest.mark.parametrize(("name", "params"), VALUES, ids=[name for name, _ in VALUES])
@forms
def test_parameters(name, params, log):
    scores = torch.randn(4, 5, dtype=torch.float64).requires_grad_()
    tensors = [tensor(values, requires_grad=True) for values in params.values()]
    bound = {"bound": 3.0} if name == "plif" else {}

    def call(scores, *values):
        named = dict(zip(params, values, strict=True))
        return finite(function_of(name, log)(scores, **named, **bound))

    assert gradcheck(call, (scores, *tensors), **EVERY)


@calm
def test_second_derivatives(case):
    """Forward over reverse, as in torch.func, and reverse over reverse."""
    row, weights = smooth_scores(case, 6), torch.randn(6, dtype=torch.float64)

    def call(z):
        return (case(z) * weights).sum()

    expected = jacobian(lambda z: torch.func.grad(call)(z), row, create_graph=False)
    assert_close(torch.func.hessian(call)(row), expected)
    assert_close(hessian(call, row), expected)
    assert_close(hessian(call, row, vectorize=True), expected)
