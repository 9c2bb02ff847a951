"""Attention of other libraries as functions `make(problem)`, imported on demand.

They return the forward pass, a function of query, key and value. They raise NotImplementedError for
unsupported problems and ModuleNotFoundError if the library is not installed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from benchmarks.attention.cases import Problem

Forward = Callable[[Tensor, Tensor, Tensor], Tensor]

# eager implementations store several matrices of scores
EAGER_COPIES = 16


def sdpa(problem: Problem, backend: SDPBackend | None, masked: bool = False) -> Forward:
    """Return PyTorch's attention; `masked` adds a mask without effect, which excludes backends."""
    case, mask = problem.case, problem.seen
    if masked:
        full = (case.batch, 1, case.length, case.length)
        mask = torch.ones(full, dtype=torch.bool, device=problem.query.device)

    def forward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(
            q, k, v, mask, case.dropout, case.causal, enable_gqa=case.key_heads is not None
        )

    if backend is SDPBackend.MATH:
        room(problem)
    return forward if backend is None else sdpa_kernel(backend)(forward)


def flex(problem: Problem) -> Forward:
    """Return compiled FlexAttention; the block mask is not timed."""
    case = problem.case
    if case.dropout:
        raise NotImplementedError("FlexAttention has no dropout")
    if problem.query.device.type == "cpu" and torch.is_grad_enabled():
        raise NotImplementedError("FlexAttention has no backward pass on the CPU")
    lengths, block_mask = problem.key_lengths, None
    queries = problem.query.shape[2]
    past = case.length - queries

    def in_mask(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        seen = j >= 0 if lengths is None else j < lengths[b]
        if case.causal:
            seen = seen & (i + past >= j)
        return seen if case.window is None else seen & ((i + past - j).abs() < case.window)

    if case.causal or case.window or lengths is not None:
        batch = case.batch if lengths is not None else None
        device = problem.query.device.type
        block_mask = create_block_mask(in_mask, batch, None, queries, case.length, device=device)
    compiled = torch.compile(flex_attention, dynamic=False)
    return lambda q, k, v: compiled(q, k, v, block_mask=block_mask)


def eager(problem: Problem) -> Forward:
    """Return softmax attention as in Transformers: float32 weights, cast back."""
    return _attention_by_weights(problem, lambda scores: F.softmax(scores, dim=-1))


def _attention_by_weights(problem: Problem, weigh: Callable[[Tensor], Tensor]) -> Forward:
    """Return attention with a function from scores to weights, in float32 like ours."""
    room(problem)
    case, mask = problem.case, problem.seen
    if case.causal:
        ones = torch.ones(case.length, case.length, dtype=torch.bool, device=problem.query.device)
        mask = ones.tril()

    def forward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = (q @ k.transpose(-2, -1) * case.head_dim**-0.5).float()
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        return F.dropout(weigh(scores).to(v.dtype), case.dropout) @ v

    return forward


def entmax(function: str) -> Callable[[Problem], Forward]:
    def make(problem: Problem) -> Forward:
        weigh = getattr(_import("entmax"), function)
        return _attention_by_weights(problem, lambda scores: weigh(scores, dim=-1))

    return make


def liger(problem: Problem) -> Forward:
    _needs_cuda(problem, "Liger")
    function = _import("liger_kernel.ops", "liger-kernel").LigerSparsemaxFunction
    return _attention_by_weights(problem, lambda scores: function.apply(scores, -1))


def adasplash(function: str, alpha: float | None = None) -> Callable[[Problem], Forward]:
    """Return adasplash_v1(q, k, v, alpha, is_causal, varlen), or adasplash_v2(q, k, v, varlen).

    adasplash_v2 is causal entmax-1.5 for at least 64 keys; it needs varlen unless N is a power of
    two.
    """

    def make(problem: Problem) -> Forward:
        call = getattr(_import("adasplash"), function)
        options: dict[str, Any] = {"varlen": _varlen(problem)}
        if alpha is not None:
            options |= {"alpha": alpha, "is_causal": problem.case.causal}
        return lambda q, k, v: call(q, k, v, **options)

    return make


def _varlen(problem: Problem) -> Tensor | None:
    _needs_cuda(problem, "AdaSplash")
    case = problem.case
    if case.dropout or case.window or case.queries:
        raise NotImplementedError("AdaSplash has neither dropout, windows nor fewer queries")
    if problem.key_lengths is not None:
        return problem.key_lengths.int()
    if case.length.bit_count() == 1:
        return None
    return torch.full((case.batch,), case.length, dtype=torch.int32, device=problem.query.device)


def _needs_cuda(problem: Problem, who: str) -> None:
    if problem.query.device.type != "cuda":
        raise NotImplementedError(f"{who} needs a GPU")


def _import(module: str, package: str = "") -> ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name == module.split(".")[0]:
            raise ModuleNotFoundError(f"not installed: pip install {package or module}") from error
        raise


def room(problem: Problem) -> None:
    """Raise if the CPU would run out of memory; a GPU raises anyway."""
    if problem.query.device.type == "cpu":
        case = problem.case
        scores = case.batch * case.heads * (case.queries or case.length) * case.length
        need = EAGER_COPIES * 4 * scores
        if need > _available() / 2:
            raise NotImplementedError(f"would need about {need / 2**30:.0f} GiB")


def _available() -> int:
    """Return the available memory in bytes; psutil is a dependency of accelerate."""
    return int(importlib.import_module("psutil").virtual_memory().available)
