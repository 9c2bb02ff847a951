"""Quantiles, masses and thresholds that the kernels search: exact for any row, in few passes."""

from itertools import product

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

import triton.language as tl

from sparse_attn import Mapping
from sparse_attn.kernels import attention
from sparse_attn.kernels.triton import bounds, passes, search, solve

from .backends import MARKS, TRITON

pytestmark = list(MARKS[TRITON])
DIM = 64
MOST = 4  # passes before the one for the output
KEYS = 200
ROWS = 8
R = [Mapping("r-softmax", r=r) for r in (0.15, 0.9)]
TOP_P = [Mapping("top-p-softmax", p=p) for p in (0.5, 0.9)]


@pytest.fixture
def sweeps(monkeypatch):
    """Names of the steps of each pass over the keys, in order."""
    seen = []
    original = passes.sweep

    def counting(step, *arguments):
        seen.append(step.fn.__name__)
        return original(step, *arguments)

    for module in (passes, bounds, search, solve):
        monkeypatch.setattr(module, "sweep", counting)
    return seen


def weights(scores, mapping, impl, dtype, **options):
    """p of each row of scores: the queries are unit vectors, the values also, some at a time."""
    rows, keys = scores.shape
    query = torch.eye(DIM, dtype=dtype)[None, None, :rows]
    key = torch.zeros(1, 1, keys, DIM, dtype=dtype)
    key[0, 0, :, :rows] = scores.mT.to(dtype)
    unit = torch.eye(keys + -keys % DIM, dtype=dtype)[:keys].split(DIM, dim=1)
    with torch.no_grad():
        parts = [
            attention(query, key, value[None, None], mapping, scale=1.0, impl=impl, **options)
            for value in unit
        ]
    return torch.cat(parts, -1)[0, 0, :, :keys]


def normal():
    return torch.randn(ROWS, KEYS)


ADVERSARIAL = {
    "equal": lambda: torch.full((ROWS, KEYS), 1.7),
    "two clusters": lambda: torch.where(normal() > 0, 1.0, -2.0),
    "distant clusters": lambda: torch.where(normal() > 0, 5.0, -5.0) + 1e-2 * normal(),
    "heavy tails": lambda: (normal() / normal()).clamp(-1e3, 80.0),
    "an outlier above": lambda: normal().index_fill(1, torch.tensor([7]), 1e30),
    "an outlier below": lambda: normal().index_fill(1, torch.tensor([7]), -1e30),
    "ties": lambda: torch.randint(-2, 3, (ROWS, KEYS)).float(),
    "ties of float16": lambda: normal().half().float().mul(16).round() / 16,
    "neighbours": lambda: 1 + torch.randint(0, 4, (ROWS, KEYS)) * 2.0**-23,
    "sorted": lambda: normal().sort(1).values,
    "one place of a tile": lambda: torch.where(torch.arange(KEYS) % 64 == 3, -1.0, 1.0) * (
        1 + 0.1 * normal().abs()
    ),
    "geometric": lambda: -(1.25 ** torch.arange(KEYS)).clamp(max=1e20).expand(ROWS, -1)[
        :, torch.randperm(KEYS)
    ].contiguous(),
}  # fmt: skip


def assert_exact(scores, mapping, **options):
    """The zeros of the reference, except of weights too small for float32."""
    p = weights(scores, mapping, "triton", torch.float32, **options).double()
    truth = weights(scores, mapping, "reference", torch.float64, **options)
    torch.testing.assert_close(p, truth, rtol=1e-4, atol=1e-6)
    clear = (truth == 0) | (truth > 1e-36)
    assert torch.equal((p == 0)[clear], (truth == 0)[clear])


@pytest.mark.parametrize("mapping", R, ids=str)
@pytest.mark.parametrize("rows", ADVERSARIAL)
def test_the_quantile_is_exact(rows, mapping, sweeps):
    torch.manual_seed(0)
    assert_exact(ADVERSARIAL[rows](), mapping)
    assert len(sweeps) < 40 * -(-KEYS // DIM), sweeps


@pytest.mark.parametrize("mapping", TOP_P, ids=str)
@pytest.mark.parametrize("rows", ["equal", "heavy tails", "an outlier below", "sorted"])
def test_the_mass_is_exact(rows, mapping):
    torch.manual_seed(0)
    assert_exact(ADVERSARIAL[rows](), mapping)


@pytest.mark.parametrize("keys", [300, 512, 2048])
@pytest.mark.parametrize("mapping", [*R, TOP_P[1]], ids=str)
def test_passes_over_the_keys(mapping, keys, sweeps):
    """The first pass gives the moments, the last collects scores, and two or three are between."""
    torch.manual_seed(3)
    query, key = torch.randn(1, 1, 64, 64).half(), torch.randn(1, 1, keys, 64).half()
    with torch.no_grad():
        attention(query, key, key, mapping, impl="triton")
    assert sweeps[0] == "surveyed"
    assert len(sweeps) <= MOST + (keys > 512), sweeps


# passes in float32
FEW = {
    Mapping("softpick"): 1,
    Mapping("clipped-softmax", gamma=-0.01): 1,
    Mapping("threshold-softmax", lam=0.01): 2,
    Mapping("max-gap", a=1.0): 2,
    Mapping("adaptive-temperature"): 2,
}


@pytest.mark.parametrize("mapping", FEW, ids=str)
def test_few_passes(mapping, sweeps):
    query, key = torch.randn(1, 1, 16, 64), torch.randn(1, 1, KEYS, 64)
    with torch.no_grad():
        attention(query, key, key, mapping, impl="triton")
    assert len(sweeps) == FEW[mapping], sweeps


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 4), (torch.float16, 3)], ids=str)
def test_passes_for_a_threshold(dtype, most, sweeps):
    """For the maximum and the threshold, besides the list of tiles and the output."""
    torch.manual_seed(2)
    query, key = (torch.randn(1, 1, n, 64).to(dtype) for n in (32, 512))
    with torch.no_grad():
        attention(query, key, key, Mapping("entmax", alpha=1.5), impl="triton")
    assert len(sweeps) <= most, sweeps


# Newton's method for the thresholds of sparsemax and entmax in half precision

THRESHOLDS = [
    Mapping("sparsemax"),
    Mapping("entmax", alpha=1.5),
    Mapping("entmax", alpha=1.25),
    Mapping("sparsehourglass", q=0.5),
]
FAR = tl.constexpr(-1.0)  # excess of sum p that never stops the method


def clustered(keys):
    """A few large scores, and many that lose their weight only in the last step of sparsemax."""
    scores = torch.full((keys,), -0.5)
    scores[: keys // 2] += 1e-3 * torch.rand(keys // 2)
    scores[[3, 70]] = 0.0
    return scores


def solved(query, key, value, mapping):
    """The output, and gradients for a loss of random weights."""
    leaves = [t.half().requires_grad_() for t in (query, key, value)]
    output = attention(*leaves, mapping, impl="triton")
    upstream = torch.randn(output.shape, generator=torch.Generator().manual_seed(0))
    return [output.detach(), *torch.autograd.grad(output, leaves, upstream.half())]


@pytest.mark.parametrize(
    ("mapping", "keys"),
    [*product(THRESHOLDS, [79, 150, 300, 512]), *product(THRESHOLDS[:2], [2048])],
    ids=str,
)
def test_stopping_early_changes_no_result(mapping, keys, monkeypatch):
    """Output, zeros and gradients are those of a threshold settled to 1e-6, but for roundings."""
    torch.manual_seed(keys)
    query, key = 2 * torch.randn(1, 1, 8, 16), torch.randn(1, 1, keys, 16)
    query[0, 0, 7] = torch.eye(16)[0] * 4  # its scores are the first numbers of the keys
    key[0, 0, :, 0] = clustered(keys)
    value = torch.randn(1, 1, keys, 16)
    early = solved(query, key, value, mapping)
    monkeypatch.setattr(passes, "EXCESS", FAR)
    settled = solved(query, key, value, mapping)
    for found, expected in zip(early, settled, strict=True):
        eps = torch.finfo(torch.float16).eps
        torch.testing.assert_close(found, expected, rtol=2 * eps, atol=eps)
