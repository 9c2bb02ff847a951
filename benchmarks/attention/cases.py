"""Shapes of attention and of training steps, by kind of device, and their tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from benchmarks.table import Case

Outputs = tuple[Tensor, ...]
PASSES = ("forward", "forward+backward")

# fmt: off
# Lengths in tokens of two batches of 32 MRPC training pairs, by MiniLM's (BERT's) tokenizer. The
# lengths of all 3,667 pairs: mean 53.2, 95th percentile 74, longest 103; the longest of a random
# batch of 32 has the median 79.
MRPC_79 = (
    35, 43, 39, 61, 30, 39, 39, 79, 70, 51, 72, 41, 47, 45, 58, 40,
    59, 38, 61, 62, 58, 46, 61, 62, 72, 67, 37, 42, 59, 42, 73, 67,
)
MRPC_103 = (
    35, 38, 29, 54, 50, 62, 62, 78, 32, 67, 53, 55, 59, 51, 46, 49,
    36, 48, 71, 74, 58, 53, 42, 52, 103, 49, 55, 52, 61, 48, 36, 48,
)
# fmt: on
DOCUMENTS = 8192, 5000  # tokens
PROTEINS = 2048, 1100, 730, 470, 350, 260, 190, 120  # residues


SOFTMAX = "ours softmax"
PEERS = {  # on a GPU, by the case whose tensors they get; AdaSplash-2 tunes for minutes
    "N=512": ("eager softmax", "entmax entmax15", "Liger sparsemax", "AdaSplash v1"),
    "causal N=8192": ("FlexAttention", "AdaSplash v2"),
}
COMPILED = "compiled"  # first word of the cases whose model is compiled with CUDA graphs


@dataclass(frozen=True)
class AttentionCase(Case):
    """An attention case.

    `lengths` are the valid tokens of each row, all if None; `queries` are the last ones, all if
    None; a query meets the keys nearer than `window`; `dropout` applies to the weights; `spread` is
    the standard deviation of the scores; `peer` is the only one beside SDPA on a GPU, where it may
    crash.
    """

    batch: int
    length: int
    heads: int = 12
    head_dim: int = 64
    lengths: tuple[int, ...] | None = None
    causal: bool = False
    window: int | None = None
    queries: int | None = None
    dropout: float = 0.0
    spread: float = 1.0
    few: bool = False  # only the most important mappings and peers
    peer: str = ""
    model: str = ""
    key_heads: int | None = None  # fewer than heads, for grouped queries

    @property
    def base(self) -> str:
        """Return the contestant in the denominator: zeros save time over our own softmax."""
        return SOFTMAX if self.group == "sparsity" else super().base

    @property
    def title(self) -> str:
        """Return the shape in words."""
        parts = [f"B={self.batch}"]
        if not self.model:
            parts += [f"H={self.heads}", f"d={self.head_dim}"]
        if self.key_heads is not None:
            parts.append(f"{self.key_heads} key heads")
        parts.append(f"N={self.length}")
        if self.lengths is not None:
            parts.append(f"{sum(self.lengths) / len(self.lengths):.0f} valid tokens on average")
        if self.causal:
            parts.append("causal")
        if self.window:
            parts.append(f"window {self.window}")
        if self.queries:
            parts.append(f"{self.queries} of the queries")
        if self.dropout:
            parts.append(f"dropout {self.dropout}")
        if self.spread != 1:
            parts.append(f"scores of standard deviation {self.spread:g}")
        return ", ".join([self.model] * bool(self.model) + parts)

    @property
    def share(self) -> float:
        """Return the share of the time: more for a slow step, less for one point of a curve."""
        return (4 if self.group == "step" else 1) * (0.5 if self.few else 1)


def cases(device: str, quick: bool) -> list[AttentionCase]:
    """Return the cases for a kind of device, by importance."""
    if quick:
        return _quick()
    return _cuda() if device == "cuda" else _cpu()


def _cpu() -> list[AttentionCase]:
    curve = _curve(4096, 4096, heads=2)
    return [
        AttentionCase("attention", "N=128", 8, 128),
        AttentionCase("attention", "N=512", 2, 512),
        AttentionCase("attention", "MRPC", 32, 79, lengths=MRPC_79),
        AttentionCase("step", "MiniLM MRPC", 32, 79, lengths=MRPC_79, model="MiniLM", dropout=0.1),
        *curve[:-2],
        AttentionCase("step", "BERT-base", 2, 128, model="BERT-base", dropout=0.1, few=True),
        AttentionCase("attention", "MRPC longest", 32, 103, lengths=MRPC_103, few=True),
        AttentionCase("attention", "dropout", 8, 128, dropout=0.1, few=True),
        AttentionCase("attention", "16 tokens", 1, 16, few=True),
        *curve[-2:],
        AttentionCase("step", "MiniLM full", 16, 128, model="MiniLM", dropout=0.1, few=True),
        AttentionCase("step", "MiniLM 512", 2, 512, model="MiniLM", dropout=0.1, few=True),
        AttentionCase("step", "MiniLM 512, no dropout", 2, 512, model="MiniLM", few=True),
        AttentionCase("step", "BERT-base 512", 1, 512, model="BERT-base", dropout=0.1, few=True),
        AttentionCase("step", "BERT-base 512, no dropout", 1, 512, model="BERT-base", few=True),
        *(AttentionCase("sparsity", f"N={n}", max(1, 1024 // n), n, h, spread=2.0)
          for n, h in ((128, 12), (512, 12), (2048, 4), (8192, 1))),
        *(AttentionCase("sparsity", f"causal N={n}", 1, n, h, spread=2.0, causal=True, key_heads=k)
          for n, h, k in ((2048, 8, 2), (8192, 2, 1))),
        *(AttentionCase("decoding", f"{n:,} keys", 1, n, spread=2.0, queries=1, few=True)
          for n in (16384, 65536)),
    ]  # fmt: skip


def _cuda() -> list[AttentionCase]:
    causal = [
        AttentionCase("causal", f"causal N={n}", 1, n, 16, causal=True, few=n != 8192)
        for n in _lengths(65536)
        if n >= 4096
    ]
    main = [
        AttentionCase("attention", "N=128", 32, 128),
        AttentionCase("attention", "N=512", 32, 512),
        AttentionCase("attention", "MRPC", 32, 79, lengths=MRPC_79),
        causal[1],
    ]
    beside = [
        replace(case, name=f"{case.name} beside {peer}", peer=peer)
        for case in main
        for peer in PEERS.get(case.name, ())
    ]
    bert: dict[str, Any] = {"model": "BERT-base", "dropout": 0.1}
    return [
        *main,
        AttentionCase("step", "BERT-base", 32, 128, **bert),
        AttentionCase("step", "BERT-base MRPC", 32, 79, lengths=MRPC_79, **bert),
        causal[2],
        *beside,
        AttentionCase("step", f"{COMPILED} BERT-base", 32, 128, few=True, **bert),
        AttentionCase("attention", "MRPC longest", 32, 103, lengths=MRPC_103, few=True),
        AttentionCase("attention", "dropout", 32, 128, dropout=0.1, few=True),
        *reversed(_curve(32768, 65536)),
        # of the size of ModernBERT's, with the padding of two documents in a batch
        AttentionCase("long", "documents", 2, 8192, lengths=DOCUMENTS, few=True),
        AttentionCase("long", "documents, local", 2, 8192, lengths=DOCUMENTS, window=65, few=True),
        AttentionCase("long", "proteins", 8, 2048, 20, lengths=PROTEINS, few=True),
        AttentionCase("decoding", "16,384 keys", 8, 16384, queries=1, few=True),
        AttentionCase("decoding", "65,536 keys", 2, 65536, queries=1, few=True),
        causal[0],
        *causal[3:],
    ]


def _quick() -> list[AttentionCase]:
    step: dict[str, Any] = {"model": "MiniLM", "dropout": 0.1, "few": True}
    return [
        AttentionCase("attention", "N=128", 2, 128, few=True),
        AttentionCase("attention", "MRPC", 8, 79, lengths=MRPC_79[:8], few=True),
        AttentionCase("step", "MiniLM MRPC", 4, 79, lengths=MRPC_79[4:8], **step),
        AttentionCase("sparsity", "N=512", 1, 512, heads=2, spread=2.0),
        AttentionCase("decoding", "1,024 keys", 1, 1024, spread=2.0, queries=1, few=True),
        *_curve(512, 512, heads=4),
    ]


def _curve(tokens: int, longest: int, **more: Any) -> list[AttentionCase]:
    """Return cases with about the same number of tokens at every length up to the longest."""
    return [
        AttentionCase("length", f"N={n}", max(1, tokens // n), n, few=True, **more)
        for n in _lengths(longest)
    ]


def _lengths(highest: int) -> list[int]:
    return [n for n in (2**power for power in range(6, 17)) if n <= highest]


@dataclass(frozen=True)
class Problem:
    """The tensors of an attention case, shared by all contestants."""

    case: AttentionCase
    query: Tensor  # [B, H, Q, D], contiguous as some peers need it
    key: Tensor
    value: Tensor
    grad: Tensor
    key_lengths: Tensor | None  # [B]
    mask: Tensor | None  # [B, 1, Q, N] boolean, as Transformers passes it to the plug-in

    @property
    def seen(self) -> Tensor | None:
        """The mask with the window, for those who know no window."""
        window, keys = self.case.window, self.key.shape[2]
        if window is None:
            return self.mask
        i = torch.arange(keys, device=self.key.device)
        near = ((i[:, None] - i).abs() < window)[-self.query.shape[2] :]
        return near if self.mask is None else self.mask & near

    @property
    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.query, self.key, self.value

    def call(self, forward: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Callable[[], Outputs]:
        """Return a call: inference, or forward with the gradients of query, key and value."""
        if torch.is_grad_enabled():
            inputs = tuple(t.detach().requires_grad_() for t in self.inputs)
            return lambda: torch.autograd.grad(forward(*inputs), inputs, self.grad)

        def infer() -> Outputs:
            with torch.no_grad():
                return (forward(*self.inputs),)

        return infer

    def first(self) -> Problem:
        """Return the first row and two heads or more, in float32 without dropout, for a check.

        As many as share their keys.
        """
        group = self.query.shape[1] // self.key.shape[1]
        heads = max(2, group)
        query, grad = (t[:1, :heads].float() for t in (self.query, self.grad))
        key, value = (t[:1, : heads // group].float() for t in (self.key, self.value))
        mask = None if self.mask is None else self.mask[:1]
        lengths = None if self.key_lengths is None else self.key_lengths[:1]
        case = replace(self.case, dropout=0.0)
        return Problem(case, query, key, value, grad, lengths, mask)


def problem(case: AttentionCase, device: torch.device) -> Problem:
    """Return standard normal tensors: scores of variance 1; float32 on CPU, bfloat16 on GPU."""
    generator = torch.Generator(device).manual_seed(0)
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    shape = (case.batch, case.heads, case.length, case.head_dim)
    key_shape = (case.batch, case.key_heads or case.heads, *shape[2:])
    query, key, value, grad = (
        torch.randn(size, generator=generator, device=device).to(dtype)
        for size in (shape, key_shape, key_shape, shape)
    )
    query = case.spread * query
    if case.queries is not None:
        query, grad = (t[:, :, -case.queries :].contiguous() for t in (query, grad))
    lengths = mask = None
    if case.lengths is not None:
        lengths = torch.tensor(case.lengths, device=device)
        valid = torch.arange(case.length, device=device) < lengths[:, None]
        mask = valid[:, None, None].expand(-1, 1, query.shape[2], -1)
        grad = grad * valid[:, None, -query.shape[2] :, None]  # losses ignore padding
    return Problem(case, query, key, value, grad, lengths, mask)
