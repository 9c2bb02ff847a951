"""The mapping of every layer of a converted model, and the dials that hold their zeros."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from torch import Tensor
from transformers import PreTrainedModel

from sparse_attn.conversion.states import zeros_of
from sparse_attn.hf.attention import NAME
from sparse_attn.hf.layers import AttentionLayer, attention_layers
from sparse_attn.hf.patching import install, make_mapping
from sparse_attn.mappings import Dial, Mapping, get_spec

ROUNDS = 12
NEAR = 0.002  # zeros that a layer may be short of
SHORT = 0.01  # and the model, before it warns
BISECTIONS = 60
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


def set_dials(model: PreTrainedModel, plan: Plan, shares: Sequence[float]) -> None:
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
    set_dials(model, plan, shares)
    return short


def reach_targets(model: PreTrainedModel, plan: Plan, batches: Sequence[Batch]) -> None:
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
