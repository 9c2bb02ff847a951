"""Choose the layers and parameters of a conversion from measurements of the untrained swap."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from tqdm import tqdm
from transformers import PreTrainedModel

from sparse_attn.conversion.plan import Batch, LayerPlan, Plan, reach_targets
from sparse_attn.conversion.states import distances, states_of
from sparse_attn.hf.attention import NAME
from sparse_attn.hf.layers import AttentionLayer, attention_layers
from sparse_attn.hf.patching import patched
from sparse_attn.inspection.recording import record_attention
from sparse_attn.mappings import Dial, Mapping

GRID = 9  # dial positions to try in each layer
HALVINGS = 6
PERCENT = 100
ROUNDING = 1e-6


def make_plan(
    model: PreTrainedModel,
    mapping: Mapping,
    batches: Sequence[Batch],
    *,
    target: float | None = None,
    choose_layers: bool = False,
) -> Plan:
    """Measure the untrained swap of every layer, and choose the dial of each.

    With a target, the dials minimise the sum of the layers' losses, given that the zeros, averaged
    over the layers, reach the target. They are then turned until each layer has its zeros with all
    layers swapped.

    Args:
        model: an unpatched model.
        mapping: the mapping; with a target, its dial's value is chosen by layer.
        batches: batches of a sample of the texts.
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
        _reach_chosen_zeros(model, plan, batches)
    return plan


@contextmanager
def _swapped(model: PreTrainedModel, layer: AttentionLayer, mapping: Mapping) -> Iterator[None]:
    """Set the mapping in one layer of a model that otherwise computes softmax."""
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
    """Return zeros and loss with one layer swapped, for each (layer, dial value) of `tries`."""
    found = []
    with patched(model, "softmax"):
        layers = attention_layers(model)
        theirs = [states_of(model, batch) for batch in batches]
        for place, value in tqdm(tries, "Swapping", leave=False, dynamic_ncols=True):
            swapped = plan.make(layers[place], value)
            with _swapped(model, layers[place], swapped), record_attention(model) as record:
                far = [
                    distances(states_of(model, batch), states, batch["attention_mask"])
                    for batch, states in zip(batches, theirs, strict=True)
                ]
            found.append((record.zero_counts.per_layer[place], torch.cat(far).mean().item()))
    return found


def _measure_dials(
    model: PreTrainedModel, plan: Plan, dial: Dial, target: float, batches: Sequence[Batch]
) -> None:
    """Measure every layer along the dial, its end first: an unreachable target fails early.

    If the second position is beyond the target, measure positions nearer to the start.
    """
    places = range(len(plan.layers))
    _measure_positions(model, plan, dial, [(place, 1.0) for place in places], batches)
    _check_reach(plan, target)
    others = np.linspace(0, 1, GRID)[:-1].tolist()
    tries = [(place, position) for place in places for position in others]
    _measure_positions(model, plan, dial, tries, batches)
    for _ in range(HALVINGS):
        tries = [
            (place, own.positions[1] / 2)
            for place, own in enumerate(plan.layers)
            if own.zeros[0] < target < own.zeros[1]
        ]
        if not tries:
            break
        _measure_positions(model, plan, dial, tries, batches)


def _measure_positions(
    model: PreTrainedModel,
    plan: Plan,
    dial: Dial,
    tries: Sequence[tuple[int, float]],
    batches: Sequence[Batch],
) -> None:
    """Measure layers at dial positions, and insert the results into the plan in rising order."""
    values = [(place, dial.value(position)) for place, position in tries]
    measured = _measure_layers(model, plan, values, batches)
    for (place, position), (zeros, loss) in zip(tries, measured, strict=True):
        own = plan.layers[place]
        at = bisect(own.positions, position)
        own.positions.insert(at, position)
        own.zeros.insert(at, zeros)
        own.losses.insert(at, loss)


def _check_reach(plan: Plan, target: float) -> None:
    """Raise ValueError if the layers' zeros do not add up to the target, in whole per cents."""
    layers = plan.layers
    most = sum(int(PERCENT * max(layer.zeros)) for layer in layers) / (PERCENT * len(layers))
    if most < target:
        raise ValueError(
            f"target_zeros={target:g}: {plan.mapping} reaches {most:.3f} on these texts, with its "
            "parameter at the end of its range; lower the target, or choose a mapping that reaches "
            "more, such as sparsegen or top-k-softmax (a row of n keys has at most 1 - 1/n)"
        )


def _choose(plan: Plan, dial: Dial, target: float, choose_layers: bool) -> None:
    """Choose each layer's zeros for the least sum of losses, by dynamic programming.

    Losses between measured positions are interpolated; shares of zeros are whole per cents.
    """
    _check_reach(plan, target)
    layers = plan.layers
    shares = np.arange(PERCENT + 1) / PERCENT
    # best[z]: least loss of the layers so far whose zeros sum to z per cent
    best, picks = np.zeros(1), []
    for layer in layers:
        rising = np.maximum.accumulate(layer.zeros)
        cost = np.interp(shares, rising, layer.losses)
        cost[shares > rising[-1]] = np.inf
        if choose_layers:
            cost[0] = 0.0
        else:
            # rounded down, the largest share may fall below the first position's zeros
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


def _reach_chosen_zeros(model: PreTrainedModel, plan: Plan, batches: Sequence[Batch]) -> None:
    """Turn the dials until every layer has its zeros in the model with all layers swapped."""
    with patched(model, "softmax"):
        plan.apply(model)
        reach_targets(model, plan, batches)
