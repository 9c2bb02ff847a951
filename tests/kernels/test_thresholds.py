"""Newton's method for the thresholds of sparsemax and entmax in half precision."""

from itertools import product

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

import triton.language as tl

from sparse_attn import Mapping
from sparse_attn.kernels import attention
from sparse_attn.kernels.triton import passes

from .backends import MARKS, TRITON

pytestmark = list(MARKS[TRITON])
MAPPINGS = [
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
    [*product(MAPPINGS, [79, 150, 300, 512]), (MAPPINGS[0], 2048), (MAPPINGS[1], 2048)],
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


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 5), (torch.float16, 4)], ids=str)
def test_passes_over_the_keys(dtype, most, monkeypatch):
    """For the maximum, the list of tiles and the threshold, before that for the output."""
    seen = ["listed"]
    original = passes.sweep

    def counting(step, *arguments):
        seen.append(step.fn.__name__)
        return original(step, *arguments)

    monkeypatch.setattr(passes, "sweep", counting)
    torch.manual_seed(2)
    query, key = (torch.randn(1, 1, n, 64).to(dtype) for n in (64, 512))
    with torch.no_grad():
        attention(query[:, :, :32], key, key, Mapping("entmax", alpha=1.5), impl="triton")
    assert len(seen) <= most, seen
