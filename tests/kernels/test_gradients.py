"""Gradients against finite differences, and which tensors may ask for them."""

import pytest
import torch
from torch.autograd import forward_ad
from torch.autograd.functional import jacobian

from sparse_attn import Mapping
from sparse_attn.kernels import attention

from .backends import CPU, TRITON, each
from .problems import LEARNED, SETTINGS, SOLVERS, Inputs, Problem

SMOOTH = [
    s for s in SETTINGS if s[1] not in ({"r": 1.0}, {"t": 0.0}) and s != ("sparsecone", {"q": 0.0})
]


@pytest.mark.parametrize(("name", "params"), SMOOTH)
def test_gradcheck_on_the_cpu(name, params):
    """Random scores are away from the kinks."""
    shape = {"batch": 1, "heads": 2, "kv_heads": 1, "queries": 3, "keys": 5, "dim": 3}
    case = Problem(name, params, bias="HQK", bias_learned=True, **shape)
    inputs = Inputs(case, torch.float64, torch.float64)
    leaves = (inputs.query, inputs.key, inputs.value, inputs.arguments["bias"])

    def function(query, key, value, bias):
        # a softcap goes before the factor of scaled-NAME, which the kernels do not do
        softcap = None if name.startswith("scaled-") else 8.0
        options = {"bias": bias, "causal": True, "softcap": softcap, "impl": "cpu"}
        return attention(query, key, value, inputs.mapping, **options)

    assert torch.autograd.gradcheck(function, leaves, eps=1e-6, atol=1e-6)


@each()
@pytest.mark.parametrize(("name", "params"), LEARNED)
def test_parameters_against_finite_differences(backend, name, params):
    """The reference in float64, with the parameter moved both ways, knows no chain rule."""
    (parameter, at), step = next(iter(params.items())), 2.0**-12
    case = Problem(name, params, learn=parameter, heads=1, kv_heads=1, queries=5, keys=9, dim=16)
    inputs = backend.inputs(case)
    inputs.solve(backend.impl)
    raw = getattr(inputs.mapping, f"raw_{parameter}")
    (got,) = torch.autograd.grad((inputs.attend(backend.impl) * inputs.grad).sum(), raw)
    (inside,) = torch.autograd.grad(inputs.mapping.value(parameter).sum(), raw)
    ends = []
    for value in (at + step, at - step):
        wide = Inputs(case, torch.float32, torch.float64, backend.device)
        wide.mapping = Mapping(name, **{parameter: value})
        ends.append((wide.attend("reference") * wide.grad).sum())
    slope = (ends[0] - ends[1]) / (2 * step) * inside
    torch.testing.assert_close(got.double(), slope.double(), rtol=5e-3, atol=5e-3)


WANTED = ["query", "key", "value", "parameter", "query value", "key parameter"]


@pytest.mark.parametrize("wanted", WANTED)
@each()
@pytest.mark.parametrize(("name", "params"), [("r-softmax", {"r": 0.3125}), ("sigsoftmax", {})])
def test_any_part_of_the_gradients_alone(backend, name, params, wanted):
    learn = "r" if name == "r-softmax" else "bias"
    inputs = backend.inputs(Problem(name, params, learn=learn, queries=5, keys=9, dim=16))
    names = wanted.replace("parameter", f"raw_{learn}").split()
    everything = inputs.solve(backend.impl)
    for leaf_name, leaf in inputs.leaves.items():
        leaf.requires_grad_(leaf_name in names)
    leaves = [inputs.leaves[leaf_name] for leaf_name in names]
    got = torch.autograd.grad(inputs.attend(backend.impl), leaves, inputs.grad)
    expected = tuple(everything[f"d{leaf_name}"] for leaf_name in names)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=2e-6)


@each()
def test_no_gradient_is_asked_for(backend):
    inputs = backend.inputs(Problem("r-softmax", {"r": 0.3125}))
    with torch.no_grad():
        assert not inputs.attend(backend.impl).requires_grad
    with torch.inference_mode():
        inputs.attend(backend.impl)
    for leaf in (inputs.query, inputs.key, inputs.value):
        leaf.requires_grad_(False)
    assert not inputs.attend(backend.impl).requires_grad


@each()
@pytest.mark.parametrize(("name", "params"), SOLVERS)
def test_gradients_of_any_strides(backend, name, params):
    """The gradient of a sum has stride 0; one that comes back through a transpose is not dense."""
    inputs = backend.inputs(Problem(name, params, dim=16))
    leaves = list(inputs.leaves.values())
    output = inputs.attend(backend.impl)
    ones = torch.ones_like(output)
    expected = torch.autograd.grad(output, leaves, ones, retain_graph=True)
    summed = torch.autograd.grad(output.sum(), leaves, retain_graph=True)
    moved = inputs.grad.transpose(1, 2).contiguous().transpose(1, 2)
    assert not moved.is_contiguous()
    torch.testing.assert_close(summed, expected, rtol=0, atol=0)
    dense = torch.autograd.grad(output, leaves, inputs.grad, retain_graph=True)
    strided = torch.autograd.grad(output, leaves, moved)
    torch.testing.assert_close(strided, dense, rtol=0, atol=0)


@each()
def test_gradients_are_linear_in_the_incoming_one(backend):
    inputs = backend.inputs(Problem("entmax", {"alpha": 1.5}, dim=16))
    leaves = list(inputs.leaves.values())
    output = inputs.attend(backend.impl)
    zero = torch.autograd.grad(output, leaves, torch.zeros_like(output), retain_graph=True)
    assert all((g == 0).all() for g in zero)
    once = torch.autograd.grad(output, leaves, inputs.grad, retain_graph=True)
    twice = torch.autograd.grad(output, leaves, 2 * inputs.grad)
    torch.testing.assert_close(twice, tuple(2 * g for g in once), rtol=0, atol=0)


@each()
def test_gradients_accumulate_where_one_tensor_is_all_three(backend):
    """query is key is value, as in the simplest self-attention."""
    states = torch.randn(1, 2, 9, 16, device=backend.device, requires_grad=True)
    mapping = Mapping("sparsemax")
    got, wanted = (
        torch.autograd.grad(
            attention(states, states, states, mapping, impl=i).square().sum(), states
        )
        for i in (backend.impl, "reference")
    )
    torch.testing.assert_close(got[0], wanted[0], rtol=1e-4, atol=1e-5)


@each()
def test_inputs_changed_in_place_are_noticed(backend):
    """The backward pass computes the weights once more, from what it saved."""
    inputs = backend.inputs(Problem("sparsemax", dim=16))
    leaf, inputs.key = inputs.key, inputs.key * 1
    output = inputs.attend(backend.impl)
    inputs.key.mul_(2)
    with pytest.raises(RuntimeError, match="inplace"):
        torch.autograd.grad(output.sum(), leaf)


@each()
def test_second_derivatives_name_the_remedy(backend):
    inputs = backend.inputs(Problem("sigsoftmax", dim=16))
    output = inputs.attend(backend.impl)
    (first,) = torch.autograd.grad(output.square().sum(), inputs.query, create_graph=True)
    with pytest.raises(NotImplementedError, match="impl='reference'"):
        first.square().sum().backward()


@each()
def test_gradients_at_once_name_the_remedy(backend):
    inputs = backend.inputs(Problem("sigsoftmax", dim=16))
    output = inputs.attend(backend.impl)
    grads = torch.stack([inputs.grad, inputs.grad])

    def gradient(grad):
        return torch.autograd.grad(output, inputs.query, grad, retain_graph=True)

    with pytest.raises(NotImplementedError, match=r"one gradient at a time.*impl='reference'"):
        torch.autograd.grad(output, inputs.query, grads, is_grads_batched=True, retain_graph=True)
    with pytest.raises(NotImplementedError, match=r"one gradient at a time.*impl='reference'"):
        torch.vmap(gradient)(grads)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.parametrize(("name", "params"), [*LEARNED, ("plif", {"knots": 9}), ("monotone", {})])
def test_the_reference_has_gradients_at_once_and_forward_mode(name, params):
    mapping = Mapping(name, learn=tuple(params) if "knots" not in params else (), **params)
    query, key, value = torch.randn(3, 1, 2, 6, 4).double().requires_grad_()
    key_lengths = torch.tensor([5])

    def call(query):
        options = {"key_lengths": key_lengths, "impl": "reference"}
        return attention(query, key, value, mapping, **options).sum((0, 1))

    expected = jacobian(call, query)
    for strategy in ("reverse-mode", "forward-mode"):
        got = jacobian(call, query, vectorize=True, strategy=strategy)
        torch.testing.assert_close(got, expected)
    assert expected.norm() > 0


# PyTorch's own rules for forward mode
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_forward_mode_and_functorch_take_the_reference():
    inputs = Inputs(Problem("softmax", dim=16))
    query, tangent = inputs.query.detach(), torch.randn_like(inputs.query)

    def run(query, impl=None):
        inputs.query = query
        return inputs.attend(impl)

    out, got = torch.func.jvp(run, (query,), (tangent,))
    _, want = torch.func.jvp(lambda q: run(q, "reference"), (query,), (tangent,))
    torch.testing.assert_close(got, want)
    assert got.norm() > 0
    assert torch.func.grad(lambda q: run(q).sum())(query).shape == out.shape


@each(CPU, TRITON)
def test_equal_scores_still_learn(backend):
    """A projection that starts at zero makes all scores equal; r-softmax must let it move."""
    inputs = backend.inputs(Problem("r-softmax", spread=0.0, queries=8, keys=8, dim=16))
    (gradient,) = torch.autograd.grad(inputs.attend(backend.impl).square().sum(), inputs.query)
    assert gradient.norm() > 0.01


def test_a_masking_bias_does_not_spoil_what_scales_it():
    q, k, v = (torch.randn(1, 2, 9, 8) for _ in range(3))
    bias = torch.full((9, 9), -torch.inf).triu(1)
    slopes = []
    for impl in ("cpu", "reference"):
        mapping = Mapping("scaled-softmax", learn="beta")
        attention(q, k, v, mapping, bias=bias, impl=impl).square().sum().backward()
        slopes.append(mapping.raw_beta.grad)
    torch.testing.assert_close(*slopes, rtol=1e-4, atol=1e-5)


def test_a_constant_of_the_kernels_may_differ_by_head():
    q, k, v = (torch.randn(1, 2, 9, 8) for _ in range(3))
    mapping = Mapping("clipped-softmax", zeta=[1.0, 1.25], num_heads=2)
    expected = attention(q, k, v, mapping, impl="reference")
    torch.testing.assert_close(attention(q, k, v, mapping), expected)


def test_forward_mode_of_a_sink():
    q, k, v = (torch.randn(1, 2, 9, 8) for _ in range(3))

    def call(sink):
        return attention(q, k, v, Mapping("softmax"), sink=sink)

    with forward_ad.dual_level():
        dual = forward_ad.make_dual(torch.zeros(2), torch.ones(2))
        assert forward_ad.unpack_dual(call(dual)).tangent.abs().sum() > 0
