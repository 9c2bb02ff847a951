"""Dynamic evaluation: a language model that goes on learning from the text it has been tested on.

Krause et al. 2018 (arXiv 1709.07432), eqs. 5 and 6. From the training set, G = root of the squared
gradients of each parameter. On the test set, segment after segment: score, then

    theta <- theta + min(1, lamb rho) (theta_0 - theta) - lr g / (G + epsilon).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from experiments.language_modeling.config import INF
from experiments.language_modeling.measures import evaluating, segments
from experiments.language_modeling.models import LanguageModel


class Rates(NamedTuple):
    """The three numbers of an update."""

    lamb: float
    lr: float
    epsilon: float


# of benkrause/dynamic-evaluation as it is, and as MoS's code took it over
RATES = {"new": Rates(2e-3, 5e-5, 2e-5), "old": Rates(2e-2, 2e-3, 1e-3)}
# its grid for the new form and segments of 5 tokens
LRS = (3e-5, 4e-5, 5e-5, 6e-5, 7e-5, 1e-4)
LAMBS = (1e-3, 2e-3, 3e-3, 5e-3)


@dataclass(frozen=True)
class DynamicConfig:
    """How a model learns while it is tested.

    The forms differ in what G and rho are, over the B segments of the training set:
    new: G = sqrt(mean_B g^2), rho = G / (mean of the mean G of each tensor).
    old: G = sqrt(sum_B g^2), rho = G / (sum of the mean G of each tensor).
    So new equals old with lamb / (number of tensors), lr / sqrt(B), epsilon / sqrt(B).

    Args:
        form: new, that of the code today; old, that of MoS's code, which the papers built on (MoS
            on PTB: lamb 0.075; on WikiText-2: epsilon 0.002).
        lamb: decay towards the trained weights, from 0 on. Default: new 0.002, old 0.02.
        lr: learning rate, from 0 on. Default: new 5e-5, old 0.002.
        epsilon: added to G, above 0. Default: new 2e-5, old 0.001.
        segment: tokens that are scored before each update.
        batch: rows of the training stream when G is gathered.
    """

    form: Literal["new", "old"] = "new"
    lamb: float | None = None
    lr: float | None = None
    epsilon: float | None = None
    segment: int = 5
    batch: int = 100

    def __post_init__(self) -> None:
        if self.form not in RATES:
            raise ValueError(f"form={self.form!r}: expected new or old")
        lamb, lr, epsilon = self.rates
        limits = {
            "lamb": (0 <= lamb < INF, "a finite number from 0 on"),
            "lr": (0 <= lr < INF, "a finite number from 0 on"),
            "epsilon": (0 < epsilon < INF, "a finite number above 0"),
            "segment": (self.segment > 0, "at least 1"),
            "batch": (self.batch > 0, "at least 1"),
        }
        for name, (holds, expected) in limits.items():
            if not holds:
                raise ValueError(f"{name}={getattr(self, name)} is out of range: {expected}")

    @property
    def rates(self) -> Rates:
        """What is given, and the form's default where nothing is."""
        given = zip((self.lamb, self.lr, self.epsilon), RATES[self.form], strict=True)
        return Rates(*(default if value is None else value for value, default in given))


@dataclass(frozen=True, eq=False)
class Statistics:
    """G and rho of each parameter that is trained; a tied weight is one parameter."""

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
    """Mean nll of the test stream in nats, each segment scored before the model learns from it.

    One row, state carried, dropout off. lr = lamb = 0 gives `mean_nll(model, test_stream, 1,
    config.segment)`, to the last bit where the model computes the same with and without gradients;
    torch's LSTM rounds otherwise. The weights come back as they were, after an error too; `.grad`
    is left alone.

    Args:
        train_stream, test_stream: (tokens,) int64.
        statistics: what `gradient_statistics` gave for this model, form, segment and batch;
            gathered from the train stream if left out.

    Raises:
        ValueError: a stream is too short, or nothing of the model is trained.
    """
    if statistics is None:
        statistics = gradient_statistics(model, train_stream, config)
    lamb, lr, epsilon = config.rates
    decay = [(lamb * rho).clamp(max=1) for rho in statistics.decay]
    total, count = 0.0, 0
    parameters = statistics.parameters
    with _learning(model), _restored(parameters) as trained:
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
    """G and rho of `config.form` over the training set. They do not depend on lamb, lr, epsilon.

    Raises:
        ValueError: the stream is too short for `config.batch`, or no parameter has a gradient.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise ValueError("model: no parameter is trained; set requires_grad for dynamic evaluation")
    squares = [torch.zeros_like(p) for p in parameters]
    batch, length, count = config.batch, config.segment, 0
    with _learning(model):
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


def choose(
    model: LanguageModel,
    train_stream: Tensor,
    valid_stream: Tensor,
    config: DynamicConfig,
    lrs: Sequence[float] | None = None,
    lambs: Sequence[float] | None = None,
) -> tuple[DynamicConfig, float]:
    """`config` with the lr and lamb of the lowest nll on the validation stream, and that nll.

    For the new form the grid defaults to `LRS` x `LAMBS`, times segment / 5; for the old, of which
    no grid is known, to the same multiples of its default lr and lamb. Of equally good points the
    first is taken. Where all diverge, the first comes back with an nll of inf.

    Raises:
        ValueError: as `dynamic_evaluation`.
    """
    statistics = gradient_statistics(model, train_stream, config)
    default, base = RATES[config.form], RATES["new"]
    stretch = config.segment / 5
    lrs = lrs or [lr / base.lr * default.lr * stretch for lr in LRS]
    lambs = lambs or [lamb / base.lamb * default.lamb * stretch for lamb in LAMBS]
    best = replace(config, lr=lrs[0], lamb=lambs[0]), INF
    for lr, lamb in itertools.product(lrs, lambs):
        point = replace(config, lr=lr, lamb=lamb)
        nll = dynamic_evaluation(model, train_stream, valid_stream, point, statistics)
        if nll < best[1]:
            best = point, nll
    return best


def _steps(
    model: LanguageModel,
    parameters: list[nn.Parameter],
    stream: Tensor,
    batch: int,
    length: int,
    progress: str,
) -> Iterator[tuple[Tensor, tuple[Tensor, ...]]]:
    """For each segment the nll of its tokens (B, T) and the gradients of their mean."""
    state = model.initial_state(batch)
    for tokens, targets in segments(model, stream, batch, length, progress):
        hidden, state = model(tokens, state)
        nll = model.head.nll(hidden, targets, reduction="none")
        yield nll.detach(), torch.autograd.grad(nll.mean(), parameters, materialize_grads=True)


@contextmanager
def _learning(model: LanguageModel) -> Iterator[None]:
    """Gradients without dropout."""
    with evaluating(model), torch.enable_grad():
        yield


@contextmanager
def _restored(parameters: list[nn.Parameter]) -> Iterator[list[Tensor]]:
    """The values of now, which the parameters have again afterwards."""
    values = [p.detach().clone() for p in parameters]
    try:
        yield values
    finally:
        for parameter, value in zip(parameters, values, strict=True):
            parameter.data.copy_(value)
