"""Which implementation does a call: the one that is named, or one that can."""

import math

import pytest
import torch

from sparse_attn import Mapping, MappingSpec, mapping_names, register_mapping
from sparse_attn import functional as maps
from sparse_attn.kernels import attention, dispatch
from sparse_attn.kernels.inputs import AttentionInputs
from sparse_attn.mappings import ParameterSpec
from sparse_attn.mappings.base import on_rows
from sparse_attn.mappings.pointwise import normalize

from .backends import CPU, CUDA, FLEX, MARKS, REFERENCE, TRITON, each
from .problems import Inputs, Problem, rows_call

SMALL = Problem("softmax", queries=5, keys=9, dim=16)


def solved(mapping, impl, device="cpu", dtype=torch.float32, **options):
    inputs = Inputs(SMALL, dtype, dtype, device)
    inputs.mapping = mapping.to(device)
    return inputs.solve(impl, **options)


def assert_equal_to_reference(mapping, impl=None, **options):
    """With gradients and without, where FlexAttention can do more on the CPU."""
    expected = solved(mapping, "reference", **options)
    torch.testing.assert_close(solved(mapping, impl, **options), expected, rtol=1e-4, atol=1e-5)
    inputs = Inputs(SMALL)
    inputs.mapping = mapping
    with torch.no_grad():
        got, want = (inputs.attend(i, **options) for i in (impl, "reference"))
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("name", mapping_names())
def test_without_impl_every_mapping_works(name):
    mapping = Mapping(name)
    assert_equal_to_reference(mapping)
    assert_equal_to_reference(mapping, causal=True, key_lengths=torch.tensor([4, 9]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", ["r-softmax", "plif"])
def test_without_impl_every_dtype_works(name, dtype):
    result = solved(Mapping(name), None, dtype=dtype)
    assert result["output"].dtype == dtype
    assert result["dquery"].isfinite().all()


@pytest.mark.parametrize("shape", [(0, 2, 3, 4), (2, 2, 0, 4), (2, 2, 3, 0)], ids=str)
@pytest.mark.parametrize("impl", [None, "cpu", "triton", "flex", "reference"])
def test_empty_calls(impl, shape):
    """No sequences, no queries, or no keys: an empty output, or zeros; or a reason."""
    batch, heads, queries, keys = shape
    query = torch.randn(batch, heads, queries, 8, requires_grad=True)
    key = torch.randn(batch, heads, keys, 8, requires_grad=True)
    try:
        output = attention(query, key, key, Mapping("r-softmax"), impl=impl)
    except NotImplementedError as error:
        assert impl is not None
        assert len(str(error)) > 40  # noqa: PT017
        return
    assert output.shape == (batch, heads, queries, 8)
    assert (output == 0).all()
    gradients = torch.autograd.grad(output.sum(), (query, key))
    assert all((g == 0).all() for g in gradients)


CANNOT = [
    *((b, Mapping(n), {}, n) for b in (CPU, TRITON, CUDA, FLEX) for n in ("plif", "monotone")),
    (FLEX, Mapping("r-softmax"), {}, "r-softmax"),
    (FLEX, Mapping("softmax"), {"dropout": 0.1}, r"dropout=0\.1"),
    (FLEX, Mapping("softmax"), {}, "CPU"),
    (FLEX, Mapping("sigsoftmax", learn="bias"), {}, "CPU"),
    (FLEX, Mapping("softmax"), {"key_lengths": torch.tensor([3, 5])}, "padding"),
    *((b, Mapping("softmax"), {"dtype": torch.float64}, "float64") for b in (TRITON, CUDA, FLEX)),
    *((b, Mapping("softmax"), {"bias": torch.zeros(9, requires_grad=True)}, "bias")
      for b in (TRITON, CUDA)),
    *((b, Mapping("scaled-softmax", learn="beta"), {"bias": torch.zeros(9)}, "bias")
      for b in (TRITON, CUDA)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("backend", "mapping", "changed", "reason"),
    [pytest.param(*row, marks=MARKS[row[0]], id=f"{row[0]}-{row[-1]}") for row in CANNOT],
)
def test_a_named_implementation_that_cannot_says_why(backend, mapping, changed, reason):
    says = rf"impl='{backend.impl}' does not support.*{reason}.*omit impl"
    changed = {k: v.to(backend.device) if torch.is_tensor(v) else v for k, v in changed.items()}
    with pytest.raises(NotImplementedError, match=says):
        solved(mapping, backend.impl, backend.device, **changed)


@pytest.mark.parametrize("dims", [(8, 16), (16, 8), (264, 264)])
@each(TRITON, CUDA)
def test_triton_refuses_head_dims(backend, dims):
    dim, value_dim = dims
    inputs = backend.inputs(Problem("softmax", queries=3, keys=5, dim=dim, value_dim=value_dim))
    with pytest.raises(NotImplementedError, match="dim"):
        inputs.attend("triton")


@pytest.mark.parametrize("name", sorted(dispatch.IMPLEMENTATIONS))
def test_an_implementation_that_refuses_is_passed_over(name, monkeypatch):
    """Without impl, whatever is left does the call."""
    if name == "reference":
        pytest.skip("the reference does every call")
    monkeypatch.setattr(
        dispatch.IMPLEMENTATIONS[name], "unsupported_reason", lambda inputs: "not today"
    )
    with pytest.raises(NotImplementedError, match="not today"):
        solved(Mapping("softmax"), name)
    assert_equal_to_reference(Mapping("softmax"))


# Weighted softmax


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("shape", [(), (9,), (5, 9), (2, 1, 9), (1, 2, 5, 1), (2, 1, 1, 9), (1,)])
@each(CPU, TRITON, CUDA)
def test_weighted_softmax(backend, shape, biased):
    """As softmax of scores and log weights; a weight of 0 drops the key."""
    weights = torch.rand(shape).mul(2) * (torch.rand(shape) < 0.8)
    mapping = Mapping("weighted-softmax", weights=weights.tolist())
    bias = torch.randn(2, 1, 1, 9) if biased else torch.zeros(9)
    options = {"bias": bias.to(backend.device)} if biased else {}
    got = solved(mapping, backend.impl, backend.device, **options)
    inputs = Inputs(SMALL, torch.float32, torch.float64)
    scores = inputs.query @ inputs.key.mT / 4 + bias
    p = maps.weighted_softmax(scores, weights.double().expand(scores.shape))
    output = p @ inputs.value
    wanted = torch.autograd.grad(output, (inputs.query, inputs.key, inputs.value), inputs.grad)
    names = ("output", "dquery", "dkey", "dvalue")
    for name, value in zip(names, (output, *wanted), strict=True):
        torch.testing.assert_close(got[name].double().cpu(), value, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("weighted-softmax", {"weights": [0.1, 0.3]}),
        ("t-softmax", {"t": [2.1, 3.3]}),
        ("r-softmax", {"r": [0.1, 0.3]}),
        ("entmax", {"alpha": [1.1, 1.3]}),
        ("scaled-softmax", {"beta": [0.1, 0.3]}),
        ("clipped-softmax", {"gamma": [-0.1, -0.3]}),
        ("sigmoid", {"bias": [0.1, 0.3]}),
        ("softmax", {"sink": [0.1, 0.3]}),
    ],
)
@each(REFERENCE, CPU)
def test_float64_has_every_digit_of_the_values(backend, name, values):
    """Also of one value for each head, which float32 would round."""
    scores = torch.randn(1, 2, 1, 2, dtype=torch.float64)
    zero = torch.zeros(1, 2, 2, 1, dtype=torch.float64)
    unit = torch.eye(2, dtype=torch.float64).expand(1, 2, 2, 2)
    mapping = Mapping(name, num_heads=None if "weights" in values else 2, **values)
    got = attention(zero[..., :1, :], zero, unit, mapping, bias=scores, impl=backend.impl)
    if "weights" in values:
        mass = torch.tensor(values["weights"], dtype=torch.float64) * scores.exp()
        wanted = mass / mass.sum(-1, keepdim=True)
    else:
        ((given, numbers),) = values.items()
        rows = zip(scores.unbind(1), numbers, strict=True)
        wanted = torch.stack([Mapping(name, **{given: one})(row) for row, one in rows], 1)
    torch.testing.assert_close(got, wanted, rtol=1e-13, atol=1e-15)


@each(CPU, TRITON, CUDA)
def test_weighted_softmax_without_weights_gives_zeros(backend):
    result = solved(Mapping("weighted-softmax", weights=0.0), backend.impl, backend.device)
    for name, value in result.items():
        assert (value == 0).all(), name


# Mappings of one's own


def cosine_log_g(z, *values):
    """1 + cos(z) / 2, or with an amplitude, a frequency."""
    amplitude, frequency = (*values, 0.5, 1.0)[: max(2, len(values))] if values else (0.5, 1.0)
    return torch.log1p(amplitude * torch.cos(frequency * z))


def cosine(scores, *values, mask=None, dim=-1, log=False, **named):
    values = (*values, *named.values())
    checks = (AMPLITUDE, FREQUENCY)[: len(values)]
    return on_rows(
        normalize, scores, *values, mask=mask, dim=dim, checks=checks, log_g=cosine_log_g, log=log
    )


AMPLITUDE = ParameterSpec("amplitude", 0.5, 0.0, 1.0)
FREQUENCY = ParameterSpec("frequency", 2.0, 0.0, math.inf)


OWN = {
    name: MappingSpec(name, cosine, parameters=parameters, log_g=log_g)
    for name, parameters, log_g in (
        ("own-pointwise", (), cosine_log_g),
        ("own-pointwise-1", (AMPLITUDE,), cosine_log_g),
        ("own-pointwise-2", (AMPLITUDE, FREQUENCY), cosine_log_g),
        ("own-rows", (), None),
        ("own-rows-2", (AMPLITUDE, FREQUENCY), None),
    )
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.usefixtures("clean_registry")
@pytest.mark.parametrize("name", OWN)
def test_without_impl_mappings_of_ones_own_work(name):
    register_mapping(OWN[name])
    assert_equal_to_reference(Mapping(name))


@pytest.mark.usefixtures("clean_registry")
@pytest.mark.parametrize("learn", ["amplitude", ("amplitude", "frequency")])
def test_learned_parameters_of_ones_own_get_their_gradients(learn):
    register_mapping(OWN["own-pointwise-2"])
    mapping = Mapping("own-pointwise-2", learn=learn)
    assert_equal_to_reference(mapping)


@pytest.mark.usefixtures("clean_registry")
@each(CPU, TRITON, FLEX)
def test_mappings_of_ones_own_that_are_refused(backend):
    """By flex those without log g, and by the kernels all."""
    for name in ("own-rows", "own-pointwise-2", "own-pointwise")[: 1 if backend == FLEX else 3]:
        register_mapping(OWN[name])
        with pytest.raises(NotImplementedError, match=name):
            solved(Mapping(name), backend.impl)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "mapping",
    [
        Mapping("spherical-softmax", eps=0.25, center=0.75),
        Mapping("spherical-softmax", eps=[0.25, 0.5], center=[0.75, -1.0], num_heads=2),
    ],
)
def test_flex_takes_several_parameters(mapping):
    inputs = Inputs(Problem("softmax"))
    with torch.no_grad():
        ours, exact = (
            attention(inputs.query, inputs.key, inputs.value, mapping, impl=impl)
            for impl in (FLEX.impl, "reference")
        )
    torch.testing.assert_close(ours, exact, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "given",
    [{"center": 0.75}, {"learn": "center"}, {"center": [0.0, 0.0], "num_heads": 2}],
)
def test_a_center_is_never_that_of_the_kernels(given):
    """Which have 0: at 0 they compute the call, else the reference, or an error if they must."""
    q = torch.randn(1, 2, 3, 4)
    plain, centered = (
        AttentionInputs(q, q, q, Mapping("spherical-softmax", **options)) for options in ({}, given)
    )
    assert plain.kernel_reason is None
    assert dispatch.choose(centered, None) == "reference"
    for backend in (CPU, TRITON):
        with pytest.raises(NotImplementedError, match="the kernels have center = 0 alone"):
            dispatch.choose(centered, backend.impl)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", ["normalized-relu", "spherical-softmax"])
def test_flex_rows_without_weight_are_uniform(name):
    """g = 0 everywhere, which is not the same as no valid key."""
    params = {"eps": 0.0} if name == "spherical-softmax" else {}
    mask = torch.arange(16) < torch.tensor([13, 13, 0, 1])[:, None]
    with torch.no_grad():
        p, _ = rows_call(torch.zeros(4, 16), Mapping(name, **params), FLEX.impl, mask=mask)
    expected = mask / mask.sum(-1, keepdim=True).clamp(min=1)
    torch.testing.assert_close(p, expected, rtol=1e-5, atol=0)


def test_autocast_takes_mixed_dtypes():
    """Norms of queries and keys give float32 under autocast where values are half (Qwen3)."""
    inputs = Inputs(Problem("sparsemax"))
    with torch.autocast("cpu", torch.bfloat16):
        inputs.value = inputs.value.bfloat16()
        assert inputs.attend(None).dtype == torch.bfloat16
