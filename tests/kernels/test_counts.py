"""How many positions a row loses: the count of the docs, in whole numbers and fractions."""

import math
from fractions import Fraction

import pytest
import torch

from sparse_attn import Mapping
from sparse_attn import functional as maps
from sparse_attn.kernels import attention
from sparse_attn.mappings import get_spec

from .backends import CPU, CUDA, REFERENCE, TRITON, Backend, each

DECIMALS = [f"0.{i:02}" for i in range(1, 100)] + ["0.125", "0.333", "0.999", "0.49999"]
DIM = 64  # of queries and values, which Triton wants alike
LENGTHS = [2, 3, 11, 26, 51, 101, 201, 301, 501, 1001]


def zeros_of(r: str, n: int) -> int:
    """floor(r (n - 1)) + 1, of r as it is written."""
    return math.floor(Fraction(r) * (n - 1)) + 1


def missed(n: int) -> list[str]:
    """Those r whose product with n - 1 is rounded below a whole number in float32."""
    return [r for r in DECIMALS if int(torch.tensor(float(r)) * (n - 1)) + 1 < zeros_of(r, n)]


def row_of(n: int, dtype: torch.dtype) -> torch.Tensor:
    """A row without ties, in a range in which no exponential underflows."""
    return torch.randperm(n).to(dtype) * (8 / n)


def assert_counts(weights: torch.Tensor, n: int, decimals: list[str]) -> None:
    got = (weights == 0).sum(-1).tolist()
    assert list(zip(decimals, got, strict=True)) == [(r, zeros_of(r, n)) for r in decimals]


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    "name",
    [
        "r-softmax",
        "detached-r-softmax",
        "scaled-r-softmax",
        "mixed-r-softmax",
        "random-drop-softmax",
    ],
)
def test_a_mapping_drops_as_many_as_its_formula_says(name: str, dtype: torch.dtype, n: int) -> None:
    values = [float(r) for r in DECIMALS]
    scores = row_of(n, dtype).expand(len(values), 1, n)
    mapping = Mapping(name, num_heads=len(values), r=values)
    assert_counts(mapping(scores).squeeze(1), n, DECIMALS)
    one = torch.stack([get_spec(name).function(scores[0, 0], r=r) for r in values[::10]])
    assert_counts(one, n, DECIMALS[::10])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_top_k_keeps_as_many_as_its_dial_says(dtype: torch.dtype) -> None:
    dial = get_spec("top-k-softmax").dial
    for u in range(11):
        k = dial.value(u / 10)
        assert (maps.top_k_softmax(row_of(1500, dtype), k) > 0).sum() == 2 ** (10 - u)


@each(REFERENCE, CPU, TRITON, CUDA)
@pytest.mark.parametrize("n", [11, 51, 101, 201])
@pytest.mark.parametrize("sink", [False, True], ids=["plain", "sink"])
def test_attention_drops_as_many_as_the_formula_says(backend: Backend, n: int, sink: bool) -> None:
    dtypes = [torch.float32] if backend.impl == "triton" else [torch.float32, torch.float64]
    decimals = ["0.15", "0.53", *missed(n)] if backend == TRITON else DECIMALS
    for dtype in dtypes:
        scores = row_of(n, dtype)
        if sink:  # the largest, which no row drops
            scores = scores.sort(descending=True).values
        heads = len(decimals)
        query = torch.zeros(1, heads, 1, DIM, dtype=dtype)
        query[..., 0] = 1
        key = torch.zeros(1, 1, n - sink, DIM, dtype=dtype)
        key[..., 0] = scores[sink:]
        value = torch.eye(n + -n % DIM, dtype=dtype)[None, None, : n - sink]
        mapping = Mapping("r-softmax", num_heads=heads, r=[float(r) for r in decimals])
        given = {"sink": scores[:1].expand(heads).clone().to(backend.device)} if sink else {}
        parts = [
            attention(
                *(t.to(backend.device) for t in (query, key, part)),
                mapping.to(backend.device),
                scale=1.0,
                impl=backend.impl,
                **given,
            )
            for part in value.split(DIM, dim=-1)
        ]
        weights = torch.cat(parts, -1)[0, :, 0, : n - sink].cpu()
        assert_counts(weights, n, decimals)
