"""One run: fit free context and word vectors to the targets and measure the fit."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from tqdm import tqdm

from experiments.bottleneck.config import BottleneckRunConfig
from experiments.bottleneck.heads import make_head
from experiments.bottleneck.targets import Targets, draw
from sparse_attn.evaluation.predictions import DivergedError
from sparse_attn.heads.base import Head
from sparse_attn.system.machine import choose_device, device_name, versions


class BottleneckRun(NamedTuple):
    """A config and the device it runs on."""

    config: BottleneckRunConfig
    device: torch.device

    def perform(self, _: Path) -> dict[str, Any]:
        """Draw targets, fit and measure; return the content of results.json.

        Raises:
            DivergedError: Q is NaN, or infinitely far from P*.
        """
        config, device = self
        drawn = draw(config.alpha, config.contexts, config.vocabulary, config.seed)
        targets = Targets(drawn.log_p.to(device))
        started = time.perf_counter()
        head, contexts = fit(config, targets.log_p)
        measured = measure(head, contexts, targets.log_p, config.batch)
        seconds = time.perf_counter() - started
        if not all(map(math.isfinite, measured.values())):
            raise DivergedError(f"{measured}: training has diverged; lower learning_rate")
        floors = targets.floors
        return {
            "score": -measured["kl"],
            **measured,
            # linear softmax with D >= min(N, M) - 1 can fit every matrix
            "floor": floors[config.dimension].item() if config.dimension < len(floors) else 0.0,
            "parameters": sum(p.numel() for p in head.parameters()) + contexts.numel(),
            "seconds": round(seconds, 2),
            "device": device_name(device),
            "versions": versions("torch", "numpy"),
        }


def assemble(config: BottleneckRunConfig) -> BottleneckRun:
    """Return the run on its device; raise ValueError if the device is unavailable."""
    return BottleneckRun(config, choose_device(config.device))


def fit(config: BottleneckRunConfig, log_p: Tensor) -> tuple[Head, Tensor]:
    """Minimise the mean of -sum_j P*_j log Q_j over context vectors and head.

    Adam for the head, `SparseAdam` for the context vectors, which move only in steps that use them.
    Initial scores have variance 1 for every D. Targets are shuffled each pass; an incomplete last
    batch is dropped.

    Args:
        config: config of the run.
        log_p: [N, M], log P*.

    Returns:
        The head and the context vectors [N, D].
    """
    torch.manual_seed(config.seed)
    head = make_head(config.head, config.dimension, config.vocabulary, config.options)
    head = head.to(log_p.device)
    contexts = nn.Embedding(config.contexts, config.dimension, sparse=True, device=log_p.device)
    nn.init.normal_(contexts.weight)
    nn.init.normal_(head.weight, std=config.dimension**-0.5)
    optimizers: tuple[torch.optim.Optimizer, ...] = (
        torch.optim.Adam(head.parameters(), config.learning_rate),
        torch.optim.SparseAdam(contexts.parameters(), config.learning_rate),
    )
    schedules = [LambdaLR(o, lambda step: 1 - step / config.steps) for o in optimizers]
    batches = _batches(config, log_p.device)
    for rows in tqdm(batches, total=config.steps, unit="step", leave=False, delay=5, disable=None):
        p = log_p[rows].exp()  # [B, M]
        loss = -(p * head.log_prob(contexts(rows))).sum(-1).mean()
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            schedule.step()
    return head, contexts.weight.detach()


def _batches(config: BottleneckRunConfig, device: torch.device) -> Iterator[Tensor]:
    """Context indices of every step, [B]."""
    order = torch.empty(0, dtype=torch.long, device=device)
    for _ in range(config.steps):
        if len(order) < config.batch:
            order = torch.randperm(config.contexts).to(device)
        yield order[: config.batch]
        order = order[config.batch :]


@torch.no_grad()
def measure(head: Head, contexts: Tensor, log_p: Tensor, batch: int) -> dict[str, float]:
    """Distance of Q from P*, summed in float64.

    Args:
        contexts: [N, D].
        log_p: [N, M], log P*.
        batch: contexts per forward pass.

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
