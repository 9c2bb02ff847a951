"""Who is measured: a name, the mapping it computes, and how to make it for a problem.

What `make(problem)` raises becomes the row's reason.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

from benchmarks import peers
from benchmarks.cases import Case, Problem
from benchmarks.report import BASE, Entry
from sparse_attn.kernels import attention
from sparse_attn.kernels.dispatch import choose
from sparse_attn.kernels.inputs import AttentionInputs
from sparse_attn.mappings import Mapping

# everything with one value of its parameter, the one of the published runs where there is one
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
}
POINTWISE = ("sigsoftmax", "taylor-softmax", "spherical-softmax")
CURVES = ("r-softmax", "sparsemax", "entmax", "sigsoftmax")
LONGEST_SORTED = 4096  # beyond it, sorting every row of a matrix of scores takes seconds


@dataclass(frozen=True)
class Peer(Entry):
    """Somebody else's code."""

    make: Callable[[Problem], peers.Forward]


@dataclass(frozen=True)
class Ours(Entry):
    """Our attention: `impl` as it takes it, padding given `by` mask or key_lengths."""

    impl: str | None
    by: str

    def make(self, problem: Problem) -> peers.Forward:
        case = problem.case
        mapping = Mapping(self.mapping, **MAPPINGS[self.mapping])
        mask = problem.mask if self.by == "mask" else None
        lengths = problem.key_lengths if self.by == "key_lengths" else None
        if self.impl == "reference":
            peers.room(problem)
        peers.allow_variants()

        def forward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return attention(
                q,
                k,
                v,
                mapping,
                mask=mask,
                key_lengths=lengths,
                causal=case.causal,
                dropout=case.dropout,
                impl=self.impl,
            )

        return forward

    def implementation(self, problem: Problem) -> str:
        """What the dispatch takes for a training call."""
        if self.impl is not None:
            return self.impl
        query, key, value = (t.detach().requires_grad_() for t in problem.inputs)
        case = problem.case
        inputs = AttentionInputs(
            query,
            key,
            value,
            Mapping(self.mapping, **MAPPINGS[self.mapping]),
            mask=problem.mask if self.by == "mask" else None,
            key_lengths=problem.key_lengths if self.by == "key_lengths" else None,
            causal=case.causal,
            dropout=case.dropout,
        )
        with torch.enable_grad():
            return choose(inputs)


Contestant = Peer | Ours


def contestants(case: Case, device: torch.device) -> list[Contestant]:
    """Everyone for a case, the base first."""
    names = CURVES if case.few else tuple(MAPPINGS)
    found: list[Contestant] = [_peer(BASE, "softmax", functools.partial(peers.sdpa, backend=None))]
    found += [_ours(name) for name in names]
    if case.lengths is not None:
        found += [_ours(name, by="key_lengths") for name in CURVES]
    if not case.few or device.type == "cuda":
        found += [_backend(backend) for backend in _backends(device)]
        found += [_peer("FlexAttention", "softmax", peers.flex)]
        # each is one more compilation, which takes long on the CPU
        many = device.type == "cuda" and not case.few
        found += [_ours(name, impl="flex") for name in POINTWISE[: None if many else 1]]
    found += [_peer("eager softmax", "softmax", peers.eager)]
    if case.length <= LONGEST_SORTED:
        written = ("r-softmax",) if case.few else ("r-softmax", "sparsemax", "entmax")
        found += [_ours(name, impl="reference") for name in written]
        found += _on_scores(case)
    # it compiles for every length, about a minute each
    if device.type == "cuda" and (case.group != "length" or case.length >= LONGEST_SORTED):
        found += _adasplash(case)
    return found


def _ours(name: str, impl: str | None = None, by: str = "mask") -> Ours:
    suffix = f" [{impl}]" if impl else ""
    suffix += "" if by == "mask" else f" ({by})"
    return Ours(f"ours {name}{suffix}", name, True, impl, by)


def _peer(name: str, mapping: str, make: Callable[[Problem], peers.Forward]) -> Peer:
    return Peer(name, mapping, False, make)


def _backends(device: torch.device) -> tuple[SDPBackend, ...]:
    usual = (
        SDPBackend.FLASH_ATTENTION,
        SDPBackend.EFFICIENT_ATTENTION,
        SDPBackend.MATH,
    )
    return (*usual, SDPBackend.CUDNN_ATTENTION) if device.type == "cuda" else usual


def _backend(backend: SDPBackend) -> Contestant:
    name = backend.name.removesuffix("_ATTENTION").lower()
    return _peer(f"{BASE} {name}", "softmax", functools.partial(peers.sdpa, backend=backend))


def _on_scores(case: Case) -> list[Contestant]:
    """Peers that map scores to weights, and leave the rest of attention to PyTorch."""
    found: list[tuple[str, str, Callable[[Problem], peers.Forward]]] = [
        ("entmax sparsemax", "sparsemax", peers.entmax("sparsemax")),
        ("entmax entmax15", "entmax", peers.entmax("entmax15")),
        ("Liger sparsemax", "sparsemax", peers.liger),
    ]
    if not case.few:
        found += [("entmax entmax_bisect", "entmax", peers.entmax("entmax_bisect"))]
    return [_peer(*entry) for entry in found]


def _adasplash(case: Case) -> list[Contestant]:
    found: list[tuple[str, str, Callable[[Problem], peers.Forward]]] = [
        ("AdaSplash v1", "entmax", functools.partial(peers.adasplash_v1, alpha=1.5))
    ]
    if case.causal:
        found += [("AdaSplash v2", "entmax", peers.adasplash_v2)]
    else:
        sparsemax = functools.partial(peers.adasplash_v1, alpha=2.0)
        found += [("AdaSplash v1 sparsemax", "sparsemax", sparsemax)]
    return [_peer(*entry) for entry in found]
