"""Dynamic evaluation: the model learns from each test segment after it was scored.

Krause et al. 2018 (arXiv 1709.07432), eqs. 5 and 6. G is the root mean square gradient of
each parameter on the training set (old form: of the sum). For each test segment: score, then

    theta <- theta + min(1, lamb rho) (theta_0 - theta) - lr g / (G + epsilon).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from experiments.language_modeling.measures import evaluating, segments
from experiments.language_modeling.models import LanguageModel
from experiments.language_modeling.sections import DynamicConfig


@dataclass(frozen=True, eq=False)
class Statistics:
    """G and rho of each trainable parameter; a tied weight counts once."""

    parameters: list[nn.Parameter]
    scale: list[Tensor]
    decay: list[Tensor]


def dynamic_evaluation(
    model: LanguageModel,
    train_stream: Tensor,
    test_stream: Tensor,
    config: DynamicConfig,
    statistics: Statistics | None = None,
) -> float:
    """Return the mean nll of the test stream in nats; segments are scored before learning.

    The stream is one row, the state is carried and dropout is off. lr = lamb = 0 gives
    `mean_nll(model, test_stream, 1, config.segment)`, bit for bit if the model computes the same
    with and without gradients (torch's LSTM does not). The weights are restored, also after an
    error; `.grad` does not change.

    Args:
        train_stream, test_stream: (tokens,) int64.
        statistics: the result of `gradient_statistics` for this model, form, segment and batch;
            computed from the train stream if omitted.

    Raises:
        ValueError: a stream is too short, or no parameter is trainable.
    """
    if statistics is None:
        statistics = gradient_statistics(model, train_stream, config)
    lamb, lr, epsilon = config.rates
    decay = [(lamb * rho).clamp(max=1) for rho in statistics.decay]
    total, count = 0.0, 0
    parameters = statistics.parameters
    with evaluating(model), torch.enable_grad(), _restored(parameters) as trained:
        for nll, gradients in _steps(model, parameters, test_stream, 1, config.segment, "dynamic"):
            total += nll.sum(dtype=torch.float64).item()
            count += nll.numel()
            for theta, theta_0, gradient, scale, pull in zip(
                parameters, trained, gradients, statistics.scale, decay, strict=True
            ):
                theta.data += pull * (theta_0 - theta.data) - lr * gradient / (scale + epsilon)
    return total / count


def gradient_statistics(
    model: LanguageModel, train_stream: Tensor, config: DynamicConfig
) -> Statistics:
    """Return G and rho of `config.form` over the training set, for any lamb, lr and epsilon.

    Raises:
        ValueError: the stream is too short for `config.batch`, or no parameter has a gradient.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise ValueError(
            "model: no parameter is trainable; set requires_grad for dynamic evaluation"
        )
    squares = [torch.zeros_like(p) for p in parameters]
    batch, length, count = config.batch, config.segment, 0
    with evaluating(model), torch.enable_grad():
        for _, gradients in _steps(model, parameters, train_stream, batch, length, "gradients"):
            count += 1
            for square, gradient in zip(squares, gradients, strict=True):
                square.addcmul_(gradient, gradient)
    new = config.form == "new"
    scale = [(square / count if new else square).sqrt() for square in squares]
    norm = sum(g.mean().item() for g in scale) / (len(scale) if new else 1)
    if norm == 0:
        raise ValueError(
            "model: every gradient on train_stream is 0, so that dynamic evaluation has no scale; "
            "train the model first"
        )
    return Statistics(parameters, scale, [g / norm for g in scale])


def _steps(
    model: LanguageModel,
    parameters: list[nn.Parameter],
    stream: Tensor,
    batch: int,
    length: int,
    progress: str,
) -> Iterator[tuple[Tensor, tuple[Tensor, ...]]]:
    """Yield, for each segment, the nll of its tokens (B, T) and the gradients of their mean."""
    state = model.initial_state(batch)
    for tokens, targets in segments(model, stream, batch, length, progress):
        hidden, state = model(tokens, state)
        nll = model.head.nll(hidden, targets, reduction="none")
        yield nll.detach(), torch.autograd.grad(nll.mean(), parameters, materialize_grads=True)


@contextmanager
def _restored(parameters: list[nn.Parameter]) -> Iterator[list[Tensor]]:
    """Yield copies of the parameters, and restore them afterwards."""
    values = [p.detach().clone() for p in parameters]
    try:
        yield values
    finally:
        for parameter, value in zip(parameters, values, strict=True):
            parameter.data.copy_(value)
