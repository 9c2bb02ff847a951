"""What the Triton kernels need of the host: nothing that waits for the GPU, or copies to it.

So a CUDA graph can hold a call. Without a GPU the meta device stands in for one: its tensors have
no values to wait for, and every operator tells its device.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sparse_attn import Mapping
from sparse_attn.kernels import attention, by_head, operators
from sparse_attn.kernels.triton import plan

from .compiling import stubbed
from .problems import LEARNED, SETTINGS

META = torch.device("meta")
# operators without work for the GPU
IDLE = {"expand", "select.int", "view", "view.dtype", "_unsafe_view", "unsqueeze", "detach"}
IDLE |= {"new_empty", "new_empty_strided", "empty_like"}


class Log(TorchDispatchMode):
    """Operators with work for the GPU, where the tensors of all must be."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        name = function.name().removeprefix("aten::")
        met = [t for t in tree_leaves((args, kwargs, result)) if isinstance(t, Tensor)]
        assert all(t.device == META for t in met), f"{name} of {[t.device for t in met]}"
        if name not in IDLE:
            self.names.append(name)
        return result


@pytest.fixture(autouse=True)
def unobserved(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Without kernels, and as if nothing observed the calls, which the log does."""
    for module in (operators, by_head):
        monkeypatch.setattr(module, "is_observed", lambda tensors: False)
    with stubbed():
        yield


def passes(mapping: Mapping, keys: int = 16, **options: Any) -> list[list[str]]:
    """Operators with work for the GPU, besides the kernels, forward and backward."""
    query, key, value = (
        torch.empty(2, n, 2, 16, device=META, dtype=torch.bfloat16).transpose(1, 2).requires_grad_()
        for n in (16, keys, keys)
    )
    mapping = mapping.to(META)
    with Log() as forward:
        out = attention(query, key, value, mapping, impl="triton", **options)
    grad = torch.empty_like(out)
    with Log() as backward:
        torch.autograd.grad(out, [query, key, value, *mapping.parameters()], grad)
    return [forward.names, backward.names]


def tensors(**kinds: tuple[Any, ...]) -> dict[str, Tensor]:
    return {n: torch.empty(shape, device=META, dtype=dtype) for n, (shape, dtype) in kinds.items()}


OPTIONS: list[dict[str, Any]] = [
    {},
    {"causal": True, "window": 5, "softcap": 20.0, "scale": 0.5},
    tensors(mask=((2, 1, 16, 16), torch.bool), bias=((2, 16, 16), torch.bfloat16)),
    tensors(key_lengths=((2,), torch.int64)),
]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", ["softmax", "sparsemax", "r-softmax", "entmax", "sigsoftmax"])
def test_kernels_alone(name: str, options: dict[str, Any]) -> None:
    mapping = Mapping(name)
    passes(mapping)  # from then on its parameter is kept
    assert passes(mapping, **options) == [[], []]


def test_what_else_needs_the_gpu() -> None:
    mapping = Mapping("softmax", sink=0.5)
    passes(mapping)
    assert passes(mapping) == [[], []]
    assert passes(mapping, dropout=0.1) == [["randint"], []]
    # marks of tiles without support
    assert passes(Mapping("sparsemax"), keys=3000) == [["new_zeros"], []]
    learned = Mapping("sigsoftmax", learn="bias", num_heads=2)
    assert passes(learned) == [[], ["sum.dim_IntList"]]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize(
    ("name", "params", "learn"),
    [*((n, p, ()) for n, p in SETTINGS), *((n, p, tuple(p)) for n, p in LEARNED)],
)
def test_nothing_waits_or_leaves_the_device(
    name: str, params: dict[str, Any], learn: tuple[str, ...], options: dict[str, Any]
) -> None:
    if name.startswith("scaled") and "softcap" in options:
        options = {"causal": True, "window": 5}
    if name.startswith("scaled") and learn:
        options = {n: v for n, v in options.items() if n != "bias"}
    forward, _ = passes(Mapping(name, learn=learn, **params), dropout=0.1, **options)
    assert "randint" in forward


def test_plans_of_ever_new_lengths_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "MOST_PLANS", 2)
    monkeypatch.setattr(plan, "_PLANS", {})
    for keys in (16, 32, 48, 16):
        passes(Mapping("softmax"), keys=keys)
        assert 0 < len(plan._PLANS) <= 2
