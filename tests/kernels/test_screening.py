"""Long rows on the CPU: keys that int8 products rule out would have had weight 0."""

import ctypes
import math
import random
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
        library.set_screening(ctypes.c_int64(mode))
        yield bool(library.has_int8_keys(ctypes.c_int64(64)))
    finally:
        library.set_screening(ctypes.c_int64(ON))


def inputs(dim: int = 64, keys: int = KEYS, queries: int = KEYS) -> list[Tensor]:
    generator = torch.Generator().manual_seed(dim)
    shapes = (1, 4, queries, dim), (1, 2, keys, dim), (1, 2, keys, dim)
    query, key, value = (torch.randn(shape, generator=generator) for shape in shapes)
    return [2 * query, key, value]


def outputs(tensors: list[Tensor], mapping: Mapping, **call: Any) -> dict[int, Tensor]:
    """Attention without screening, with it, and with every key listed."""
    out = {}
    for mode in (OFF, ON, LIST_ALL):
        with screening(mode):
            torch.manual_seed(0)  # of dropout
            out[mode] = attention(*tensors, mapping, impl="cpu", **call)
    return out


def assert_right(out: dict[int, Tensor]) -> None:
    torch.testing.assert_close(out[ON], out[LIST_ALL], atol=0, rtol=0, equal_nan=True)
    torch.testing.assert_close(out[ON], out[OFF], atol=2e-5, rtol=0, equal_nan=True)


def assert_screened(out: dict[int, Tensor]) -> None:
    """Scores of listed keys are rounded differently, if this machine screens."""
    with screening(ON) as here:
        assert torch.equal(out[ON], out[OFF]) is not here


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("mapping", MAPPINGS, ids=str)
def test_no_key_with_weight_is_left_out(mapping: Mapping, call: str) -> None:
    out = outputs(inputs(), mapping, **CALLS[call])
    assert_right(out)
    assert_screened(out)


@pytest.mark.parametrize("dim", [32, 80, 256])
def test_head_sizes(dim: int) -> None:
    out = outputs(inputs(dim), Mapping("sparsemax"))
    assert_right(out)
    assert_screened(out)


@pytest.mark.parametrize("shape", [(1, 1, KEYS, KEYS), (1, 4, 1, KEYS), (1, 1, KEYS, 1)], ids=str)
def test_masks(shape: tuple[int, ...]) -> None:
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(1)) < 0.8
    mask[:, :, 0] |= shape[2] == 1
    out = outputs(inputs(), Mapping("sparsemax"), mask=mask)
    assert_right(out)
    assert_screened(out)


def key_errors(tensors: list[Tensor], a: int, b: int, draw: random.Random) -> None:
    """The rounding error of keys a and b is parallel to the query: the bound is met."""
    query, key, _ = tensors
    query.fill_(1.0), key.fill_(-20.0)
    key[:, :, ::64, 0] = -127.0  # the scale of each panel is 1
    level, error = draw.randrange(2, 60), draw.choice([0.3, 0.4, 0.49])
    key[:, :, a], key[:, :, b] = level - error, level - 1 + error


def query_errors(tensors: list[Tensor], a: int, b: int, draw: random.Random) -> None:
    """The rounding error of the query is parallel to keys a and b."""
    query, key, _ = tensors
    half = query.shape[-1] // 2
    level, error = draw.randrange(10, 60), draw.choice([0.3, 0.4, 0.49])
    query[..., 0], query[..., 1:half], query[..., half:] = 127.0, level - error, level + error - 1
    key.fill_(-1.0)
    key[..., 0] = 0.0
    key[:, :, a], key[:, :, b] = 0.0, 0.0
    size = draw.uniform(0.1, 2.0)
    key[:, :, a, 1:half], key[:, :, b, half : 2 * half - 1] = size, size


@pytest.mark.parametrize("dim", [32, 64, 256])
@pytest.mark.parametrize("errors", [key_errors, query_errors])
def test_rounding_errors_at_the_bound(errors: Any, dim: int) -> None:
    """Key b has a weight by a hair, while its int8 product is as low as the bound allows."""
    for seed in range(30):
        draw = random.Random(seed)
        tensors = inputs(dim, keys=1088, queries=64)
        a, b = (64 * panel + draw.randrange(64) for panel in draw.sample(range(17), 2))
        errors(tensors, a, b, draw)
        scores = (tensors[0][0, 0, 0] * tensors[1][0, 0]).double().sum(1)
        gap = (scores[a] - scores[b]).abs().item() + 1e-6 * scores[a].abs().item()
        out = outputs(tensors, Mapping("t-softmax", t=gap * (1 + 1e-4)), scale=1.0)
        assert torch.equal(out[ON], out[LIST_ALL]), f"seed {seed}"
        assert torch.equal(out[ON].isnan(), out[OFF].isnan())


def test_squares_that_underflow() -> None:
    width, tensors = 1e-5, inputs(32, keys=1280, queries=64)
    query, key, _ = tensors
    query.fill_(-2.5e-23), key.fill_(0.0)
    query[..., 0], key[..., 0] = 1e-15 / 127, -9.9e16
    key[:, :, 0, 0], key[:, :, 0, 1:] = 0.0, 9.9e16
    top = -31 * 2.5e-23 * 9.9e16  # of key 0
    key[:, :, 64:128, 0] = (top - width / 2) * 127e15
    out = outputs(tensors, Mapping("t-softmax", t=width), scale=1.0)
    assert torch.equal(out[ON], out[LIST_ALL])


def test_keys_of_very_different_sizes() -> None:
    tensors = inputs()
    tensors[1] *= torch.logspace(-8, 0, KEYS)[:, None]
    assert_right(outputs(tensors, Mapping("sparsemax")))


def test_a_parameter_that_is_not_a_number_is_seen() -> None:
    mapping = Mapping("sparsegen", lam=0.25, learn=["lam"])
    with torch.no_grad():
        next(mapping.parameters()).fill_(math.nan)
    mask = torch.ones(1, 1, KEYS, KEYS, dtype=torch.bool)
    mask[:, :, :40] = False
    out = outputs(inputs(), mapping, mask=mask)
    assert torch.equal(out[ON].isnan(), out[OFF].isnan())


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
