"""Perplexity, top-k error and the matrix of log-probabilities of a language model.

All measures split a stream into `batch` rows, trim the remainder, and read each row in segments,
carrying the state, with dropout off and the first token of a row unscored.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from tqdm.auto import tqdm

from experiments.language_modeling.corpus import batchify
from experiments.language_modeling.models import LanguageModel
from experiments.language_modeling.sections import INF

# number of distributions held in memory at once
_ROWS = 256
# replaces log 0 in the matrix of log-probabilities: log of the smallest normal float32
LOG_ZERO = math.log(torch.finfo(torch.float32).tiny)


def mean_nll(
    model: LanguageModel,
    stream: Tensor,
    batch: int,
    segment: int,
    chunk: int = 256,
    progress: str | None = None,
) -> float:
    """-1/N sum_t log p(w_t | w_<t) over the N scored tokens, <eos> included, in nats.

    Summed in float64. inf if a mapping gives a target exactly 0, NaN for a diverged model.

    Args:
        stream: (tokens,) int64, a split of `Corpus`.
        batch: number of rows that the stream is split into.
        segment: tokens per row and forward pass.
        chunk: argument of `Head.nll`.
        progress: title of a progress bar; none by default.

    Raises:
        ValueError: invalid batch or segment, see `segments`.
    """
    total, count = 0.0, 0
    with evaluating(model), torch.no_grad():
        for hidden, targets in _hidden(model, stream, batch, segment, progress):
            nll = model.head.nll(hidden, targets, reduction="none", chunk=chunk)
            total += nll.sum(dtype=torch.float64).item()
            count += targets.numel()
    return total / count


def perplexity(nll: float) -> float:
    """exp(nll), inf on overflow."""
    return torch.tensor(nll, dtype=torch.float64).exp().item()


def top_k_error(
    model: LanguageModel, stream: Tensor, batch: int, segment: int, k: int = 10
) -> float:
    """Return the share of targets not among the k most probable words, in [0, 1].

    Ties count against the target: it is among the k if at most k words, itself included, are at
    least as probable. Hence a uniform distribution has error 1, and so has NaN. k = 10 gives the
    top-10 error of de Brebisson & Vincent 2016.

    Raises:
        ValueError: k < 1, or invalid batch or segment, see `segments`.
    """
    if k < 1:
        raise ValueError(f"k={k}: expected at least 1; the papers report 10")
    outside, count = 0, 0
    with evaluating(model), torch.no_grad():
        for hidden, targets in _hidden(model, stream, batch, segment):
            parts = hidden.flatten(0, 1).split(_ROWS), targets.flatten().split(_ROWS)
            for part, words in zip(*parts, strict=True):
                log_p = model.head.log_prob(part)  # [rows, V]
                target = log_p.gather(-1, words.unsqueeze(-1))
                outside += int(((~(log_p < target)).sum(-1) > k).sum())
                count += len(words)
    return outside / count


def log_prob_matrix(model: LanguageModel, stream: Tensor, contexts: int, segment: int) -> Tensor:
    """log p(w | w_<=t) for the first `contexts` positions t of the stream: [contexts, V].

    The matrix is on the CPU, in the model's dtype. log 0 becomes `LOG_ZERO` = -87.3; finite values
    are kept, even below it. Kanai et al. 2018 call the transpose the log-output matrix.

    Raises:
        ValueError: the stream has fewer contexts, or invalid segment, see `segments`.
    """
    check_contexts(stream, contexts)
    dtype = model.embedding.weight.dtype
    matrix, filled = torch.empty(contexts, model.head.vocab, dtype=dtype), 0
    with evaluating(model), torch.no_grad():
        for hidden, _ in _hidden(model, stream[: contexts + 1], 1, segment):
            for part in hidden.flatten(0, 1).split(_ROWS):
                log_p = model.head.log_prob(part)  # [rows, V]
                matrix[filled : filled + len(part)] = log_p.masked_fill(log_p == -INF, LOG_ZERO)
                filled += len(part)
    return matrix


def check_contexts(stream: Tensor, contexts: int) -> None:
    """Raise ValueError if the stream has fewer contexts."""
    if not 1 <= contexts < len(stream):
        raise ValueError(
            f"contexts={contexts}: expected 1 to {len(stream) - 1}, one less than the "
            f"{len(stream)} tokens of the stream"
        )


@contextmanager
def evaluating(model: LanguageModel) -> Iterator[None]:
    """Set eval mode, and restore the previous mode afterwards."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


def segments(
    model: LanguageModel, stream: Tensor, batch: int, length: int, progress: str | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield inputs and targets (batch, <= length), in order, on the model's device.

    Raises:
        ValueError: batch or length below 1, or a stream too short for `batchify`.
    """
    if batch < 1 or length < 1:
        raise ValueError(f"batch={batch}, segment={length}: expected at least 1 of each")
    rows = batchify(stream, batch).to(model.embedding.weight.device)
    last = rows.shape[1] - 1
    starts = range(0, last, length)
    for start in tqdm(starts, desc=progress, disable=progress is None, leave=False):
        end = min(start + length, last)
        yield rows[:, start:end], rows[:, start + 1 : end + 1]


def _hidden(
    model: LanguageModel, stream: Tensor, batch: int, length: int, progress: str | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield hidden states (B, T, d) and targets (B, T), carrying the state."""
    state = model.initial_state(batch)
    for tokens, targets in segments(model, stream, batch, length, progress):
        hidden, state = model(tokens, state)
        yield hidden, targets
