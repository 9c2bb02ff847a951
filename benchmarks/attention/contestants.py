"""Contestants: a name, a mapping, and a function that makes the call for a problem.

If `make(problem)` raises, the error becomes the reason in the row.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

from benchmarks.attention import peers
from benchmarks.attention.cases import AttentionCase, Problem
from benchmarks.race import Contestant
from benchmarks.timing import rounded
from sparse_attn.kernels import attention
from sparse_attn.kernels.dispatch import choose, run
from sparse_attn.kernels.inputs import AttentionInputs
from sparse_attn.kernels.statistics import COLUMNS
from sparse_attn.mappings import Mapping

BASE = "SDPA"
MASKED = f"{BASE} with a mask"
# every mapping at one parameter value, preferably a published one; the first word is its name
MAPPINGS: dict[str, dict[str, Any]] = {
    "softmax": {},
    "r-softmax": {"r": 0.15},
    "t-softmax": {"t": 1.0},
    "sparsemax": {},
    "entmax": {"alpha": 1.5},
    "sigsoftmax": {},
    "taylor-softmax": {},
    "spherical-softmax": {},
    "softmax-abs": {},
    "normalized-relu": {},
    "normalized-sigmoid": {},
    "sparsegen": {"lam": 0.2},
    "sparsecone": {"q": 0.5},
    "sparsehourglass": {"q": 0.5},
    "top-p-softmax": {"p": 0.9},
    "threshold-softmax": {"lam": 0.01},
    "max-gap": {"a": 1.0},
    "adaptive-temperature": {},
    "softpick": {},
    "clipped-softmax": {"alpha": 0.25},
    "sigmoid": {},
    "relu": {},
    "scaled-softmax": {},
    "softmax and a sink": {"sink": 0.0},
}
POINTWISE = ("sigsoftmax", "taylor-softmax", "spherical-softmax")
CURVES = ("r-softmax", "sparsemax", "entmax", "sigsoftmax")
BACKENDS = (  # the last on GPUs only
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
    SDPBackend.CUDNN_ATTENTION,
)
LONGEST_SORTED = 4096  # sorting the scores of longer rows takes seconds


def mapping_of(title: str) -> Mapping:
    """Return the mapping that an entry of MAPPINGS describes."""
    return Mapping(title.partition(" ")[0], **MAPPINGS[title])


def share_of_zeros(problem: Problem, mapping: Mapping) -> float:
    """Return the share of weights that are exactly 0."""
    inputs = AttentionInputs(
        *problem.inputs,
        mapping,
        mask=problem.mask,
        causal=problem.case.causal,
        need_statistics=True,
    )
    with torch.no_grad():
        rows = run(inputs).statistics
    assert rows is not None
    valid, support = (rows[..., COLUMNS.index(name)].sum().item() for name in ("valid", "support"))
    return rounded(1 - support / valid)


@dataclass(frozen=True)
class Peer(Contestant):
    """Attention of another library."""

    make: Callable[[Problem], peers.Forward]


@dataclass(frozen=True)
class Ours(Contestant):
    """Our attention: `impl` is its argument; padding is given `by` mask or key_lengths."""

    impl: str | None
    by: str

    def make(self, problem: Problem) -> peers.Forward:
        mapping, options = self._call(problem)
        if self.impl == "reference":
            peers.room(problem)

        def forward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return attention(q, k, v, mapping, **options, impl=self.impl)

        return forward

    def implementation(self, problem: Problem) -> str:
        """Return the implementation that dispatch selects for a training call."""
        if self.impl is not None:
            return self.impl
        mapping, options = self._call(problem)
        query, key, value = (t.detach().requires_grad_() for t in problem.inputs)
        inputs = AttentionInputs(query, key, value, mapping, **options)
        with torch.enable_grad():
            return choose(inputs)

    def _call(self, problem: Problem) -> tuple[Mapping, dict[str, Any]]:
        return mapping_of(self.mapping), {
            "mask": problem.mask if self.by == "mask" else None,
            "key_lengths": problem.key_lengths if self.by == "key_lengths" else None,
            "causal": problem.case.causal,
            "window": problem.case.window,
            "dropout": problem.case.dropout,
        }


def ours(name: str, impl: str | None = None, by: str = "mask") -> Ours:
    """Return a contestant with our attention; the reference implementation counts as a peer."""
    suffix = f" [{impl}]" * bool(impl) + f" ({by})" * (by != "mask")
    return Ours(f"ours {name}{suffix}", name, impl != "reference", impl, by)


def contestants(case: AttentionCase, device: torch.device) -> list[Peer | Ours]:
    """Return the contestants of a case, the base first."""
    gpu, names = device.type == "cuda", CURVES if case.few else tuple(MAPPINGS)
    found: list[Peer | Ours] = [_peer(BASE, "softmax", functools.partial(peers.sdpa, backend=None))]
    if gpu and case.lengths is None and not case.causal:
        # the call of Transformers for a padded batch
        masked = functools.partial(peers.sdpa, backend=None, masked=True)
        found.append(_peer(MASKED, "softmax", masked))
    found += [ours(name) for name in names]
    if case.lengths is not None:
        found += [ours(name, by="key_lengths") for name in CURVES]
    if not case.few or gpu:
        for backend in BACKENDS[: None if gpu else 3]:
            name = f"{BASE} {backend.name.removesuffix('_ATTENTION').lower()}"
            found.append(_peer(name, "softmax", functools.partial(peers.sdpa, backend=backend)))
        found.append(_peer("FlexAttention", "softmax", peers.flex))
        # each needs another compilation, which is slow on the CPU
        found += [ours(name, "flex") for name in POINTWISE[: None if gpu and not case.few else 1]]
    found.append(_peer("eager softmax", "softmax", peers.eager))
    if case.length <= LONGEST_SORTED:
        found += [
            ours(name, "reference")
            for name in ("r-softmax", "sparsemax", "entmax")[: 1 if case.few else None]
        ]
        # these only map scores to weights; PyTorch does the rest
        found.append(_peer("entmax sparsemax", "sparsemax", peers.entmax("sparsemax")))
        found.append(_peer("entmax entmax15", "entmax", peers.entmax("entmax15")))
        found.append(_peer("Liger sparsemax", "sparsemax", peers.liger))
        if not case.few:
            found.append(_peer("entmax entmax_bisect", "entmax", peers.entmax("entmax_bisect")))
    # it compiles for every length, about a minute each
    if gpu and (case.group != "length" or case.length >= LONGEST_SORTED) and not case.queries:
        v1 = functools.partial(peers.adasplash, "adasplash_v1", is_causal=case.causal)
        found.append(_peer("AdaSplash v1", "entmax", v1(alpha=1.5)))
        if case.causal:
            found.append(_peer("AdaSplash v2", "entmax", peers.adasplash("adasplash_v2")))
        else:
            found.append(_peer("AdaSplash v1 sparsemax", "sparsemax", v1(alpha=2.0)))
    return found


def _peer(name: str, mapping: str, make: Callable[[Problem], peers.Forward]) -> Peer:
    return Peer(name, mapping, False, make)
