"""Training losses, with their reported measures and predicted classes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from experiments.images.config import LossConfig
from sparse_attn import Mapping
from sparse_attn.losses import bouchard_loss, mapping_loss, squared_error


class Criterion(nn.Module):
    """A loss and the prediction from its scores: scores [B, n], targets [B], losses [B].

    Attributes:
        measure: name of what `reported` returns: negll (in nats), mse, bound, or "NAME loss" for a
            mapping with its own loss.
    """

    measure: str

    def loss(self, scores: Tensor, target: Tensor) -> Tensor:
        """The loss of each row; training minimises its mean."""
        raise NotImplementedError

    def reported(self, scores: Tensor, target: Tensor) -> Tensor:
        """The loss on the scale used in reports."""
        return self.loss(scores, target)

    def log_p(self, scores: Tensor) -> Tensor | None:
        """log p [B, n]; None if the loss defines no probabilities."""
        raise NotImplementedError

    def predictions(self, scores: Tensor) -> Tensor:
        """Return the most probable classes [B].

        It uses p, not z: spherical, Taylor and abs give very negative scores high probability.
        """
        log_p = self.log_p(scores)
        return (scores if log_p is None else log_p).argmax(-1)


class SquaredError(Criterion):
    """|z - onehot_c|^2 / 2, shown as the mean over classes |z - onehot_c|^2 / n."""

    measure = "mse"

    def loss(self, scores: Tensor, target: Tensor) -> Tensor:
        return squared_error(scores, target, reduction="none")

    def reported(self, scores: Tensor, target: Tensor) -> Tensor:
        return self.loss(scores, target) * 2 / scores.shape[-1]

    def log_p(self, scores: Tensor) -> None:
        return None


class Bouchard(Criterion):
    """B - z_c, where B bounds LSE(z) from above, so that the loss bounds -log softmax.

    Args:
        xi: shared or per_class, optimised for each example, or a fixed number.
        alpha: a fixed number; optimised for each example if None.

    Source: Bouchard 2007; tried in de Brebisson & Vincent 2016, section 2.
    """

    measure = "bound"

    def __init__(self, xi: Any = "shared", alpha: float | None = None) -> None:
        super().__init__()
        self.xi = xi
        self.alpha = alpha

    def loss(self, scores: Tensor, target: Tensor) -> Tensor:
        return bouchard_loss(scores, target, xi=self.xi, alpha=self.alpha, reduction="none")

    def log_p(self, scores: Tensor) -> Tensor:
        return scores.log_softmax(-1)


class Probabilities(Criterion):
    """-log p of a mapping, or its own loss if it gives exact zeros."""

    def __init__(self, mapping: Mapping) -> None:
        super().__init__()
        self.mapping = mapping
        self.measure = f"{mapping.name} loss" if mapping.spec.own_loss else "negll"

    def loss(self, scores: Tensor, target: Tensor) -> Tensor:
        return mapping_loss(scores, target, self.mapping, reduction="none")

    def log_p(self, scores: Tensor) -> Tensor:
        return self.mapping.log(scores)


def make_criterion(config: LossConfig) -> Criterion:
    """Create the criterion named by the config.

    Raises:
        ValueError, TypeError: an unknown name, an unknown parameter or one out of range, or a
            mapping with exact zeros and no loss.
    """
    try:
        criterion = _make(config)
        # the loss checks its own parameters
        criterion.loss(torch.zeros(1, 2), torch.zeros(1, dtype=torch.long))
    except (ValueError, TypeError) as error:
        raise type(error)(f"loss.name={config.name}: {error}") from None
    return criterion


def _make(config: LossConfig) -> Criterion:
    params: dict[str, Any] = dict(config.params)
    if config.name not in ("mse", "bouchard"):
        return Probabilities(Mapping(config.name, learn=config.learn, **params))
    known = ("xi", "alpha") if config.name == "bouchard" else ()
    unknown = [*(name for name in params if name not in known), *config.learn]
    if unknown:
        raise TypeError(
            f"{unknown[0]}: unknown parameter; it takes {', '.join(known) or 'none'}, and learns "
            "none"
        )
    return Bouchard(**params) if config.name == "bouchard" else SquaredError()


def check_start(criterion: Criterion, classes: int, output_std: float) -> None:
    """Raise ValueError if zero output weights would leave every gradient at 0.

    Even mappings, such as spherical softmax and softmax-abs, have gradient 0 at z = 0: no weight
    would ever move.
    """
    if output_std > 0:
        return
    scores = torch.zeros(1, classes, requires_grad=True)
    (slope,) = torch.autograd.grad(criterion.loss(scores, torch.tensor([0])).sum(), scores)
    if not slope.any():
        raise ValueError(
            "network.output_std=0: this loss has no gradient where all scores are 0, so that "
            "training would never start; expected a number above 0, such as 0.01"
        )
