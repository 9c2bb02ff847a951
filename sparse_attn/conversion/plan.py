"""Mappings of the layers of a converted model, and the dials that hold their zeros."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from torch import Tensor
from transformers import PreTrainedModel

from sparse_attn.conversion.states import zeros_of
from sparse_attn.evaluation.predictions import DivergedError
from sparse_attn.hf.attention import NAME
from sparse_attn.hf.layers import AttentionLayer, attention_layers
from sparse_attn.hf.patching import install, make_mapping
from sparse_attn.mappings import Dial, Mapping, get_spec

ROUNDS = 12
NEAR = 0.002  # shortfall of zeros allowed in a layer
SHORT = 0.01  # and in the model, before a warning
BISECTIONS = 60
DIVERGED = "{} NaN: training has diverged; lower learning_rate, and name another folder"
Batch = dict[str, Tensor]


@dataclass
class LayerPlan:
    """Plan of one layer.

    Attributes:
        name: name of the attention module.
        positions: measured dial positions, in [0, 1]; empty if the parameters were given.
        zeros, losses: with only this layer swapped, its share of exact zeros and the model's
            distance from softmax.
        wanted: share of zeros to keep while healing; None if the parameters were given.
        offset: shortfall of the layer's zeros in the current model against those in `zeros`.
        value: value of the dial's parameter; None for a mapping without a dial.
    """

    name: str
    positions: list[float] = field(default_factory=list)
    zeros: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    converted: bool = True
    wanted: float | None = None
    offset: float = 0.0
    value: float | None = None

    def aim(self, share: float) -> float:
        """Return the zeros at a share of the way from the least loss to the target."""
        assert self.wanted is not None
        start = min(self.zeros[int(np.argmin(self.losses))], self.wanted)
        return start + share * (self.wanted - start)

    def value_at(self, share: float, dial: Dial) -> float:
        """Return the dial's value at a share of the way to the target."""
        if self.wanted is not None:
            rising = np.maximum.accumulate(self.zeros)
            aim = self.aim(share) + self.offset
            return dial.value(float(np.interp(aim, rising, self.positions)))
        assert self.value is not None
        return self.value if share == 1 else dial.value(share * _position_of(dial, self.value))


@dataclass
class Plan:
    """Mappings of all layers.

    Attributes:
        mapping, parameters: as `patch_model` takes them; the dial's value differs by layer.
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
        """Return the plan as JSON values."""
        return asdict(self)

    @classmethod
    def read(cls, content: dict[str, Any]) -> Plan:
        """Restore a plan from the result of `write`."""
        return cls(**{**content, "layers": [LayerPlan(**layer) for layer in content["layers"]]})

    def make(self, layer: AttentionLayer, value: float | None) -> Mapping:
        """Make the mapping of a layer with this dial value."""
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
    """Find the dial position of a value by bisection; the nearest end if out of range."""
    rises, low, high = dial.value(1.0) > dial.value(0.0), 0.0, 1.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if (dial.value(middle) < value) == rises else (low, middle)
    return high


def set_dials(model: PreTrainedModel, plan: Plan, share: float) -> None:
    """Set every dial at a share of its layer's way to the target."""
    for layer, own in zip(attention_layers(model), plan.layers, strict=True):
        mapping: Mapping = getattr(layer.module, NAME)
        dial = mapping.spec.dial
        if own.converted and dial is not None:
            value = own.value_at(share, dial)
            mapping.set_value(dial.parameter, value)
            if own.wanted is not None:
                own.value = value


def correct(
    model: PreTrainedModel, plan: Plan, batches: Sequence[Batch], share: float
) -> np.ndarray:
    """Measure the zeros, and turn the dials to make up the shortfall at this share.

    Returns:
        The shortfall of each layer before the turn; 0 without a target.

    Raises:
        DivergedError: the weights, and so the zeros, are NaN.
    """
    found = zeros_of(model, batches)
    if not np.isfinite(found).all():
        raise DivergedError(DIVERGED.format("attention is"))
    short = np.zeros(len(found))
    for place, (own, zeros) in enumerate(zip(plan.layers, found, strict=True)):
        if own.wanted is not None:
            short[place] = own.aim(share) - zeros
            # stay within the dial's range, so that it can turn back at once
            reach = min(
                max(own.aim(share) + own.offset + short[place], own.zeros[0]), max(own.zeros)
            )
            own.offset = reach - own.aim(share)
    set_dials(model, plan, share)
    return short


def reach_targets(model: PreTrainedModel, plan: Plan, batches: Sequence[Batch]) -> None:
    """Turn the dials until every layer has its target zeros or its dial is at an end.

    Warns:
        UserWarning: the model stays short of the target.
    """
    for _ in range(ROUNDS):
        short = correct(model, plan, batches, 1.0)
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
