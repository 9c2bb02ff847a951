"""One run: free context and word vectors fitted to the targets, and how near they came."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from tqdm import tqdm

from experiments.bottleneck.config import Cell
from experiments.bottleneck.heads import make_head
from sparse_attn.heads.base import Head


def fit(cell: Cell, log_p: Tensor, device: torch.device) -> tuple[Head, Tensor]:
    """Minimise the mean of -sum_j P*_j log Q_j over context vectors and head.

    Adam; a context vector, which only its own target sees, moves in the steps that show it
    (`SparseAdam`). Vectors start so that scores have variance 1, whatever D. The targets are shown
    in random order, the rest of a pass that fills no batch left out.

    Args:
        cell: the run.
        log_p: [N, M], log P*.

    Returns:
        The head and the context vectors [N, D].
    """
    torch.manual_seed(cell.seed)
    head = make_head(cell.head, cell.dimension, cell.vocabulary, cell.options).to(device)
    contexts = nn.Embedding(cell.contexts, cell.dimension, sparse=True, device=device)
    nn.init.normal_(contexts.weight)
    nn.init.normal_(head.weight, std=cell.dimension**-0.5)
    optimizers = (
        torch.optim.Adam(head.parameters(), cell.learning_rate),
        torch.optim.SparseAdam(contexts.parameters(), cell.learning_rate),
    )
    schedules = [LambdaLR(o, lambda step: 1 - step / cell.steps) for o in optimizers]
    steps = tqdm(_batches(cell, device), total=cell.steps, unit="step", leave=False, delay=5)
    for rows in steps:
        p = log_p[rows].exp()  # [B, M]
        loss = -(p * head.log_prob(contexts(rows))).sum(-1).mean()
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        for schedule in schedules:
            schedule.step()
    return head, contexts.weight.detach()


def _batches(cell: Cell, device: torch.device) -> Iterator[Tensor]:
    """The contexts of every step, [B]."""
    order = torch.empty(0, dtype=torch.long, device=device)
    for _ in range(cell.steps):
        if len(order) < cell.batch:
            order = torch.randperm(cell.contexts).to(device)
        yield order[: cell.batch]
        order = order[cell.batch :]


@torch.no_grad()
def measure(head: Head, contexts: Tensor, log_p: Tensor, batch: int) -> dict[str, float]:
    """How near Q is to P*, summed in float64.

    Args:
        contexts: [N, D].
        log_p: [N, M], log P*.
        batch: contexts at a time.

    Returns:
        kl: mean over contexts of KL(P* || Q) = sum_j P*_j (log P*_j - log Q_j), in nats, with
            0 log 0 = 0;
        mode_matching: share of contexts whose most probable word is that of P*, in %;
        log_error: ||log P* - log Q||_F^2 / (N M), in nats^2 per entry.
    """
    kl = matches = squares = torch.zeros((), dtype=torch.float64, device=log_p.device)
    for h, rows in zip(contexts.split(batch), log_p.split(batch), strict=True):
        log_q = head.log_prob(h).double()
        difference = rows.double() - log_q
        kl = kl + (rows.double().exp() * difference).sum()
        matches = matches + (rows.argmax(-1) == log_q.argmax(-1)).sum()
        squares = squares + difference.square().sum()
    return {
        "kl": kl.item() / len(log_p),
        "mode_matching": 100 * matches.item() / len(log_p),
        "log_error": squares.item() / log_p.numel(),
    }
