"""Long rows on the CPU: keys that int8 products rule out would have had weight 0."""

import ctypes
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from sparse_attn import Mapping
from sparse_attn.kernels import attention
from sparse_attn.kernels.cpu import build

OFF, ON, LIST_ALL = range(3)
KEYS = 1300  # at least 1,024, and not whole panels of 64
MAPPINGS = [
    Mapping("sparsemax"),
    Mapping("sparsegen", lam=0.25),
    Mapping("entmax", alpha=1.5),
    Mapping("entmax", alpha=1.75),
    Mapping("t-softmax", t=1.0),
    Mapping("max-gap", a=64.0),
]
CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"window": 1100},
    "key_lengths": {"key_lengths": torch.tensor([1290])},
    "packed": {"cu_seqlens": torch.tensor([0, 1200, KEYS]), "causal": True},
    "dropout": {"dropout": 0.25},
}


@contextmanager
def screening(mode: int) -> Iterator[bool]:
    """Yields whether this machine screens keys."""
    library = build.library()
    if isinstance(library, str):
        pytest.skip(library)
    try:
        yield bool(library.set_screening(ctypes.c_int64(mode)))
    finally:
        library.set_screening(ctypes.c_int64(ON))


def inputs(dim: int = 64, spread: float = 2.0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(dim)
    shapes = (1, 4, KEYS, dim), (1, 2, KEYS, dim), (1, 2, KEYS, dim)
    query, key, value = (torch.randn(shape, generator=generator) for shape in shapes)
    return [spread * query, key, value]


def outputs(tensors: list[Tensor], mapping: Mapping, **call: Any) -> dict[int, Tensor]:
    """Attention without screening, with it, and with every key listed."""
    out = {}
    for mode in (OFF, ON, LIST_ALL):
        with screening(mode):
            torch.manual_seed(0)  # of dropout
            out[mode] = attention(*tensors, mapping, impl="cpu", **call)
    return out


def assert_right(out: dict[int, Tensor], atol: float = 2e-5) -> None:
    torch.testing.assert_close(out[ON], out[LIST_ALL], atol=0, rtol=0, equal_nan=True)
    torch.testing.assert_close(out[ON], out[OFF], atol=atol, rtol=0, equal_nan=True)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("mapping", MAPPINGS, ids=str)
def test_no_key_with_weight_is_left_out(mapping: Mapping, call: str) -> None:
    assert_right(outputs(inputs(), mapping, **CALLS[call]))


@pytest.mark.parametrize("dim", [16, 80, 256])
def test_head_sizes(dim: int) -> None:
    assert_right(outputs(inputs(dim), Mapping("sparsemax")))


@pytest.mark.parametrize("shape", [(1, 1, KEYS, KEYS), (1, 4, 1, KEYS)], ids=str)
def test_masks(shape: tuple[int, ...]) -> None:
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(1)) < 0.5
    mask[:, :, 0] = False
    assert_right(outputs(inputs(), Mapping("sparsemax"), mask=mask))


def test_screening_takes_place() -> None:
    with screening(ON) as here:
        if not here:
            pytest.skip("the processor has no int8 products (AVX-512 VNNI)")
    out = outputs(inputs(), Mapping("sparsemax"))
    assert not torch.equal(out[ON], out[OFF])  # scores are rounded differently


def scaled_rows(tensors: list[Tensor]) -> None:
    tensors[1] *= torch.logspace(-8, 0, KEYS)[:, None]


def one_huge_coordinate(tensors: list[Tensor]) -> None:
    tensors[0][..., 3] *= 1e-4
    tensors[1][..., 3] = 1e4


def within_a_step(tensors: list[Tensor]) -> None:
    tensors[1][:] = tensors[1][:, :, :1] + 1e-3 * tensors[1]


def ties_at_the_floor(tensors: list[Tensor]) -> None:
    tensors[0].fill_(1.0), tensors[1].fill_(0.0)
    tensors[1][..., 0] = torch.where(torch.arange(KEYS) % 7 == 0, 8.0, 0.0)


def zeros(tensors: list[Tensor]) -> None:
    tensors[0][:, :, ::3], tensors[1][:, :, ::5] = 0, 0


def subnormal(tensors: list[Tensor]) -> None:
    tensors[0] *= 1e-30
    tensors[1] *= 1e-12


@pytest.mark.parametrize(
    "change",
    [scaled_rows, one_huge_coordinate, within_a_step, ties_at_the_floor, zeros, subnormal],
)
def test_rows_that_int8_hardly_tells_apart(change: Any) -> None:
    tensors = inputs()
    change(tensors)
    assert_right(outputs(tensors, Mapping("sparsemax")), atol=2e-3)
    assert_right(outputs(tensors, Mapping("max-gap", a=64.0)), atol=2e-3)


@pytest.mark.parametrize("odd", [math.nan, math.inf, 1e30])
@pytest.mark.parametrize("place", [0, 1], ids=["query", "key"])
def test_odd_entries_are_seen_as_without_screening(place: int, odd: float) -> None:
    tensors = inputs()
    tensors[place][0, 1, 7, 5] = odd
    out = outputs(tensors, Mapping("sparsemax"))
    assert torch.equal(out[ON].isnan(), out[OFF].isnan())
    assert_right(out)


def gradients(mode: int, mapping: Mapping, dtype: torch.dtype) -> list[Tensor]:
    leaves = [tensor.to(dtype).requires_grad_() for tensor in inputs()]
    with screening(mode):
        attention(*leaves, mapping, impl="cpu", causal=True).square().sum().backward()
    return [leaf.grad for leaf in leaves]


@pytest.mark.parametrize("mapping", MAPPINGS, ids=str)
def test_gradients_are_as_exact_as_without_screening(mapping: Mapping) -> None:
    exact = gradients(OFF, mapping, torch.float64)
    modes = [gradients(mode, mapping, torch.float32) for mode in (OFF, ON)]
    for true, without, screened in zip(exact, *modes, strict=True):
        assert (screened - true).abs().max() <= 2 * (without - true).abs().max()
