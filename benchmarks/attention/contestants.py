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
from benchmarks.timing import Contestant, rounded
from sparse_attn.kernels import attention
from sparse_attn.kernels.dispatch import choose, run
from sparse_attn.kernels.inputs import AttentionInputs
from sparse_attn.kernels.statistics import COLUMNS
from sparse_attn.mappings import Mapping

BASE = "SDPA"
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
# other parameters, for other shares of zeros; the group `sparsity` has these
SPARSE: dict[str, dict[str, Any]] = {
    "r-softmax, 90 % zeros": {"r": 0.9},
    "top-p-softmax, half the mass": {"p": 0.5},
    "max-gap of 64": {"a": 64.0},
}
ZEROS = ("softmax", "sparsemax", "entmax", "t-softmax", "r-softmax", "threshold-softmax", *SPARSE)
CURVES = ("r-softmax", "sparsemax", "entmax", "sigsoftmax")
BACKENDS = (
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
)
LONGEST_SORTED = 4096  # sorting the scores of longer rows takes seconds


def mapping_of(title: str) -> Mapping:
    """Return the mapping that an entry of MAPPINGS or SPARSE describes."""
    name = title.partition(" ")[0].removesuffix(",")
    return Mapping(name, **(MAPPINGS | SPARSE)[title])


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
    """Return the contestants of a case."""
    names = CURVES if case.few else tuple(MAPPINGS)
    if case.group == "sparsity":
        return [SDPA, *map(ours, ZEROS)]
    found = [ours(name) for name in names]
    if case.lengths is not None:
        found += [ours(name, by="key_lengths") for name in CURVES]
    if device.type == "cuda":
        if case.peer:
            beside = PEERS[case.peer]
            return [SDPA, beside, *(c for c in found if c.mapping == beside.mapping)]
        # the call of Transformers for a padded batch
        masked = [MASKED] if case.lengths is None and not case.causal else []
        return [SDPA, *masked, *found, _backend(SDPBackend.FLASH_ATTENTION)]
    others: list[Peer | Ours] = [PEERS["eager softmax"]]
    if not case.few:
        # each flex needs another compilation, which is slow
        others += [*map(_backend, BACKENDS), PEERS["FlexAttention"], ours("sigsoftmax", "flex")]
    if case.length <= LONGEST_SORTED:
        references = ("r-softmax", "sparsemax", "entmax")[: 1 if case.few else None]
        others += [ours(name, "reference") for name in references]
        others += [PEERS["entmax sparsemax"], PEERS["entmax entmax15"]]
    return [SDPA, *found, *others]


def _backend(backend: SDPBackend) -> Peer:
    name = f"{BASE} {backend.name.removesuffix('_ATTENTION').lower()}"
    return Peer(name, "softmax", False, functools.partial(peers.sdpa, backend=backend))


SDPA = Peer(BASE, "softmax", False, functools.partial(peers.sdpa, backend=None))
MASKED = Peer(
    f"{BASE} with a mask",
    "softmax",
    False,
    functools.partial(peers.sdpa, backend=None, masked=True),
)
# those of entmax and Liger only map scores to weights; PyTorch does the rest
PEERS = {
    name: Peer(name, mapping, False, make)
    for name, mapping, make in (
        ("eager softmax", "softmax", peers.eager),
        ("FlexAttention", "softmax", peers.flex),
        ("entmax sparsemax", "sparsemax", peers.entmax("sparsemax")),
        ("entmax entmax15", "entmax", peers.entmax("entmax15")),
        ("Liger sparsemax", "sparsemax", peers.liger),
        ("AdaSplash v1", "entmax", peers.adasplash("adasplash_v1", alpha=1.5)),
        ("AdaSplash v2", "entmax", peers.adasplash("adasplash_v2")),
    )
}
