"""torch.compile in one graph, torch.vmap, and what else transforms a function."""

import pytest
import torch
from packaging.version import Version

from sparse_attn import functional as maps

from .cases import (
    FLOAT64,
    assert_close,
    function_of,
    learnable,
    one_each,
    random_mask,
    random_scores,
)

# The tracer of torch.compile instantiates autograd functions, of which torch itself then warns.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*autograd.function.Function.* should not be instantiated:DeprecationWarning"
)


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def value_and_gradients(function, *leaves):
    leaves = [leaf.clone().requires_grad_() for leaf in leaves]
    result = function(*leaves)
    weight = torch.arange(1.0, 1.0 + result.shape[-1]).cos()
    finite = torch.where(result.isfinite(), result, 0)
    return result.detach(), *torch.autograd.grad((finite * weight).sum(), leaves)


def assert_compiles(function, *leaves, backend="aot_eager", **tolerance):
    compiled = torch.compile(function, fullgraph=True, backend=backend)
    expected = value_and_gradients(function, *leaves)
    for got, wanted in zip(value_and_gradients(compiled, *leaves), expected, strict=True):
        torch.testing.assert_close(got, wanted, **tolerance)


@pytest.mark.slow
@one_each
def test_compiles_in_one_graph(case):
    mask = random_mask(3, 9)

    def both(scores):
        return torch.stack([case(scores, mask=mask, log=log) for log in (False, True)])

    assert_compiles(both, random_scores(3, 9), **FLOAT64)


@pytest.mark.slow
@learnable
def test_compiles_with_a_learned_parameter(parameter):
    value = torch.full((3,), parameter.values[1], dtype=torch.float64)
    assert_compiles(parameter, random_scores(3, 9), value, **FLOAT64)


# torch's own inductor imports a module that torch deprecates.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.*is deprecated:DeprecationWarning")
def test_compiles_with_inductor():
    """The default backend fuses and reorders float32 operations, so a few roundings may differ."""
    mask, scores = random_mask(5, 70), random_scores(5, 70, dtype=torch.float32)

    def function(z):
        return maps.r_softmax(z, 0.3, mask=mask)

    assert_compiles(function, scores, backend="inductor", rtol=1e-5, atol=1e-6)


# In-place operations have no batching rule of their own, which costs time only.
@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@one_each
def test_vmap_equals_a_batch(case):
    if case.name == "random-drop-softmax" and Version(torch.__version__) < Version("2.12"):
        pytest.skip("torch 2.11 has no vmap of a tensor seen as another dtype")
    scores, mask = random_scores(4, 3, 9), random_mask(4, 3, 9)
    mapped = torch.vmap(lambda z, keep: case(z, mask=keep))(scores, mask)
    assert_close(mapped, case(scores, mask=mask))


@one_each
def test_runs_without_data(case):
    """On the meta device nothing may look at a value: no synchronisation on an accelerator."""
    scores = torch.empty(3, 9, device="meta")
    if case.name in ("plif", "monotone"):
        params = {k: v.to("meta") if torch.is_tensor(v) else v for k, v in
                  case.arguments(scores).items()}  # fmt: skip
        assert function_of(case.name)(scores, **params).shape == (3, 9)
        return
    mask = torch.empty(3, 9, dtype=torch.bool, device="meta")
    assert case(scores, mask=mask).shape == (3, 9)
    assert case(scores, mask=mask, log=True).shape == (3, 9)
