"""Which implementation does a call: the one that is named, or one that can."""

import dataclasses
import math

import pytest
import torch

from sparse_attn import Mapping, MappingSpec, mapping_names, register_mapping
from sparse_attn import functional as maps
from sparse_attn.kernels import attention, dispatch
from sparse_attn.mappings import ParameterSpec, get_spec
from sparse_attn.mappings.base import on_rows
from sparse_attn.mappings.pointwise import normalize

from .backends import CPU, CUDA, FLEX, MARKS, TRITON, each
from .problems import Inputs, Problem, rows_call


def solved(mapping, impl, device="cpu", dtype=torch.float32, **options):
    inputs = Inputs(Problem("softmax", queries=5, keys=9, dim=16), dtype, dtype, device)
    inputs.mapping = mapping.to(device)
    return inputs.solve(impl, **options)


def assert_equal_to_reference(mapping, impl=None, **options):
    expected = solved(mapping, "reference", **options)
    for name, value in solved(mapping, impl, **options).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", mapping_names())
def test_without_impl_every_mapping_works(name):
    mapping = Mapping(name)
    assert_equal_to_reference(mapping)
    assert_equal_to_reference(mapping, causal=True, key_lengths=torch.tensor([4, 9]))


@pytest.mark.parametrize("name", mapping_names())
def test_without_gradients_every_mapping_works(name):
    """FlexAttention can do some of these on the CPU; it must not be worse off."""
    inputs = Inputs(Problem("softmax", queries=5, keys=9, dim=16), torch.float32, torch.float32)
    inputs.mapping = Mapping(name)
    with torch.no_grad():
        torch.testing.assert_close(inputs.attend(None), inputs.attend("reference"))


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


@pytest.mark.parametrize(
    ("impl", "mapping", "changed", "reason"),
    [
        ("cpu", Mapping("plif"), {}, "plif"),
        ("cpu", Mapping("monotone"), {}, "monotone"),
        ("flex", Mapping("r-softmax"), {}, "r-softmax"),
        ("flex", Mapping("plif"), {}, "plif"),
        ("flex", Mapping("softmax"), {"dropout": 0.1}, r"dropout=0\.1"),
        ("flex", Mapping("softmax"), {}, "CPU"),
        ("flex", Mapping("sigsoftmax", learn="bias"), {}, "CPU"),
        ("flex", Mapping("softmax"), {"dtype": torch.float64}, "float64"),
    ],
)
def test_a_named_implementation_that_cannot_says_why(impl, mapping, changed, reason):
    with pytest.raises(
        NotImplementedError, match=rf"impl='{impl}' cannot.*{reason}.*leave impl out"
    ):
        solved(mapping, impl, **changed)


TRITON_CANNOT = [
    (Mapping("plif"), {}, "plif"),
    (Mapping("monotone"), {}, "monotone"),
    (Mapping("softmax"), {"dtype": torch.float64}, "float64"),
    (Mapping("softmax"), {"bias": torch.zeros(9, requires_grad=True)}, "bias"),
]


@pytest.mark.parametrize(("mapping", "changed", "reason"), TRITON_CANNOT)
@each(TRITON, CUDA)
def test_triton_says_why_it_cannot(backend, mapping, changed, reason):
    with pytest.raises(NotImplementedError, match=rf"impl='triton' cannot.*{reason}"):
        solved(mapping, "triton", backend.device, **changed)


@pytest.mark.parametrize("dims", [(8, 16), (16, 8), (264, 264)])
@each(TRITON, CUDA)
def test_triton_refuses_head_dims(backend, dims):
    dim, value_dim = dims
    inputs = Inputs(
        Problem("softmax", queries=3, keys=5, dim=dim, value_dim=value_dim),
        torch.float32, torch.float32, backend.device,
    )  # fmt: skip
    with pytest.raises(NotImplementedError, match="dim"):
        inputs.attend("triton")


@pytest.mark.parametrize("dims", [(8, 24), (24, 8), (300, 3), (1, 1)])
def test_values_of_another_dimension_on_the_cpu(dims):
    dim, value_dim = dims
    case = Problem("entmax", {"alpha": 1.5}, dim=dim, value_dim=value_dim)
    inputs = Inputs(case, torch.float64, torch.float64)
    expected = inputs.solve("reference")
    for impl in ("cpu", None):
        for name, value in inputs.solve(impl).items():
            torch.testing.assert_close(value, expected[name])


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


@pytest.mark.parametrize("shape", [(9,), (5, 9), (2, 1, 9), (1, 2, 5, 1), (2, 1, 1, 9), (1,)])
@each(CPU, TRITON, CUDA)
def test_weighted_softmax(backend, shape):
    """As softmax of scores and log weights; a weight of 0 drops the key."""
    weights = torch.rand(shape).mul(2) * (torch.rand(shape) < 0.8)
    mapping = Mapping("weighted-softmax", weights=weights.tolist())
    got = solved(mapping, backend.impl, backend.device)
    inputs = Inputs(Problem("softmax", queries=5, keys=9, dim=16), torch.float32, torch.float64)
    scores = inputs.query @ inputs.key.mT / 4
    wide = weights.double().expand(scores.shape)
    p = maps.weighted_softmax(scores, wide)
    output = p @ inputs.value
    wanted = torch.autograd.grad(output, (inputs.query, inputs.key, inputs.value), inputs.grad)
    names = ("output", "dquery", "dkey", "dvalue")
    for name, value in zip(names, (output, *wanted), strict=True):
        torch.testing.assert_close(got[name].double().cpu(), value, rtol=1e-5, atol=1e-5)


@each(CPU, TRITON, CUDA)
def test_weighted_softmax_of_one_weight_is_softmax(backend):
    expected = solved(Mapping("softmax"), backend.impl, backend.device)
    got = solved(Mapping("weighted-softmax", weights=3.0), backend.impl, backend.device)
    for name, value in expected.items():
        torch.testing.assert_close(got[name], value, rtol=1e-5, atol=1e-6)


@each(CPU, TRITON, CUDA)
def test_weighted_softmax_without_weights_gives_zeros(backend):
    result = solved(Mapping("weighted-softmax", weights=0.0), backend.impl, backend.device)
    for name, value in result.items():
        assert (value == 0).all(), name


@pytest.mark.parametrize("impl", ["reference", "cpu", None])
def test_weighted_softmax_beside_a_bias(impl):
    bias = torch.randn(2, 1, 9)
    mapping = Mapping("weighted-softmax", weights=[1.0, 2.0, 0.0, 1.0, 0.5, 3.0, 1.0, 1.0, 1.0])
    weights = mapping.value("weights")
    expected = solved(Mapping("softmax"), "reference", bias=bias + weights.log())
    for name, value in solved(mapping, impl, bias=bias).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-5)


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


def spec(name, function=cosine, **changed):
    return MappingSpec(name, function, lambda *a, **k: function(*a, log=True, **k), **changed)


OWN = {
    "own-pointwise": spec("own-pointwise", log_g=cosine_log_g),
    "own-pointwise-1": spec("own-pointwise-1", log_g=cosine_log_g, parameters=(AMPLITUDE,)),
    "own-pointwise-2": spec(
        "own-pointwise-2", log_g=cosine_log_g, parameters=(AMPLITUDE, FREQUENCY)
    ),
    "own-rows": spec("own-rows"),
    "own-rows-2": spec("own-rows-2", parameters=(AMPLITUDE, FREQUENCY)),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.usefixtures("clean_registry")
@pytest.mark.parametrize("name", OWN)
def test_without_impl_mappings_of_ones_own_work(name):
    register_mapping(OWN[name])
    assert_equal_to_reference(Mapping(name))
    inputs = Inputs(Problem(name, queries=5, keys=9, dim=16), torch.float32, torch.float32)
    with torch.no_grad():
        torch.testing.assert_close(
            inputs.attend(None), inputs.attend("reference"), rtol=1e-5, atol=1e-5
        )


@pytest.mark.usefixtures("clean_registry")
@pytest.mark.parametrize("learn", ["amplitude", ("amplitude", "frequency")])
def test_learned_parameters_of_ones_own_get_their_gradients(learn):
    register_mapping(OWN["own-pointwise-2"])
    mapping = Mapping("own-pointwise-2", learn=learn)
    assert_equal_to_reference(mapping)


@pytest.mark.usefixtures("clean_registry")
@pytest.mark.parametrize(
    "backend", [pytest.param(b, marks=MARKS[b], id=str(b)) for b in (CPU, TRITON)]
)
def test_kernels_refuse_mappings_of_ones_own(backend):
    """Even one made from the record of a mapping that has a kernel."""
    for own in (OWN["own-pointwise"], OWN["own-rows"]):
        register_mapping(own)
        with pytest.raises(NotImplementedError, match=own.name):
            solved(Mapping(own.name), backend.impl)


@pytest.mark.usefixtures("clean_registry")
def test_a_changed_record_cannot_name_the_old_kernel():
    """dataclasses.replace keeps `kernel`, but the function is another."""
    flipped = dataclasses.replace(
        get_spec("sparsemax"), name="sparsemin",
        function=lambda scores, **options: maps.sparsemax(-scores, **options),
        log_function=lambda scores, **options: maps.log_sparsemax(-scores, **options),
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"kernel='sparsemax': expected None for sparsemin"):
        register_mapping(flipped)
    register_mapping(dataclasses.replace(flipped, kernel=None))
    assert_equal_to_reference(Mapping("sparsemin"))


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
