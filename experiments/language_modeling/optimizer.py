"""Optimizers of a stage: SGD with clipping, averaged SGD, Adam; schedules and triggers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from experiments.language_modeling.sections import StageConfig
from sparse_attn.heads import parameter_groups


def make_optimizer(
    model: nn.Module, stage: StageConfig, mapping_lr: float | None, averaging: bool
) -> torch.optim.Optimizer:
    """Return the optimizer of a stage, with `initial_lr` in each group.

    Averaging is torch's ASGD with t0 = 0 and lambd = 0: plain SGD with a running mean in the
    optimizer state. It applies a new learning rate one step late, as in AWD-LSTM.
    """
    lr = stage.learning_rate
    groups = parameter_groups(model, lr, lr if mapping_lr is None else mapping_lr)
    for group in groups:
        group["initial_lr"] = group["lr"]
    if stage.optimizer == "adam":
        return torch.optim.Adam(groups, lr, weight_decay=stage.weight_decay)
    if averaging:
        return torch.optim.ASGD(groups, lr, lambd=0.0, t0=0, weight_decay=stage.weight_decay)
    return torch.optim.SGD(groups, lr, weight_decay=stage.weight_decay)


def set_learning_rate(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Set the learning rate of every group to `factor` times its initial one."""
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * factor


def schedule(stage: StageConfig, step: int, done: float) -> float:
    """Return the learning rate factor of a step; `done` is the share of the budget used."""
    warm = min(1.0, (step + 1) / stage.warmup_steps) if stage.warmup_steps else 1.0
    return warm * (1 - done if stage.schedule == "linear" else 1.0)


def draw_length(stage: StageConfig) -> int:
    """Draw the tokens per row of a step: N(bptt, 5), or N(bptt / 2, 5) in 5% of steps; at least 5.

    The draw is torch's, because checkpoints save its random state.
    """
    if not stage.vary:
        return stage.bptt
    uniform, normal = torch.rand(()).item(), torch.randn(()).item()
    base = stage.bptt if uniform < 0.95 else stage.bptt / 2
    length = max(5, int(base + 5 * normal))
    return length if stage.longest is None else min(length, stage.bptt + stage.longest)


def triggered(history: list[float], nll: float, patience: int) -> bool:
    """Return whether nll exceeds the lowest validation loss before the last `patience` ones."""
    return len(history) > patience and nll > min(history[:-patience])


@contextmanager
def averaged(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Use the averages of ASGD as weights, and restore the weights afterwards."""
    parameters = [parameter for parameter in optimizer.state if "ax" in optimizer.state[parameter]]
    weights = [parameter.detach().clone() for parameter in parameters]
    with torch.no_grad():
        for parameter in parameters:
            parameter.copy_(optimizer.state[parameter]["ax"])
        try:
            yield
        finally:
            for parameter, weight in zip(parameters, weights, strict=True):
                parameter.copy_(weight)
