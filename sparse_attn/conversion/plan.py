"""Which layers take a mapping, and with which parameter: measured on the untrained swap."""

from __future__ import annotations

import warnings
from bisect import bisect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedModel

from sparse_attn.attention import NAME
from sparse_attn.conversion.heads import measure_heads
from sparse_attn.conversion.states import distances, states_of, zeros_of
from sparse_attn.inspection.recording import record_attention
from sparse_attn.layers import AttentionLayer, attention_layers
from sparse_attn.mappings import Dial, Mapping, get_spec
from sparse_attn.patching import install, make_mapping, patched

GRID = 9  # positions of the dial that are tried in each layer
HALVINGS = 6
ROUNDS = 12
NEAR = 0.002  # zeros that a layer may be short of
SHORT = 0.01  # and the model, before it warns
BISECTIONS = 60
PERCENT = 100
ROUNDING = 1e-6
DIVERGED = "{} NaN: training has diverged; lower learning_rate, and name another folder"
Batch = dict[str, Tensor]


@dataclass
class LayerPlan:
    """What a layer does after conversion.

    Attributes:
        name: of the attention module.
        positions: of the dial that were tried, in [0, 1]; none if the parameters were given.
        zeros, losses: with this layer alone swapped: its share of exact zeros, and the model's
            distance from softmax.
        wanted: the share of zeros to keep while healing; None if the parameters were given.
        offset: what the layer's zeros in the model as it is are short of those in `zeros`.
        value: of the dial's parameter, None for a mapping without a dial.
        head_zeros, head_errors: of the chosen swap, untrained: share of zeros, and
            |o - o'|^2 / |o'|^2 of the head's output o, o' softmax's for the same input.
    """

    name: str
    positions: list[float] = field(default_factory=list)
    zeros: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    converted: bool = True
    wanted: float | None = None
    offset: float = 0.0
    value: float | None = None
    head_zeros: list[float] = field(default_factory=list)
    head_errors: list[float] = field(default_factory=list)

    def aim(self, share: float) -> float:
        """The zeros at a share of the way from where the loss is least to those wanted."""
        assert self.wanted is not None
        start = min(self.zeros[int(np.argmin(self.losses))], self.wanted)
        return start + share * (self.wanted - start)

    def value_at(self, share: float, dial: Dial) -> float:
        """The dial's value at a share of the way."""
        if self.wanted is not None:
            rising = np.maximum.accumulate(self.zeros)
            aim = self.aim(share) + self.offset
            return dial.value(float(np.interp(aim, rising, self.positions)))
        assert self.value is not None
        return self.value if share == 1 else dial.value(share * _position_of(dial, self.value))


@dataclass
class Plan:
    """The mapping of every layer.

    Attributes:
        mapping, parameters: as `patch_model` takes them; the dial's value is each layer's own.
        target: share of zeros over all layers; None if the parameters were given.
    """

    mapping: str
    parameters: dict[str, Any]
    target: float | None
    layers: list[LayerPlan]

    @property
    def keeps_zeros(self) -> bool:
        """Whether dials are turned while healing."""
        return any(layer.wanted is not None for layer in self.layers)

    def write(self) -> dict[str, Any]:
        """As JSON takes it."""
        return asdict(self)

    @classmethod
    def read(cls, content: dict[str, Any]) -> Plan:
        """What `write` gave."""
        return cls(**{**content, "layers": [LayerPlan(**layer) for layer in content["layers"]]})

    def make(self, layer: AttentionLayer, value: float | None) -> Mapping:
        """The mapping of a layer, its dial at a value."""
        dial = get_spec(self.mapping).dial
        values = self.parameters if dial is None else {**self.parameters, dial.parameter: value}
        return make_mapping(layer, self.mapping, parameters=values)

    def apply(self, model: PreTrainedModel) -> None:
        """Give every layer of a patched model its mapping."""
        found = attention_layers(model)
        chosen = {
            layer.name: self.make(layer, own.value)
            for layer, own in zip(found, self.layers, strict=True)
            if own.converted
        }
        install(model, found, chosen)


def _position_of(dial: Dial, value: float) -> float:
    """Where the dial has this value, by bisection; the nearest end for a value beyond."""
    rises, low, high = dial.value(1.0) > dial.value(0.0), 0.0, 1.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if (dial.value(middle) < value) == rises else (low, middle)
    return high


def make_plan(
    model: PreTrainedModel,
    mapping: Mapping,
    batches: Sequence[Batch],
    *,
    target: float | None = None,
    choose_layers: bool = False,
) -> Plan:
    """Measure the untrained swap of every layer, and choose the dial of each.

    With a target, the dials minimise the sum of the layers' losses among those whose zeros,
    averaged over the layers, reach it; then they are set so that the layers keep these zeros when
    all are swapped.

    Args:
        model: unpatched.
        mapping: its parameters but the dial, with a target.
        batches: of a sample of the texts.
        choose_layers: whether a layer may keep softmax.

    Raises:
        ValueError: a target for a mapping without a dial, or one that it cannot reach on these
            texts.
    """
    dial, values = mapping.spec.dial, mapping.parameter_values()
    if target is not None and dial is None:
        raise ValueError(
            f"target_zeros: {mapping.name} has no parameter that sets its zeros; leave it out, or "
            "choose a mapping with one, such as entmax, sparsegen (sparsemax of z / (1 - lam)), "
            "r-softmax or top-p-softmax"
        )
    given = None if dial is None else values.pop(dial.parameter)
    layers = [LayerPlan(layer.name, value=given) for layer in attention_layers(model)]
    plan = Plan(mapping.name, values, target, layers)
    if target is None or dial is None:
        tries = [(place, given) for place in range(len(layers))]
        measured = _measure_layers(model, plan, tries, batches)
        for layer, (zeros, loss) in zip(layers, measured, strict=True):
            layer.zeros, layer.losses = [zeros], [loss]
    else:
        _measure_dials(model, plan, dial, target, batches)
        _choose(plan, dial, target, choose_layers)
        _settle(model, plan, batches)
    with patched(model, "softmax"):
        mappings = [
            plan.make(layer, own.value) if own.converted else None
            for layer, own in zip(attention_layers(model), layers, strict=True)
        ]
        for own, found in zip(layers, measure_heads(model, mappings, batches), strict=True):
            own.head_zeros, own.head_errors = found
    return plan


@contextmanager
def _alone(model: PreTrainedModel, layer: AttentionLayer, mapping: Mapping) -> Iterator[None]:
    """The mapping in one layer of a model that computes softmax in all."""
    before = getattr(layer.module, NAME)
    setattr(layer.module, NAME, mapping)
    try:
        yield
    finally:
        setattr(layer.module, NAME, before)


@torch.no_grad()
def _measure_layers(
    model: PreTrainedModel,
    plan: Plan,
    tries: Sequence[tuple[int, float | None]],
    batches: Sequence[Batch],
) -> list[tuple[float, float]]:
    """Zeros and loss of a layer alone at a value of its dial, for each try."""
    found = []
    with patched(model, "softmax"):
        layers = attention_layers(model)
        theirs = [states_of(model, batch) for batch in batches]
        for place, value in tqdm(tries, "Swapping", leave=False, dynamic_ncols=True):
            swapped = plan.make(layers[place], value)
            with _alone(model, layers[place], swapped), record_attention(model) as record:
                far = [
                    distances(states_of(model, batch), states, batch["attention_mask"])
                    for batch, states in zip(batches, theirs, strict=True)
                ]
            found.append((record.zero_counts.per_layer[place], torch.cat(far).mean().item()))
    return found


def _measure_dials(
    model: PreTrainedModel, plan: Plan, dial: Dial, target: float, batches: Sequence[Batch]
) -> None:
    """Every layer along the dial, its end first: a target beyond it is refused soon.

    Nearer to its start where the second position is beyond the target.
    """
    places = range(len(plan.layers))
    tries = [(place, 1.0) for place in places]
    for turn in range(2 + HALVINGS):
        values = [(place, dial.value(position)) for place, position in tries]
        measured = _measure_layers(model, plan, values, batches)
        for (place, position), (zeros, loss) in zip(tries, measured, strict=True):
            own = plan.layers[place]
            at = bisect(own.positions, position)
            own.positions.insert(at, position)
            own.zeros.insert(at, zeros)
            own.losses.insert(at, loss)
        if turn == 0:
            _check_reach(plan, target)
            others = np.linspace(0, 1, GRID)[:-1].tolist()
            tries = [(place, position) for place in places for position in others]
            continue
        tries = [
            (place, own.positions[1] / 2)
            for place, own in enumerate(plan.layers)
            if own.zeros[0] < target < own.zeros[1]
        ]
        if not tries:
            break


def _check_reach(plan: Plan, target: float) -> None:
    """Raise ValueError if the layers' zeros do not add up to the target, in whole per cents."""
    layers = plan.layers
    most = sum(int(PERCENT * max(layer.zeros)) for layer in layers) / (PERCENT * len(layers))
    if most < target:
        raise ValueError(
            f"target_zeros={target:g}: {plan.mapping} reaches {most:.3f} on these texts, with its "
            "parameter at the end of its range; lower it, or choose a mapping that reaches more, "
            "such as sparsegen or top-k-softmax (a row of n keys has at most 1 - 1/n)"
        )


def _choose(plan: Plan, dial: Dial, target: float, choose_layers: bool) -> None:
    """The zeros that each layer is to have: least sum of losses, by dynamic programming.

    Losses between the positions tried are interpolated; shares of zeros are whole per cents.
    """
    _check_reach(plan, target)
    layers = plan.layers
    shares = np.arange(PERCENT + 1) / PERCENT
    # best[z]: the least loss of the layers so far with z per cent of zeros in sum
    best, picks = np.zeros(1), []
    for layer in layers:
        rising = np.maximum.accumulate(layer.zeros)
        cost = np.interp(shares, rising, layer.losses)
        cost[shares > rising[-1]] = np.inf
        if choose_layers:
            cost[0] = 0.0
        else:
            # the whole per cent below the most may be below the first position's zeros too
            least = min(rising[1], int(PERCENT * rising[-1]) / PERCENT, target)
            cost[shares < least] = np.inf
        sums = best[:, None] + cost[None]
        width = len(best) + PERCENT
        joined, pick = np.full(width, np.inf), np.zeros(width, dtype=int)
        for zeros in range(PERCENT + 1):
            place = slice(zeros, zeros + len(best))
            better = sums[:, zeros] < joined[place]
            joined[place][better] = sums[better, zeros]
            pick[place][better] = zeros
        best = joined
        picks.append(pick)
    needed = int(np.ceil(target * PERCENT * len(layers) - ROUNDING))
    total = needed + int(np.argmin(best[needed:]))
    for layer, pick in zip(reversed(layers), reversed(picks), strict=True):
        zeros = int(pick[total])
        total -= zeros
        layer.converted = not (choose_layers and zeros == 0)
        if layer.converted:
            layer.wanted = zeros / PERCENT
            layer.value = layer.value_at(1.0, dial)


def _settle(model: PreTrainedModel, plan: Plan, batches: Sequence[Batch]) -> None:
    """Turn the dials until every layer has its zeros in the model with all layers swapped."""
    with patched(model, "softmax"):
        plan.apply(model)
        hold(model, plan, batches)


def turn(model: PreTrainedModel, plan: Plan, shares: Sequence[float]) -> None:
    """Set every dial to its share of what it is to reach."""
    for layer, own, share in zip(attention_layers(model), plan.layers, shares, strict=True):
        mapping: Mapping = getattr(layer.module, NAME)
        dial = mapping.spec.dial
        if own.converted and dial is not None:
            value = own.value_at(share, dial)
            mapping.set_value(dial.parameter, value)
            if own.wanted is not None:
                own.value = value


def correct(
    model: PreTrainedModel, plan: Plan, batches: Sequence[Batch], shares: Sequence[float]
) -> np.ndarray:
    """Measure the zeros, and turn the dials by what they are short of at these shares.

    Returns:
        What each layer was short of, before the turn; 0 where nothing is wanted.

    Raises:
        FloatingPointError: the weights have become NaN, and with them the zeros.
    """
    found = zeros_of(model, batches)
    if not np.isfinite(found).all():
        raise FloatingPointError(DIVERGED.format("attention is"))
    short = np.zeros(len(found))
    for place, (own, zeros, share) in enumerate(zip(plan.layers, found, shares, strict=True)):
        if own.wanted is not None:
            short[place] = own.aim(share) - zeros
            # no further than the dial goes, from where it must come back
            reach = min(
                max(own.aim(share) + own.offset + short[place], own.zeros[0]), max(own.zeros)
            )
            own.offset = reach - own.aim(share)
    turn(model, plan, shares)
    return short


def hold(model: PreTrainedModel, plan: Plan, batches: Sequence[Batch]) -> None:
    """Turn the dials until every layer has the zeros wanted, or its dial is at an end.

    Warns:
        UserWarning: that leaves the model short of the target.
    """
    for _ in range(ROUNDS):
        short = correct(model, plan, batches, [1.0] * len(plan.layers))
        if np.abs(short).max() < NEAR:
            return
    assert plan.target is not None
    reached = float(np.mean(zeros_of(model, batches)))
    if reached < plan.target - SHORT:
        warnings.warn(
            f"target_zeros={plan.target:g}: {plan.mapping} has {reached:.3f} on these texts after "
            f"{ROUNDS} corrections; accept that, or choose a mapping that reaches more, such as "
            "sparsegen or top-k-softmax",
            stacklevel=2,
        )
