"""Measuring the untrained swap, and choosing the dial of each layer."""

import itertools
import math
from copy import deepcopy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModel, AutoTokenizer, DataCollatorWithPadding, PreTrainedModel

from sparse_attn import Mapping, patch_model, unpatch_model
from sparse_attn.conversion.choosing import _choose, make_plan
from sparse_attn.conversion.plan import Batch, LayerPlan, Plan, set_dials
from sparse_attn.conversion.states import distances, states_of, zeros_of
from sparse_attn.hf.layers import attention_layers
from sparse_attn.mappings import get_spec, mapping_names
from tests.comparison.running import Models, texts

DIALS = [name for name in mapping_names() if get_spec(name).dial is not None]


@pytest.fixture(scope="module")
def model(models: Models) -> PreTrainedModel:
    return AutoModel.from_pretrained(models.encoder).eval()


@pytest.fixture(scope="module")
def batches(models: Models) -> list[Batch]:
    tokenizer = AutoTokenizer.from_pretrained(models.encoder)
    collate = DataCollatorWithPadding(tokenizer)
    tokens = [tokenizer(text) for text in texts(24)]
    return [dict(collate(tokens[i : i + 8])) for i in range(0, 24, 8)]


@pytest.mark.parametrize("name", DIALS)
def test_zeros_rise_along_the_dial(name: str) -> None:
    dial = get_spec(name).dial
    assert dial is not None
    scores = 2 * torch.randn(64, 24, generator=torch.Generator().manual_seed(0))
    shares = [
        (Mapping(name, **{dial.parameter: dial.value(u)})(scores) == 0).double().mean().item()
        for u in np.linspace(0, 1, 21)
    ]
    assert shares == sorted(shares)
    assert shares[-1] - shares[0] > 0.25
    assert shares[-1] > (0.7 if name == "entmax" else 0.9)


@pytest.mark.slow
@given(st.data())
@settings(max_examples=60, deadline=None)
def test_the_choice_is_the_best_of_all(data: st.DataObject) -> None:
    """Against every combination of whole per cents that three layers can have."""
    curves = [
        sorted(data.draw(st.lists(st.integers(0, 12), min_size=3, max_size=3))) for _ in range(3)
    ]
    losses = [sorted(data.draw(st.lists(st.floats(0, 9), min_size=3, max_size=3))) for _ in curves]
    layers = [
        LayerPlan(str(i), [0.0, 0.5, 1.0], [z / 100 for z in zeros], list(map(float, loss)))
        for i, (zeros, loss) in enumerate(zip(curves, losses, strict=True))
    ]
    most = sum(max(zeros) for zeros in curves)
    needed = data.draw(st.integers(1, max(most, 1)))
    skips = data.draw(st.booleans())
    plan = Plan("entmax", {}, needed / 300, layers)
    dial = get_spec("entmax").dial
    assert dial is not None
    if most < needed:
        with pytest.raises(ValueError, match="target_zeros"):
            _choose(plan, dial, needed / 300, skips)
        return

    def cost(zeros: tuple[int, ...]) -> float:
        return sum(
            0.0 if skips and z == 0 else float(np.interp(z / 100, layer.zeros, layer.losses))
            for z, layer in zip(zeros, layers, strict=True)
        )

    # a layer that must convert has the zeros of the first position, or the target
    floor = math.ceil(needed / 3)
    ranges = [range(0 if skips else min(z[1], floor), z[-1] + 1) for z in curves]
    best = min(cost(z) for z in itertools.product(*ranges) if sum(z) >= needed)
    _choose(plan, dial, needed / 300, skips)
    chosen = tuple(round(100 * (layer.wanted or 0.0)) for layer in layers)
    assert sum(chosen) >= needed
    assert cost(chosen) == pytest.approx(best, abs=1e-9)
    assert [layer.converted for layer in layers] == [z > 0 or not skips for z in chosen]


@pytest.mark.parametrize(("most", "target"), [(0.008, 0.3), (0.508, 0.6)])
def test_a_layer_whose_zeros_lie_between_two_per_cents(most: float, target: float) -> None:
    tried = [[0.0, most - 0.005, most], [0.0, 0.2, 0.9]]
    layers = [LayerPlan(str(i), [0.0, 0.5, 1.0], z, [0.0, 1.0, 2.0]) for i, z in enumerate(tried)]
    dial = get_spec("entmax").dial
    assert dial is not None
    _choose(Plan("entmax", {}, target, layers), dial, target, choose_layers=False)
    assert np.mean([layer.wanted for layer in layers]) == pytest.approx(target)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "target"),
    # top-p has few positions between no zeros and 0.6 where attention is this sharp
    [*itertools.product(["entmax", "sparsegen", "r-softmax"], [0.3, 0.6]), ("top-p-softmax", 0.6)],
)
def test_a_target_is_reached_with_all_layers_swapped(
    model: PreTrainedModel, batches: list[Batch], name: str, target: float
) -> None:
    plan = make_plan(model, Mapping(name), batches, target=target)
    assert not hasattr(model, "_sparse_attn")
    copy = patch_model(deepcopy(model), "softmax")
    plan.apply(copy)
    wanted = [layer.wanted for layer in plan.layers]
    assert np.mean(wanted) >= target - 1e-9
    if name != "sparsegen":  # whose losses are least far above
        assert np.mean(wanted) < target + 0.02
    assert zeros_of(copy, batches) == pytest.approx(wanted, abs=0.02)


def test_what_is_measured_of_a_layer(model: PreTrainedModel, batches: list[Batch]) -> None:
    plan = make_plan(model, Mapping("sparsemax"), batches)
    copy = deepcopy(model)
    theirs = [states_of(copy, batch) for batch in batches]
    for place, (layer, own) in enumerate(zip(attention_layers(model), plan.layers, strict=True)):
        patch_model(copy, "softmax")
        patch_model(copy, "sparsemax", layers=[place])
        assert own.name == layer.name
        assert own.zeros == pytest.approx([zeros_of(copy, batches)[place]])
        with torch.no_grad():
            far = [
                distances(states_of(copy, b), t, b["attention_mask"])
                for b, t in zip(batches, theirs, strict=True)
            ]
        assert own.losses == pytest.approx([torch.cat(far).mean().item()], rel=1e-4)
        unpatch_model(copy)


def test_layers_that_cost_most_keep_softmax(model: PreTrainedModel, batches: list[Batch]) -> None:
    plan = make_plan(model, Mapping("entmax"), batches, target=0.3, choose_layers=True)
    kept = [layer for layer in plan.layers if not layer.converted]
    copy = patch_model(deepcopy(model), "softmax")
    plan.apply(copy)
    names = [layer.module.sparse_attn.name for layer in attention_layers(copy)]
    assert names == ["entmax" if layer.converted else "softmax" for layer in plan.layers]
    assert all(layer.wanted is None for layer in kept)
    assert np.mean(zeros_of(copy, batches)) == pytest.approx(0.3, abs=0.03)


@pytest.mark.parametrize("value", [0.5, 0.15, 1.0, 0.0])
def test_given_parameters_are_reached_exactly(
    model: PreTrainedModel, batches: list[Batch], value: float
) -> None:
    plan = make_plan(model, Mapping("r-softmax", r=value), batches)
    copy = patch_model(deepcopy(model), "softmax")
    plan.apply(copy)
    mapping = attention_layers(copy)[0].module.sparse_attn
    set_dials(copy, plan, 0.5)
    assert mapping.value("r") == pytest.approx(value / 2)
    set_dials(copy, plan, 1.0)
    assert mapping.value("r") == value


def test_a_value_beyond_the_dial_is_reached(model: PreTrainedModel, batches: list[Batch]) -> None:
    plan = make_plan(model, Mapping("t-softmax", t=1000.0), batches)
    copy = patch_model(deepcopy(model), "softmax")
    plan.apply(copy)
    set_dials(copy, plan, 1.0)
    assert attention_layers(copy)[0].module.sparse_attn.t == 1000.0
