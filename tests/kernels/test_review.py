"""What a review found that random calls do not show; each test tells its story."""

import pytest
import torch

from sparse_attn import Mapping, MappingSpec, functional, register_mapping
from sparse_attn.kernels import attention

IMPLS = ["cpu", "triton"]
LEARNABLE = {
    "t-softmax": "t", "r-softmax": "r", "sparsegen": "lam", "sparsecone": "q",
    "sparsehourglass": "q", "entmax": "alpha", "sigsoftmax": "bias", "spherical-softmax": "eps",
}  # fmt: skip


def qkv(queries=8, keys=8, batch=1, heads=1, dim=16):
    shapes = ((queries, dim), (keys, dim), (keys, dim))
    return [torch.randn(batch, heads, *shape) for shape in shapes]


@pytest.mark.parametrize("impl", IMPLS)
def test_key_lengths_of_any_stride(impl):
    inputs = qkv(batch=4)
    for lengths in (
        torch.tensor([[3, 8], [5, 8], [2, 8], [7, 8]])[:, 0],
        torch.tensor([3]).expand(4),
    ):
        got = attention(*inputs, Mapping("softmax"), key_lengths=lengths, impl=impl)
        want = attention(*inputs, Mapping("softmax"), key_lengths=lengths, impl="reference")
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


def test_tf32_switched_on_by_either_api():
    """Transformers' TrainingArguments(tf32=True) uses the new one."""
    from sparse_attn.kernels.triton.plan import product_precision

    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    try:
        assert product_precision() == "tf32x3"
        matmul.fp32_precision = "tf32"
        assert product_precision() == "tf32"
        attention(*qkv(), Mapping("softmax"), impl="triton")
    finally:
        matmul.fp32_precision = before


@pytest.mark.parametrize("name", LEARNABLE)
@pytest.mark.parametrize("impl", IMPLS)
def test_a_parameter_that_is_nan_gives_nan(name, impl):
    mapping = Mapping(name, learn=LEARNABLE[name], **({"lam": 0.5} if name == "sparsegen" else {}))
    with torch.no_grad():
        getattr(mapping, f"raw_{LEARNABLE[name]}").fill_(torch.nan)
    assert attention(*qkv(), mapping, impl=impl).isnan().all()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("name", ["sparsemax", "entmax", "sparsegen"])
def test_nan_spoils_a_long_row(name, bad):
    """Tiles without support are skipped; one with NaN has no support that compares."""
    query, key, value = qkv(queries=3, keys=1100)
    query[:, :, 1] = bad
    out = attention(query, key, value, Mapping(name), impl="triton")
    assert out[:, :, 1].isnan().all()
    assert out[:, :, [0, 2]].isfinite().all()


def test_nearly_one_hot_long_rows():
    """A support narrower than the rounding of the maximum still holds the maximum."""
    inputs = qkv(queries=64, keys=1100)
    mapping = Mapping("sparsegen", lam=0.99999)
    got = attention(*inputs, mapping, scale=50.0, impl="triton")
    want = attention(*inputs, mapping, scale=50.0, impl="reference")
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("impl", IMPLS)
def test_equal_scores_still_learn(impl):
    """A projection that starts at zero makes all scores equal; r-softmax must let it move."""
    query, key, value = qkv()
    query = torch.zeros_like(query, requires_grad=True)
    attention(query, key, value, Mapping("r-softmax"), impl=impl).square().sum().backward()
    assert query.grad.norm() > 0.01


# PyTorch's own rules for forward mode
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_forward_mode_and_functorch_take_the_reference():
    inputs, mapping = qkv(), Mapping("softmax")
    tangent = torch.randn_like(inputs[0])

    def run(query, impl=None):
        return attention(query, *inputs[1:], mapping, impl=impl)

    out, got = torch.func.jvp(run, (inputs[0],), (tangent,))
    _, want = torch.func.jvp(lambda q: run(q, "reference"), (inputs[0],), (tangent,))
    torch.testing.assert_close(got, want)
    assert got.norm() > 0
    assert torch.func.grad(lambda q: run(q).sum())(inputs[0]).shape == out.shape


@pytest.mark.parametrize("impl", IMPLS)
def test_second_derivatives_name_the_remedy(impl):
    inputs = [t.requires_grad_() for t in qkv()]
    out = attention(*inputs, Mapping("softmax"), impl=impl)
    (grad,) = torch.autograd.grad(out.square().sum(), inputs[0], create_graph=True)
    with pytest.raises(NotImplementedError, match="impl='reference'"):
        grad.sum().backward()


@pytest.mark.parametrize("impl", IMPLS)
def test_a_window_longer_than_any_row(impl):
    inputs = qkv()
    for window in (2**31, 2**63 - 1):
        got = attention(*inputs, Mapping("softmax"), window=window, impl=impl)
        torch.testing.assert_close(got, attention(*inputs, Mapping("softmax"), impl=impl))


def test_a_boolean_bias_is_refused():
    with pytest.raises(TypeError, match=r"bias: expected a floating-point tensor.*mask="):
        attention(*qkv(), Mapping("softmax"), bias=torch.ones(8, dtype=torch.bool))


def test_the_output_can_be_changed_in_place():
    inputs = [t.requires_grad_() for t in qkv()]
    attention(*inputs, Mapping("softmax"), impl="cpu").mul_(2).sum().backward()
    assert inputs[0].grad is not None


def test_float64_keeps_its_parameter():
    """0.7 in float32 is below 0.7, which drops one key fewer of eleven."""
    query, key, value = (t.double() for t in qkv(keys=11))
    value = torch.eye(11, 16, dtype=torch.float64).expand(1, 1, 11, 16)
    for r in (0.7, 0.9):
        got = attention(query, key, value, Mapping("r-softmax", r=r), impl="cpu")
        want = attention(query, key, value, Mapping("r-softmax", r=r), impl="reference")
        assert ((got == 0) == (want == 0)).all()


def test_flex_refuses_what_it_would_get_wrong(monkeypatch):
    from sparse_attn.mappings import ParameterSpec, registry

    monkeypatch.setattr(registry, "_SPECS", dict(registry._SPECS))
    two = (ParameterSpec("a", 1.0), ParameterSpec("b", 1.0))
    register_mapping(
        MappingSpec(
            "two", functional.softmax, functional.log_softmax, parameters=two,
            log_g=lambda z, a, b: a * z + b * z,
        )
    )  # fmt: skip
    with pytest.raises(NotImplementedError, match="more than one parameter"):
        attention(*qkv(), Mapping("two"), impl="flex")
    with pytest.raises(NotImplementedError, match="padding"):
        attention(*qkv(), Mapping("softmax"), key_lengths=torch.tensor([3]), impl="flex")


def test_dropout_differs_between_rows():
    """The row is part of the key: a 32-bit counter over rows and columns would repeat itself."""
    query, key, value = qkv(queries=2, keys=64, dim=64)
    value = torch.eye(64).expand(1, 1, 64, 64)
    out = attention(query, key, value, Mapping("softmax"), dropout=0.5, impl="triton")
    assert ((out[0, 0, 0] == 0) != (out[0, 0, 1] == 0)).any()


def test_a_damaged_library_is_built_again(tmp_path, monkeypatch):
    from sparse_attn.kernels.cpu import build

    if isinstance(build.library(), str):
        pytest.skip(build.library())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = build._built()
    path.write_text("junk")
    assert build._loaded(path) is not None


def test_a_cache_that_others_may_write_is_not_used(tmp_path, monkeypatch):
    from sparse_attn.kernels.cpu import build

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert build._folder() == tmp_path / "sparse_attn"
    (tmp_path / "sparse_attn").chmod(0o777)
    assert build._folder() != tmp_path / "sparse_attn"


def test_a_compiler_that_is_not_there_is_named(monkeypatch):
    from sparse_attn.kernels.cpu import build

    monkeypatch.setenv("CXX", "/nowhere/g++ -O1")
    with pytest.raises(RuntimeError, match="CXX='/nowhere/g\\+\\+ -O1' was not found"):
        build._compiler()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"mapping": "r-softmax"}, TypeError, "mapping: expected a sparse_attn.Mapping"),
        ({"mask": [[True]]}, TypeError, "mask: expected a tensor, got list"),
        ({"key_lengths": torch.ones(1).to("meta")}, ValueError, "key_lengths: expected the device"),
        ({"window": 2.5}, ValueError, "window=2.5: expected at least 1, a whole number"),
        ({"mask": torch.ones(3, 8) > 0}, ValueError, r"mask\[:, None, None, :\]"),
    ],
)
def test_wrong_arguments_name_the_remedy(change, error, message):
    query, key, value = qkv()
    mapping = change.pop("mapping", None) or Mapping("softmax")
    with pytest.raises(error, match=message):
        attention(query, key, value, mapping, **change)


def test_autocast_takes_mixed_dtypes():
    """Norms of queries and keys give float32 under autocast where values are half (Qwen3)."""
    query, key, value = qkv()
    with torch.autocast("cpu", torch.bfloat16):
        out = attention(query, key, value.bfloat16(), Mapping("sparsemax"))
    assert out.dtype == torch.bfloat16
