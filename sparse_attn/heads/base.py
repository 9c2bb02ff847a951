"""Base class of heads, and shared checks."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sparse_attn.losses.dense import check_distribution, is_positive
from sparse_attn.losses.row_blocks import check_reduction
from sparse_attn.losses.targets import check_range, check_whole
from sparse_attn.mappings import Mapping
from sparse_attn.mappings.registry import own_losses

CHUNK = 256


@dataclass(frozen=True)
class Tokens:
    """Tokens that a head computes losses for, and the form of the losses.

    Attributes:
        kept: [N], indices into the flattened hidden states.
        targets: [N], in [0, vocab).
        chunk: rows of scores held at once.
        scale: return scale times the sum of the losses; None for each loss.
        own_loss: use the mapping's own loss instead of -log p.
    """

    kept: Tensor
    targets: Tensor
    chunk: int
    scale: float | None
    own_loss: bool

    def pick(self, states: Tensor) -> Tensor:
        """Return the rows `kept` of states [M, ...], without a copy if all are kept."""
        return states if len(self.kept) == len(states) else states[self.kept]


class Head(nn.Module, ABC):
    """An output layer: a distribution over `vocab` classes for each hidden state.

    `log_prob` returns the full distribution; two losses never hold it: `nll`, to measure, and
    `loss`, to train.

    Attributes:
        hidden: size of the hidden states.
        vocab: number of classes V.
        mapping: mapping from scores to probabilities, a name or a `Mapping`.

    Raises:
        ValueError: a size below 1, or a mapping with a value per attention head or whose rows need
            not sum to one.
        TypeError: a mapping that is neither a name nor a `Mapping`.
    """

    takes_own_loss = False  # a p made of several rows is trained by -log p only

    def __init__(self, hidden: int, vocab: int, mapping: str | Mapping) -> None:
        super().__init__()
        for name, size in (("hidden", hidden), ("vocab", vocab)):
            if size < 1:
                raise ValueError(f"{name}={size}: expected at least 1")
        self.hidden = hidden
        self.vocab = vocab
        self.mapping = as_distribution("mapping", mapping)

    @abstractmethod
    def log_prob(self, hidden: Tensor) -> Tensor:
        """log p of every class, in nats: (..., hidden) to (..., vocab), -inf at exact zeros.

        Raises:
            ValueError: hidden states of the wrong size.
        """

    def forward(self, hidden: Tensor) -> Tensor:
        """log p; arguments, returns and errors as `log_prob`."""
        return self.log_prob(hidden)

    def nll(
        self,
        hidden: Tensor,
        targets: Tensor,
        ignore_index: int = -100,
        reduction: str = "mean",
        chunk: int = CHUNK,
    ) -> Tensor:
        """-log p(target), in nats, with about `chunk` x vocab scores in memory at a time.

        Exact; gradients reach the hidden states, the head and learned parameters of the mapping.
        "mean" and "sum" compute them during the forward pass, "none" recomputes the scores during
        backward. Does not support second derivatives or torch.func; torch.compile does not compile
        this part.

        Args:
            hidden: (..., hidden). NaN gives NaN for that token.
            targets: (...), integers in [0, vocab), or ignore_index.
            ignore_index: a target that does not count.
            reduction: "mean" over the targets that count (NaN if none does), "sum", or "none": the
                shape of targets, 0 where ignored.
            chunk: rows of scores, tokens x components, held at once.

        Returns:
            (), or the shape of targets with "none", in at least float32.

        Raises:
            ValueError: mismatched shapes, a target out of range, an unknown reduction, chunk below
                1, or a gradient for a mapping that returns zeros, because -log 0 is infinite;
                `loss` trains those with their own loss.
            TypeError: targets that are not integers, or hidden states in a dtype other than the
                head's without autocast.
        """
        return self._reduced(hidden, targets, ignore_index, reduction, chunk, own_loss=False)

    def loss(
        self,
        hidden: Tensor,
        targets: Tensor,
        ignore_index: int = -100,
        reduction: str = "mean",
        chunk: int = CHUNK,
    ) -> Tensor:
        """The training loss: the mapping's own, such as sparsemax_loss, or else `nll`.

        Arguments, returns and errors as `nll`.
        """
        own_loss = self.takes_own_loss and self.mapping.spec.own_loss is not None
        return self._reduced(hidden, targets, ignore_index, reduction, chunk, own_loss)

    @abstractmethod
    def token_losses(self, hidden: Tensor, tokens: Tokens) -> Tensor:
        """`chunked_loss` of `tokens` of hidden (..., hidden): [N], or scale times the sum.

        Raises:
            TypeError: hidden in a dtype other than the head's, without autocast.
        """

    @torch.compiler.disable
    def _reduced(
        self,
        hidden: Tensor,
        targets: Tensor,
        ignore_index: int,
        reduction: str,
        chunk: int,
        own_loss: bool,
    ) -> Tensor:
        check_reduction(reduction)
        if chunk < 1:
            raise ValueError(f"chunk={chunk}: expected at least 1 row of scores")
        if not own_loss:
            self._refuse_log_zero(hidden)
        check_hidden(hidden, self.hidden)
        check_shapes(targets, hidden.shape[:-1])
        kept = (targets.flatten() != ignore_index).nonzero().squeeze(-1)
        chosen = targets.flatten()[kept].long()
        check_range("targets", chosen, self.vocab)
        # as in torch, an empty mean is NaN
        scales = {"none": None, "sum": 1.0, "mean": 1 / len(kept) if len(kept) else torch.nan}
        tokens = Tokens(kept, chosen, chunk, scales[reduction], own_loss)
        losses = self.token_losses(hidden, tokens)
        if reduction != "none":
            return losses
        return losses.new_zeros(targets.numel()).index_add(0, kept, losses).view_as(targets)

    def _refuse_log_zero(self, hidden: Tensor) -> None:
        """Raise ValueError for a gradient of -log p where p may be 0."""
        learns = hidden.requires_grad or any(p.requires_grad for p in self.parameters())
        if not (torch.is_grad_enabled() and learns) or positive(self.mapping):
            return
        remedy = f"use loss(), which is {self.mapping.name}'s own"
        if self.mapping.spec.own_loss is None:
            remedy = (
                "measure it under torch.no_grad(), and train with a mapping that has its own "
                f"loss, such as {', '.join(own_losses())}"
            )
        raise ValueError(
            f"mapping={self.mapping.name}: it returns exact zeros, whose -log p is infinite and "
            f"cannot train; {remedy}"
        )


class WordHead(Head):
    """A head whose scores are W h + b: `weight` W, [vocab, d], and `bias` b, [vocab], or None."""

    weight: nn.Parameter
    bias: nn.Parameter | None
    watch: RangeWatch


def positive(mapping: Mapping) -> bool:
    """Whether p > 0 at every score, so that -log p is finite."""
    spec, arguments = mapping.spec, mapping.arguments()
    if any(isinstance(a, Tensor) and a.is_meta for a in arguments.values()):
        return not spec.zeros or spec.dense is not None
    return is_positive(spec, arguments)


def as_mapping(name: str, mapping: str | Mapping) -> Mapping:
    """Return the `Mapping` of the argument `name`: a registered name or a `Mapping`."""
    if isinstance(mapping, str):
        return Mapping(mapping)
    if not isinstance(mapping, Mapping):
        raise TypeError(
            f"{name}: expected a registered name or a sparse_attn.Mapping, got "
            f"{type(mapping).__name__}"
        )
    if mapping.num_heads is not None:
        raise ValueError(
            f"{name}: {mapping.name} has one value for each of {mapping.num_heads} attention "
            "heads; an output layer takes one value, leave `num_heads` out"
        )
    return mapping


def as_distribution(name: str, mapping: str | Mapping) -> Mapping:
    """Return `as_mapping`, and check that its rows sum to one."""
    made = as_mapping(name, mapping)
    check_distribution(name, made.spec, "an output layer")
    return made


class RangeWatch:
    """Warns once if more than 1 % of the scores lie outside [-T, T], the range of a PLIF's knots.

    Checks the first call of a head and every hundredth, because scores grow in training.
    """

    EVERY = 100
    SHARE = 0.01

    def __init__(self, mapping: Mapping) -> None:
        self.mapping = mapping
        self.calls = 0
        self.warned = False

    def bound(self) -> float | None:
        """Return T if the scores of this call are counted, else None."""
        names = {p.name for p in (*self.mapping.spec.parameters, *self.mapping.spec.options)}
        # a compiled model would be recompiled at every count
        if "bound" not in names or self.warned or torch.compiler.is_compiling():
            return None
        self.calls += 1
        return self.mapping.parameter_values()["bound"] if self.calls % self.EVERY == 1 else None

    def report(self, outside: Sequence[Tensor], seen: int) -> None:
        """Warn if too many of the `seen` scores of a call lie outside; `outside` has counts ()."""
        if not outside or not seen:
            return
        share = float(sum(outside)) / seen  # the only wait for the device
        if share > self.SHARE:
            self.warned = True
            bound = self.mapping.parameter_values()["bound"]
            warnings.warn(
                f"{self.mapping.name}: {share:.0%} of the scores lie outside "
                f"[-{bound:g}, {bound:g}], the range that it covers; increase its bound",
                stacklevel=2,
            )


def count_outside(scores: Tensor, bound: float) -> Tensor:
    """Count the scores outside [-bound, bound], (); -inf is masked, not outside."""
    return ((scores.abs() > bound) & (scores != -torch.inf)).sum()


def check_hidden(hidden: Tensor, size: int) -> None:
    """Raise ValueError unless hidden is (..., size)."""
    if hidden.dim() == 0 or hidden.shape[-1] != size:
        raise ValueError(f"hidden: expected shape (..., {size}), got {tuple(hidden.shape)}")


def product_dtype(hidden: Tensor, weight: Tensor) -> torch.dtype:
    """Return the dtype of W h: autocast's, or the common one.

    Raises:
        TypeError: the dtypes differ, without autocast.
    """
    if torch.is_autocast_enabled(hidden.device.type):
        return torch.get_autocast_dtype(hidden.device.type)
    if hidden.dtype != weight.dtype:
        raise TypeError(
            f"hidden: expected {weight.dtype}, the dtype of the head, got {hidden.dtype}; use "
            f"hidden.to({weight.dtype}), or autocast"
        )
    return weight.dtype


def check_shapes(targets: Tensor, shape: Sequence[int]) -> None:
    """Raise unless targets are integers in the shape of the rows."""
    check_whole("targets", targets)
    if targets.shape != torch.Size(shape):
        raise ValueError(
            f"targets: expected shape {tuple(shape)}, one for each row, got {tuple(targets.shape)}"
        )


def parameter_groups(module: nn.Module, lr: float, mapping_lr: float) -> list[dict[str, Any]]:
    """Optimizer groups: learned parameters of mappings at `mapping_lr`, all others at `lr`.

    The slopes of a PLIF need a different rate from the network, 0.02 against an SGD rate of 20 in
    Ganea et al. 2019. Usage: `torch.optim.SGD(parameter_groups(model, lr=20.0, mapping_lr=0.02))`.

    Args:
        module: a head, or a model with patched attention or head.
        lr: learning rate of everything else.
        mapping_lr: learning rate of the mappings' parameters.

    Returns:
        At most two groups of parameters that require a gradient, the mappings' last.
    """
    mappings = [m for m in module.modules() if isinstance(m, Mapping)]
    # without `by_query`, whose weights are like those of the network
    own = {id(p) for mapping in mappings for p in mapping.parameters(recurse=False)}
    learned = [p for p in module.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in learned if id(p) not in own], "lr": lr},
        {"params": [p for p in learned if id(p) in own], "lr": mapping_lr},
    ]
    return [group for group in groups if group["params"]]
