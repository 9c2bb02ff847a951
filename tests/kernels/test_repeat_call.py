"""Calls of a layout that has run before, past the checks, with kernels compiled before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

pytest.importorskip("triton", reason="triton is not installed")

from sparse_attn import Mapping
from sparse_attn.hf.attention import NAME, sparse_attention
from sparse_attn.kernels import attention, dispatch, triton
from sparse_attn.kernels.triton import launch, plan, repeat_call

from .backends import CUDA, TRITON, Backend, each

SOFTMAX = Mapping("softmax")


class Layer(nn.Module):
    is_causal = False
    num_key_value_groups = 1


@pytest.fixture(autouse=True)
def on_any_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where the Triton kernels are the first choice, and nothing has run yet."""
    monkeypatch.setitem(dispatch.AUTOMATIC, "cpu", ("triton", "reference"))
    monkeypatch.setattr(repeat_call, "_READY", {})
    monkeypatch.setattr(plan, "_PLANS", {})


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The implementation of each call that passed the checks, in order."""
    names: list[str] = []

    def choose(*arguments: Any) -> str:
        names.append(chosen(*arguments))
        return names[-1]

    chosen = dispatch.choose
    monkeypatch.setattr(dispatch, "choose", choose)
    return names


def qkv(
    backend: Backend, keys: int = 20, heads: int = 2, dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    generator = torch.Generator().manual_seed(keys)
    shapes = (2, 16, 2, 16), (2, keys, heads, 16), (2, keys, heads, 16)
    made = (torch.randn(shape, generator=generator).to(backend.device, dtype) for shape in shapes)
    return [t.transpose(1, 2).requires_grad_() for t in made]


def layer(mapping: Mapping, backend: Backend) -> nn.Module:
    module = Layer().train()
    setattr(module, NAME, mapping.to(backend.device))
    return module


def mask(backend: Backend) -> Tensor:
    kept = torch.arange(20, device=backend.device) < torch.tensor([[20], [13]]).to(backend.device)
    return kept[:, None, None].expand(-1, -1, 16, -1)


def results(module: nn.Module, given: list[Tensor], **options: Any) -> list[Tensor]:
    """Output, and gradients of the inputs and of what the mapping learns."""
    torch.manual_seed(0)
    options = {"attention_mask": None, **options}
    out = sparse_attention(module, *given, **options)[0]
    leaves = [*given, *module.parameters()]
    return [out, *torch.autograd.grad(out.square().sum(), leaves)]


CALLS: dict[str, Callable[[Backend], dict[str, Any]]] = {
    "plain": lambda backend: {},
    "mask": lambda backend: {"attention_mask": mask(backend)},
    "dropout": lambda backend: {"dropout": 0.3, "scaling": 0.5},
    "causal": lambda backend: {"is_causal": True},
}


MAPPINGS = [
    SOFTMAX,
    Mapping("r-softmax", r=0.3),
    Mapping("entmax", alpha=1.5),
    Mapping("t-softmax", t=4.0, learn="t", num_heads=2),
]
mappings = pytest.mark.parametrize("mapping", MAPPINGS, ids=lambda mapping: mapping.name)


@each(TRITON, CUDA)
@pytest.mark.parametrize("call", CALLS)
@mappings
def test_a_second_call_computes_the_same(
    mapping: Mapping, call: str, checked: list[str], backend: Backend
) -> None:
    module, options = layer(mapping, backend), CALLS[call](backend)
    first = results(module, qkv(backend), **options)
    second = results(module, qkv(backend), **options)
    assert checked == ["triton"]
    assert all(map(torch.equal, first, second))


@each(TRITON, CUDA)
def test_a_parameter_alone_may_have_a_gradient(checked: list[str], backend: Backend) -> None:
    module, given = layer(MAPPINGS[-1], backend), [t.detach() for t in qkv(backend)]
    outs = [sparse_attention(module, *given, None)[0] for _ in range(2)]
    found = [torch.autograd.grad(out.square().sum(), [*module.parameters()])[0] for out in outs]
    assert checked == ["triton"]
    assert torch.equal(*found)
    assert found[0].any()


@each(TRITON, CUDA)
def test_what_another_call_has_else_is_checked(checked: list[str], backend: Backend) -> None:
    """Each of these differs from the first call in one thing."""
    module = layer(SOFTMAX, backend)
    first = results(module, qkv(backend))
    wide = torch.randn(2, 2, 16, 32, device=backend.device)[..., ::2].requires_grad_()
    others: list[tuple[list[Tensor], dict[str, Any]]] = [
        (qkv(backend, keys=24), {}),
        (qkv(backend, heads=1), {}),
        (qkv(backend, dtype=torch.float16), {}),
        ([t.detach().contiguous().requires_grad_() for t in qkv(backend)], {}),
        ([wide, *qkv(backend)[1:]], {}),
        (qkv(backend), {"scaling": 0.5}),
        (qkv(backend), {"dropout": 0.1}),
        (qkv(backend), {"is_causal": True}),
        (qkv(backend), {"attention_mask": mask(backend)}),
        (qkv(backend), {"softcap": 5.0}),
        (qkv(backend), {"s_aux": torch.zeros(2, device=backend.device)}),
    ]
    for given, options in others:
        number = len(checked)
        results(module, given, **options)
        assert len(checked) == number + 1, options
    with torch.no_grad():
        out = sparse_attention(module, *qkv(backend), None)[0]
    torch.testing.assert_close(out, first[0])
    number = len(checked)
    assert all(map(torch.equal, first, results(module, qkv(backend))))
    assert len(checked) == number


@each(TRITON, CUDA)
def test_an_error_stays_an_error(backend: Backend) -> None:
    module, (query, key, value) = layer(SOFTMAX, backend), qkv(backend)
    results(module, [query, key, value])
    for given, options, error in (
        ((query, key, value[:, :, :9]), {}, "value"),
        ((query, key.half(), value), {}, "key"),
        ((query, key, value), {"dropout": 1.5}, "dropout"),
        ((query, key, value), {"scaling": float("nan")}, "scale"),
        ((query, key, value), {"scaling": [0.5]}, "scale"),
        ((query, key, value), {"attention_mask": mask(backend)[:, :, :3]}, "mask"),
    ):
        options = {"attention_mask": None, **options}
        with pytest.raises((TypeError, ValueError), match=error):
            sparse_attention(module, *given, **options)


@each(TRITON, CUDA)
def test_values_of_parameters_are_those_of_the_call(backend: Backend) -> None:
    mapping = Mapping("entmax", alpha=1.5)
    module = layer(mapping, backend)
    for alpha in (1.5, 2.0, 1.3, 1.0, 1.5, 1.3):
        mapping.set_value("alpha", alpha)
        expected = attention(*qkv(backend), mapping, impl="reference")
        found = results(module, qkv(backend))[0].transpose(1, 2)
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


@each(TRITON, CUDA)
@pytest.mark.parametrize(
    ("name", "params", "learn"),
    [
        ("t-softmax", {"t": 4.0}, ""),
        ("t-softmax", {"t": 4.0}, "t"),
        ("entmax", {"alpha": 1.4}, "alpha"),
    ],
)
def test_checkpointing_repeats_the_first_call(
    name: str, params: dict[str, float], learn: str, backend: Backend
) -> None:
    """The recomputation takes the short way, and must save the same tensors."""
    module, given = layer(Mapping(name, learn=learn or (), **params), backend), qkv(backend)
    again_, expected = [], results(layer(Mapping(name, **params), backend), given)
    repeat_call._READY.clear()
    for _ in range(2):
        out = checkpoint(lambda *qkv: sparse_attention(module, *qkv, None)[0], *given,
                         use_reentrant=False)  # fmt: skip
        again_.append([out, *torch.autograd.grad(out.square().sum(), given)])
    for found in again_:
        for ours, theirs in zip(found, expected, strict=False):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@each(TRITON, CUDA)
def test_an_output_can_be_changed_in_place_but_not_before_its_gradient(
    checked: list[str], backend: Backend
) -> None:
    module, given = layer(SOFTMAX, backend), qkv(backend)
    expected = attention(*given, SOFTMAX, impl="reference").transpose(1, 2)
    factor = torch.ones(1, device=backend.device, requires_grad=True)
    for _ in range(2):
        out = sparse_attention(module, *given, None)[0]
        torch.testing.assert_close(out.mul_(2), 2 * expected, rtol=1e-3, atol=1e-4)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()
        with torch.no_grad():
            out = attention(*given, SOFTMAX)
        out.mul_(factor).sum().backward()
    assert factor.grad is not None
    assert checked == ["reference", "triton", "triton"]


@each(TRITON, CUDA)
@mappings
def test_what_is_saved_may_come_back_in_other_strides(mapping: Mapping, backend: Backend) -> None:
    """By hooks of all tensors, or of some, or because the tensor has other data by then."""
    module, given = layer(mapping, backend), qkv(backend)
    leaves = [*given, *module.parameters()]
    options = {"attention_mask": mask(backend)}
    expected = results(module, given, **options)[1:]

    def gradients(out: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(out.square().sum(), leaves)

    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t.contiguous()):
        found = [gradients(sparse_attention(module, *given, **options)[0])]
    out = sparse_attention(module, *given, **options)[0]
    for saved in out.grad_fn._raw_saved_tensors[:3]:  # type: ignore[union-attr]
        saved.register_hooks(lambda t: t, lambda t: t.contiguous())
    found.append(gradients(out))
    out = sparse_attention(module, *given, **options)[0]
    for t in given:
        t.data = t.detach().contiguous()
    found.append(gradients(out))
    for each_ in found:
        torch.testing.assert_close([*each_], expected, rtol=1e-5, atol=1e-6)


@each(TRITON, CUDA)
def test_gradients_that_are_undefined_or_several(backend: Backend) -> None:
    class Undefined(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> None:
            return None

    module, given = layer(SOFTMAX, backend), qkv(backend)
    results(module, given)
    out = Undefined.apply(sparse_attention(module, *given, None)[0])
    assert torch.autograd.grad(out.sum(), given, allow_unused=True) == (None,) * 3
    out = sparse_attention(module, *given, None)[0]
    several = torch.ones(2, *out.shape, device=out.device)
    with pytest.raises(NotImplementedError, match="one gradient at a time"):
        torch.autograd.grad(out, given, several, is_grads_batched=True)


@each(TRITON, CUDA)
def test_observers_see_every_call_and_gradient(checked: list[str], backend: Backend) -> None:
    module, given = layer(SOFTMAX, backend), qkv(backend)
    expected = results(module, given)

    def call() -> Tensor:
        return sparse_attention(module, *given, None)[0]

    unseen = call()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        call()
        found = torch.autograd.grad(unseen.square().sum(), given)
    names = {event.key for event in profile.key_averages()}
    assert names >= {"sparse_attn::triton_forward", "sparse_attn::triton_backward"}
    torch.testing.assert_close([*found], expected[1:], rtol=1e-5, atol=1e-6)
    with forward_ad.dual_level():
        call()
    with FakeTensorMode(allow_non_fake_inputs=True):
        call()
    assert len(checked) == 4
    first = torch.autograd.grad(call().square().sum(), given, create_graph=True)
    assert len(checked) == 4
    with pytest.raises(NotImplementedError, match="differentiable once"):
        torch.autograd.grad(first[0].sum(), given)
    handle = module.sparse_attn.register_forward_hook(lambda *_: None)
    call()
    handle.remove()
    assert checked[-1] == "reference"


def test_ever_new_lengths_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeat_call, "MOST_PLANS", 2)
    monkeypatch.setattr(triton, "INTERPRETED", True)
    monkeypatch.setattr(launch, "launch", lambda *arguments: None)
    for keys in (16, 20, 24, 16):
        sparse_attention(layer(SOFTMAX, TRITON), *qkv(TRITON, keys), None)
        assert 0 < len(repeat_call._READY) <= 2


class Kernel:
    """A kernel that notes its launches, and those of what it compiles to."""

    def __init__(self) -> None:
        self.searched = list[tuple[int, ...]]()
        self.direct = list[tuple[int, ...]]()

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Kernel]:
        def launched(*arguments: Any, **options: Any) -> Kernel:
            assert options
            self.searched.append(grid)
            return compiled

        compiled = Compiled(self)
        return launched


class Compiled(Kernel):
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        # without a stream: Triton asks for the current one, also of a capture
        return lambda *arguments: self.kernel.direct.append(grid)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> dict[str, Kernel]:
    """In place of those of Triton."""
    made = {name: Kernel() for name in ("fwd", "bwd_dq", "bwd_dkdv")}
    monkeypatch.setattr(triton, "INTERPRETED", True)
    for name, kernel in made.items():
        monkeypatch.setattr(launch, f"{name}_kernel", kernel)
    return made


def at(offset: int) -> Tensor:
    """Queries whose address is `offset` elements after a multiple of 16 bytes."""
    return torch.randn(2 * 16 * 2 * 16 + 16)[offset:][: 2 * 16 * 2 * 16].view(2, 2, 16, 16)


def transposed() -> Tensor:
    return at(0).transpose(1, 2).contiguous().transpose(1, 2)


def test_a_compiled_kernel_is_launched_where_it_fits(kernels: dict[str, Kernel]) -> None:
    """What Triton specialises a kernel for has to be the same: alignment, strides, types."""
    kernel = kernels["fwd"]

    def searches(*given: Tensor, **options: Any) -> int:
        before = len(kernel.searched), len(kernel.direct)
        attention(*given, SOFTMAX, impl="triton", **options)
        searched = len(kernel.searched) - before[0]
        assert searched + len(kernel.direct) - before[1] == 1
        return searched

    key, value = at(0), at(0)
    lengths = torch.tensor([16, 9])
    plain = at(0), key, value
    first: list[tuple[tuple[Tensor, ...], dict[str, Any]]] = [
        (plain, {}),
        ((transposed(), key, value), {}),
        ((at(0).half(), key.half(), value.half()), {}),
        (plain, {"mask": torch.ones(2, 1, 1, 16, dtype=torch.bool)}),
        (plain, {"mask": torch.ones(2, 1, 16, 16, dtype=torch.bool)}),
        (plain, {"bias": torch.zeros(16, 16)}),
        (plain, {"bias": torch.zeros(16, 16, dtype=torch.bfloat16)}),
        (plain, {"key_lengths": lengths}),
        (plain, {"key_lengths": lengths.int()}),
    ]
    assert [searches(*given, **options) for given, options in first] == [1] * len(first)
    assert [searches(*given, **options) for given, options in first] == [0] * len(first)
    # unaligned inputs each time, and they leave what is aligned alone
    given = [(at(offset), key, value) for offset in (1, 1, 4, 0)]
    assert [searches(*tensors) for tensors in given] == [1, 1, 0, 0]


def test_kernels_belong_to_a_device(
    kernels: dict[str, Kernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparse_attn.kernels.operators.is_observed", lambda tensors: False)
    for device in ("cpu", "meta", "cpu", "meta"):
        attention(*(at(0).to(device) for _ in range(3)), SOFTMAX, impl="triton")
    assert (len(kernels["fwd"].searched), len(kernels["fwd"].direct)) == (2, 2)


def test_backward_kernels_belong_to_the_types_of_what_was_saved(
    kernels: dict[str, Kernel],
) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.bfloat16):
        given = [at(0).requires_grad_() for _ in range(3)]
        leaves = [t.data_ptr() for t in given]

        def halved(t: Tensor, dtype: torch.dtype = dtype, leaves: list[int] = leaves) -> Tensor:
            return t if t.data_ptr() in leaves or t.dim() != 4 else t.to(dtype)

        with torch.autograd.graph.saved_tensors_hooks(halved, lambda t: t):
            out = attention(*given, SOFTMAX, impl="triton")
        out.backward(at(0))
    launches = [(len(kernels[n].searched), len(kernels[n].direct)) for n in ("fwd", "bwd_dq")]
    assert launches == [(1, 2), (2, 1)]


@pytest.mark.parametrize("impl", ["triton", None])
def test_backward_kernels_belong_to_the_strides_of_the_gradient(
    impl: str | None, kernels: dict[str, Kernel]
) -> None:
    kernel = kernels["bwd_dq"]

    def searches(grad: Tensor) -> int:
        before = len(kernel.searched)
        given = [at(0).requires_grad_() for _ in range(3)]
        attention(*given, SOFTMAX, impl=impl).backward(grad)
        return len(kernel.searched) - before

    if impl is None:
        assert searches(at(0)) == 1  # the first call, which is remembered
    # one that is expanded is copied; unaligned ones leave what is aligned alone
    grads = [at(0), at(0), transposed(), transposed(), torch.ones(()).expand(2, 2, 16, 16)]
    grads += [at(1), at(1), at(0)]
    assert [searches(grad) for grad in grads] == [1, 0, 1, 0, 0, 1, 1, 0]
