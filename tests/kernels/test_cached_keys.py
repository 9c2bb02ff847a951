"""Decoding with int8 keys: keys that they rule out would have had weight 0."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from sparse_attn import Mapping
from sparse_attn.kernels import attention
from sparse_attn.kernels.cpu.int8_keys import PANEL, empty_int8, quantise
from sparse_attn.kernels.dispatch import run
from sparse_attn.kernels.inputs import AttentionInputs

from .test_screening import LIST_ALL, MAPPINGS, OFF, ON, screening

KEYS, SPACE = 1300, 1344  # keys of the call, and those there is space for
SHAPES = {"grouped": (2, 6, 2, 64), "multi-query": (1, 9, 1, 80), "plain": (1, 2, 2, 256)}


def inputs(shape: str = "grouped") -> list[Tensor]:
    """One query, and keys and values at the start of longer tensors."""
    batch, heads, key_heads, dim = SHAPES[shape]
    generator = torch.Generator().manual_seed(dim)
    query = 2 * torch.randn(batch, heads, 1, dim, generator=generator)
    sizes = batch, key_heads, SPACE, dim
    key, value = (torch.randn(sizes, generator=generator)[:, :, :KEYS] for _ in range(2))
    return [query, key, value]


def int8_of(key: Tensor) -> Tensor:
    """The int8 keys, written in parts that are not whole panels."""
    int8 = empty_int8(key.new_empty(*key.shape[:2], SPACE, key.shape[3]))
    if int8 is None:
        pytest.skip("the processor has no int8 products (AVX-512 VNNI)")
    int8.fill_(0xFF)  # NaN where there are no keys
    for first, end in ((0, 1001), (1001, 1002), (1002, KEYS)):
        quantise(key, int8, first, end)
    return int8


def assert_right(tensors: list[Tensor], mapping: Mapping, atol: float = 2e-5, **call: Any) -> None:
    expected = attention(*tensors, mapping, impl="cpu", **call)
    int8 = int8_of(tensors[1])
    for mode in (OFF, ON, LIST_ALL):
        with screening(mode):
            call_inputs = AttentionInputs(*tensors, mapping, int8_keys=int8, **call)
            torch.testing.assert_close(
                run(call_inputs, "cpu").output, expected, atol=atol, rtol=0, equal_nan=True
            )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mapping", MAPPINGS, ids=str)
def test_output_is_that_without_int8_keys(mapping: Mapping, shape: str) -> None:
    assert_right(inputs(shape), mapping)


def test_masks() -> None:
    mask = torch.rand(2, 1, 1, KEYS, generator=torch.Generator().manual_seed(1)) < 0.9
    padding = torch.arange(KEYS) >= torch.tensor([3, 170])[:, None, None, None]
    by_head = mask & (torch.arange(KEYS) % 7 != torch.arange(6)[:, None, None])
    for given in (mask, padding, by_head, mask & False):
        assert_right(inputs(), Mapping("sparsemax"), mask=given)
    assert_right(inputs(), Mapping("entmax", alpha=1.5), key_lengths=torch.tensor([1299, 1150]))
    assert_right(inputs(), Mapping("sparsemax"), window=1200)


def test_other_calls_leave_the_int8_keys_unread() -> None:
    query, key, value = inputs()
    assert_right([query.expand(-1, -1, 3, -1), key, value], Mapping("sparsemax"))
    assert_right([query, key, value], Mapping("softmax"))
    assert_right([query, key, value[..., :5]], Mapping("sparsemax"))
    assert_right([query, key, value], Mapping("sparsemax", sink=0.5))
    assert_right([query, key, value], Mapping("sparsemax"), bias=torch.ones(KEYS))


def test_keys_without_weight_are_not_read() -> None:
    query, key, value = inputs()
    int8 = int8_of(key)
    value[:, :, 5:] = key[:, :, 5:] = math.nan  # but for keys whose bounds were made before
    key[:, :, :5], value[:, :, :5] = 9 * query[:, ::3], 1.0
    quantise(key, int8, 0, 5)
    output = run(AttentionInputs(query, key, value, Mapping("sparsemax"), int8_keys=int8), "cpu")
    torch.testing.assert_close(output.output[:, ::3], torch.ones(2, 2, 1, 64))


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
    query, key, value = inputs()
    change([query, key, value])
    for mapping in (Mapping("sparsemax"), Mapping("max-gap", a=64.0)):
        assert_right([query, key, value], mapping, atol=2e-3)


@pytest.mark.parametrize("odd", [math.nan, math.inf, 1e30])
@pytest.mark.parametrize("place", [0, 1], ids=["query", "key"])
def test_odd_entries_are_seen(place: int, odd: float) -> None:
    for zero in (False, True):
        tensors = inputs()
        if zero:
            tensors[0].zero_()
        tensors[place][0, 1, -1, 5] = odd
        assert_right(tensors, Mapping("sparsemax"))


def test_only_float_keys_of_whole_vectors_have_int8() -> None:
    whole = torch.zeros(1, 1, PANEL, 64)
    assert empty_int8(whole.half()) is None
    assert empty_int8(whole[..., :40]) is None
    assert empty_int8(whole.to("meta")) is None
