"""torch.compile: one graph, the same numbers, few compilations."""

import functools
import itertools

import pytest
import torch
from torch._dynamo.backends.registry import lookup_backend
from torch._dynamo.testing import CompileCounterWithBackend
from torch.library import opcheck
from torch.utils._python_dispatch import TorchDispatchMode

from sparse_attn import Mapping
from sparse_attn.kernels import attention
from sparse_attn.kernels.operators import OperatorInputs
from tests.marks import first

from .backends import CPU, CUDA, TRITON, each, on
from .compiling import stubbed
from .problems import LEARNED, SOLVERS, Inputs, Problem

FIELDS = OperatorInputs._fields

pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    # Dynamo itself makes an instance of an autograd function, which torch deprecates
    pytest.mark.filterwarnings(
        "ignore:.*autograd.function.Function.* should not be instantiated:DeprecationWarning"
    ),
]
backends = each(CPU, CUDA)


def compiled(mapping, impl, compiler="aot_eager", **options):
    """attention(query, key, value, **tensors) in one graph, and the count of compilations."""
    counter = CompileCounterWithBackend(compiler)

    def function(query, key, value, **tensors):
        return attention(query, key, value, mapping, impl=impl, **options, **tensors)

    return torch.compile(function, backend=counter, fullgraph=True), counter


def assert_compiles(case, backend, compiler="aot_eager", impl=None, **tolerance):
    inputs = backend.inputs(case)
    impl = impl or backend.impl
    expected = inputs.solve(impl)
    tensors = {k: v for k, v in inputs.arguments.items() if torch.is_tensor(v)}
    fast, counter = compiled(inputs.mapping, impl, compiler, **case.options)
    leaves = inputs.leaves
    output = fast(inputs.query, inputs.key, inputs.value, **tensors)
    gradients = torch.autograd.grad(output, list(leaves.values()), inputs.grad)
    got = dict(zip(["output", *(f"d{n}" for n in leaves)], (output, *gradients), strict=True))
    torch.testing.assert_close(got, expected, **tolerance)
    assert counter.frame_count == 1


CASES = [
    *(Problem(name, params, queries=9, keys=13, mask="BHQK") for name, params in SOLVERS[::3]),
    *(
        Problem(name, params, learn=next(iter(params)), per_head=True, queries=9, keys=13)
        for name, params in LEARNED
        if name in ("sigsoftmax", "t-softmax", "entmax", "scaled-softmax")
    ),
    Problem("entmax", {"alpha": 1.5}, learn="alpha", key_lengths=(7, 20), bias="1H1K",
            heads=4, layout="transposed", options={"causal": True, "window": 5, "softcap": 9.0}),
    Problem("top-p-softmax", {"p": 0.5}, sink=0.5, queries=9, keys=13),
]  # fmt: skip


@pytest.mark.slow
@on(
    CASES,
    [Problem("r-softmax", {"r": 0.25}, learn="r", batch=1, queries=5, keys=9, dim=16, sink=0.5)],
)
def test_one_graph(backend, case):
    assert_compiles(case, backend, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_packed_sequences():
    size = {"batch": 1, "queries": 20, "keys": 20}
    case = Problem("scaled-r-softmax", {"r": 0.25, "beta": 0.5}, packed=(7, 0, 13), **size)
    assert_compiles(case, CPU, rtol=1e-6, atol=1e-6)
    fast, counter = compiled(Mapping("sparsemax"), "cpu", causal=True)
    for lengths in ((20,), (7, 13), (3, 3, 14), (1, 2, 3, 14)):
        inputs = Inputs(Problem("sparsemax", packed=lengths, options={"causal": True}, **size))
        ends = inputs.arguments["cu_seqlens"]
        output = fast(inputs.query, inputs.key, inputs.value, cu_seqlens=ends)
        torch.testing.assert_close(output, inputs.attend("reference"), rtol=1e-5, atol=1e-5)
    assert counter.frame_count <= 2
    with pytest.raises(ValueError, match="cu_seqlens: expected numbers rising from 0 to the len"):
        fast(inputs.query, inputs.key, inputs.value, cu_seqlens=torch.tensor([0, 2, 3, 17]))


@pytest.mark.parametrize("masks", [False, True])
def test_the_gradient_of_a_bias(masks):
    case = Problem("r-softmax", {"r": 0.25}, bias="1HQK", bias_learned=True, bias_masks=masks)
    assert_compiles(case, CPU, rtol=1e-6, atol=1e-6)


# torch's own inductor imports a module that torch deprecates
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.*is deprecated:DeprecationWarning")
@backends
def test_inductor(backend):
    case = Problem("r-softmax", {"r": 0.25}, learn="r", queries=9, keys=13, mask="B11K")
    assert_compiles(case, backend, "inductor", rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@backends
@pytest.mark.parametrize(("name", "values"), [("r-softmax", "r"), ("entmax", "alpha")])
def test_fixed_values_that_change_compile_at_most_once_more(backend, name, values):
    """A schedule changes the value at every step."""
    mapping = Mapping(name)
    inputs = backend.inputs(Problem(name))
    inputs.mapping = mapping
    fast, counter = compiled(mapping, backend.impl)
    seen = []
    for step in range(8):
        mapping.set_value(values, 0.1 * step if name == "r-softmax" else 1 + step / 8)
        output = fast(inputs.query, inputs.key, inputs.value)
        torch.testing.assert_close(output, inputs.attend(backend.impl), rtol=1e-6, atol=1e-6)
        seen.append(output.detach())
        assert counter.frame_count <= 2
    assert all((a - b).abs().max() > 1e-4 for a, b in itertools.pairwise(seen))


def kernels_of(mapping, steps):
    """The kernels of the graphs, as many as were compiled, while `steps` change the mapping."""
    kernels = []

    def recording(graph, inputs):
        calls = [n for n in graph.graph.nodes if "triton_forward" in str(n.target)]
        kernels.extend(n.args[FIELDS.index("kernel")] for n in calls)
        return lookup_backend("aot_eager")(graph, inputs)

    inputs = Inputs(Problem("softmax"))
    with stubbed():
        fast, _ = compiled(mapping, "triton", recording)
        for change in steps:
            change()
            fast(inputs.query, inputs.key, inputs.value)
    return kernels


FIXED = {1.0: "softmax", 1.5: "entmax-1.5", 2.0: "sparsemax", 1.25: "entmax"}


@pytest.mark.slow
@pytest.mark.parametrize("alpha", FIXED)
def test_a_constant_alpha_keeps_its_kernel(alpha):
    assert kernels_of(Mapping("entmax", alpha=alpha), [lambda: None] * 2) == [FIXED[alpha]]


@pytest.mark.slow
@pytest.mark.parametrize("late", [False, True])
def test_an_alpha_that_changes_has_the_kernel_of_all(late):
    """Also where it comes to 1.5 or 2: a graph for each value would be compiled again and again."""
    mapping = Mapping("entmax", alpha=1.5)
    values = (1.5, 1.25, 1.5, 1.75, 2.0)
    steps = [functools.partial(mapping.set_value, "alpha", value) for value in values]
    if late:
        steps[0] = lambda: None
    assert kernels_of(mapping, steps) == [*["entmax-1.5"] * late, "entmax"]


@backends
def test_lengths_that_change_compile_at_most_twice_more(backend):
    """Batches of sentences have every length; the first change makes the length a symbol."""
    fast, counter = compiled(Mapping("r-softmax", r=0.25), backend.impl)
    for length in (16, 23, 40, 57, 64, 31):
        inputs = backend.inputs(Problem("r-softmax", {"r": 0.25}, queries=length, keys=length))
        output = fast(inputs.query, inputs.key, inputs.value)
        torch.testing.assert_close(output, inputs.attend(backend.impl), rtol=1e-6, atol=1e-6)
    assert counter.frame_count <= 3


@backends
def test_dropout_in_a_graph(backend):
    """The seed is drawn when the graph runs, not when it is made."""
    fast, counter = compiled(Mapping("softmax"), backend.impl, dropout=0.5)
    unit = torch.eye(32, device=backend.device).expand(1, 1, 32, 32)
    query = torch.zeros(1, 1, 32, 32, device=backend.device, requires_grad=True)
    torch.manual_seed(4)
    first, second = fast(query, unit, unit), fast(query, unit, unit)
    torch.manual_seed(4)
    assert torch.equal(fast(query, unit, unit), first)
    assert not torch.equal(first, second)
    share = (first != 0).float().mean()
    assert 0.4 < share < 0.6
    assert counter.frame_count == 1


@backends
def test_dropout_in_a_graph_has_one_mask_in_both_passes(backend):
    fast, _ = compiled(Mapping("sparsemax"), backend.impl, dropout=0.5)
    inputs = backend.inputs(Problem("sparsemax"))
    output = fast(inputs.query, inputs.key, inputs.value)
    (gradient,) = torch.autograd.grad(output, inputs.value, inputs.grad)
    left, right = (gradient * inputs.value).sum(), (output * inputs.grad).sum()
    torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["softmax", "r-softmax"])
def test_without_impl(name):
    """The choice is made while tracing."""
    assert_compiles(Problem(name), CPU, impl="reference", rtol=1e-5, atol=1e-5)
    fast, counter = compiled(Mapping(name), None)
    inputs = Inputs(Problem(name))
    output = fast(inputs.query, inputs.key, inputs.value)
    torch.testing.assert_close(output, inputs.attend("reference"), rtol=1e-5, atol=1e-5)
    assert counter.frame_count == 1


# opcheck of torch 2.14 reads .grad of every argument that requires one
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@each(CPU, TRITON, CUDA)
@pytest.mark.parametrize(
    "case",
    first(
        Problem("sigsoftmax", {"bias": 0.5}, learn="bias", per_head=True, mask="B11K", dim=16),
        Problem("entmax", {"alpha": 1.25}, sink=0.5, bias="1HQK", keys=9, queries=5, dim=16),
    ),
    ids=str,
)
def test_the_operators_do_what_they_declare(backend, case, monkeypatch):
    """Their schema, their gradients, what they return without computing, and in a graph."""
    # what a kernel leaves as it was is not compared, and what it keeps may be NaN
    monkeypatch.setattr(torch.Tensor, "new_empty", torch.Tensor.new_zeros)
    equal = functools.partial(torch.testing.assert_close, equal_nan=True)
    monkeypatch.setattr(torch.testing, "assert_close", equal)
    with Calls() as calls:
        backend.inputs(case).solve(backend.impl)
    assert len(calls.found) == 2
    for operator, arguments in calls.found:
        opcheck(operator, arguments)


class Calls(TorchDispatchMode):
    """Calls of the operators, with arguments of their own."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "sparse_attn":
            forward = "forward" in function.name()
            own = [
                t.detach().clone().requires_grad_(t.requires_grad and forward)
                if torch.is_tensor(t)
                else t
                for t in args
            ]
            self.found.append((function, own))
        return function(*args, **(kwargs or {}))
