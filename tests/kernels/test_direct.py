"""Past the dispatcher only where nobody would see the difference."""

import functools
import operator
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from sparse_attn import Mapping
from sparse_attn.kernels import attention
from sparse_attn.kernels.operators import is_observed

from .backends import CPU, CUDA, Backend, each

SPARSEMAX = Mapping("sparsemax")


class Passing(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


class Named(Tensor):
    pass


def inputs(head_dim: int = 4) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, 2, 6, head_dim, generator=generator) for _ in range(3)]


@each(CPU, CUDA)
@pytest.mark.parametrize("context", [nullcontext, torch.no_grad, torch.inference_mode, None])
def test_plain_calls_are_direct(
    context: Callable[[], AbstractContextManager[object]] | None, backend: Backend
) -> None:
    device = backend.device
    with context() if context is not None else torch.autocast(device):
        given = [tensor.to(device) for tensor in inputs()]
        assert not is_observed([*given, None, torch.nn.Parameter(torch.ones(1, device=device))])


def test_the_keys_of_a_gpu_are_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """As PyTorch gives them to a tensor there; one without a GPU has no such tensor."""
    names = ("CUDA", "ADInplaceOrView", "AutogradCUDA", "AutocastCUDA")
    keys = [torch._C.DispatchKeySet(torch._C._dispatch_key_parse(name)) for name in names]
    for more, observed in (
        (keys[0], False),
        (torch._C._dispatch_keys(torch.ones(1, device="meta")), True),
    ):
        held = functools.reduce(operator.or_, (*keys, more))
        monkeypatch.setattr(torch._C, "_dispatch_keys", lambda tensor, held=held: held)
        assert is_observed([torch.ones(1)]) == observed


OBSERVERS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "mode": Passing,
    "default device": lambda: torch.device("meta"),
    "counter": lambda: FlopCounterMode(display=False),
    "profiler": lambda: torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]),
}
TENSORS = {
    "subclass": torch.ones(1).as_subclass(Named),
    "zero": torch._efficientzerotensor(1),
    "negated": torch.ones(1, dtype=torch.complex64).conj().imag,
    "meta": torch.ones(1, device="meta"),
}


@pytest.mark.parametrize("observer", [*OBSERVERS, *TENSORS])
def test_observers_and_unusual_tensors_need_the_operator(observer: str) -> None:
    with OBSERVERS.get(observer, nullcontext)():
        assert is_observed([torch.ones(1, device="cpu"), TENSORS.get(observer)])


@pytest.mark.parametrize("pre_dispatch", [False, True])
def test_a_trace_holds_the_operator(pre_dispatch: bool) -> None:
    graph = make_fx(lambda *qkv: attention(*qkv, SPARSEMAX), pre_dispatch=pre_dispatch)(*inputs())
    assert torch.ops.sparse_attn.cpu_forward.default in [node.target for node in graph.graph.nodes]


def test_a_default_device_is_not_that_of_what_the_kernels_keep() -> None:
    given = [tensor.requires_grad_() for tensor in inputs()]
    expected = torch.autograd.grad(attention(*given, SPARSEMAX).square().sum(), given)
    with torch.device("meta"):
        out = attention(*given, SPARSEMAX).square().sum()
    assert all(map(torch.equal, torch.autograd.grad(out, given), expected))


def test_tensors_that_are_lazily_negative_or_zero() -> None:
    query, key, _ = given = [tensor.requires_grad_() for tensor in inputs()]
    value = torch.view_as_complex(torch.randn(1, 2, 6, 1, 2)).conj().imag
    assert value.is_neg()
    expected = attention(query, key, value.resolve_neg(), SPARSEMAX)
    assert torch.equal(attention(query, key, value, SPARSEMAX), expected)
    out = attention(*given, SPARSEMAX)
    grads = torch.autograd.grad(out, given, torch._efficientzerotensor(out.shape))
    assert not any(grad.any() for grad in grads)


def test_what_is_kept_of_a_mapping_was_made_in_no_mode() -> None:
    """An inference tensor could not be saved for backward, a fake one has no values."""
    given = [tensor.requires_grad_() for tensor in inputs()]
    mapping = Mapping("r-softmax", r=0.30078125)  # which no other test keeps
    for mode in (FakeTensorMode(allow_non_fake_inputs=True), torch.inference_mode()):
        with mode, torch.no_grad():
            attention(*given, mapping, impl="cpu")
    out = attention(*given, mapping, impl="cpu")
    torch.testing.assert_close(out, attention(*given, mapping, impl="reference"))
    torch.autograd.grad(out.sum(), given)
