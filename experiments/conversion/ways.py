"""The ways to convert: the mapping of every layer, and the training that follows."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel, Trainer

from sparse_attn.conversion.choosing import make_plan
from sparse_attn.conversion.healing import Healer, Ramp, Recipe, heal, together
from sparse_attn.conversion.plan import Batch, LayerPlan, Plan
from sparse_attn.conversion.states import zeros_of
from sparse_attn.hf.layers import attention_layers
from sparse_attn.hf.patching import install, make_mapping, patch_model, patched
from sparse_attn.mappings import Mapping, get_spec

CONTINUED = "softmax, continued training"
RANDOM = "random drop"
LEARNED = "learned per head"
FROZEN = "frozen queries and keys"
HALF = 0.5  # share of the steps for the ramp
BISECTIONS = 12
TEMPERATURE = 0.05
FASTER = 100  # learning rate of mappings' parameters relative to that of the weights
PROJECTIONS = {"query", "key", "q_proj", "k_proj"}


class Setup(NamedTuple):
    """Input of the functions that make a plan.

    Attributes:
        model: model with softmax.
        mapping: registered name.
        target: share of zeros over all layers.
        sample: batches of some of the texts.
    """

    model: PreTrainedModel
    mapping: str
    target: float
    sample: list[Batch]


def chosen(setup: Setup) -> Plan:
    """Plan like `sparse-attn convert`: choose each layer's value by losses, and keep the zeros."""
    return make_plan(setup.model, Mapping(setup.mapping), setup.sample, target=setup.target)


def not_kept(setup: Setup) -> Plan:
    """Plan the same values and keep them in training, so that the zeros may change."""
    plan = chosen(setup)
    return replace(plan, layers=[replace(layer, wanted=None) for layer in plan.layers])


def uniform(setup: Setup) -> Plan:
    """Plan one value for all layers that gives the target zeros over all of them."""
    return _plan_one_value(setup, setup.mapping)


def random_drop(setup: Setup) -> Plan:
    """Plan the same number of zeros at random positions, independent of the scores."""
    return _plan_one_value(setup, "random-drop-softmax")


def _plan_one_value(setup: Setup, name: str) -> Plan:
    mapping = Mapping(name)
    dial, values = mapping.spec.dial, mapping.parameter_values()
    assert dial is not None
    del values[dial.parameter]
    names = [layer.name for layer in attention_layers(setup.model)]
    low, high = 0.0, 1.0
    with patched(setup.model, "softmax"):
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            value = dial.value(middle)
            plan = Plan(name, values, None, [LayerPlan(name, value=value) for name in names])
            plan.apply(setup.model)
            zeros = zeros_of(setup.model, setup.sample)
            share = sum(zeros) / len(zeros)
            few = share < setup.target
            low, high = (middle, high) if few else (low, middle)
    if high == 1:
        raise ValueError(
            f"target_zeros={setup.target:g}: {name} reaches {share:.3f} with one "
            f"{dial.parameter} for all layers; lower it, or choose a mapping that reaches more"
        )
    return plan


def softmax(setup: Setup) -> Plan:
    """Plan to convert no layer."""
    names = [layer.name for layer in attention_layers(setup.model)]
    return Plan("softmax", {}, None, [LayerPlan(name, converted=False) for name in names])


def one_by_one(done: float, layers: int) -> list[float]:
    """Ramp layer i of L during the i-th of L equal parts of the first half of the steps."""
    return [min(1.0, max(0.0, done / HALF * layers - i)) for i in range(layers)]


def contrastive_loss(first: Tensor, second: Tensor) -> Tensor:
    """mean_i -log(e^{cos(a_i, b_i) / tau} / sum_j e^{cos(a_i, b_j) / tau}), tau = 0.05.

    Source: Gao et al. 2021 (SimCSE), eq. 1.

    Args:
        first, second: a and b (B, D), embeddings of the same texts with different dropout.
    """
    cosines = F.normalize(first, dim=-1) @ F.normalize(second, dim=-1).T
    return F.cross_entropy(cosines / TEMPERATURE, torch.arange(len(first), device=first.device))


class Contrastive(Trainer):
    """Continued training without a teacher, by `contrastive_loss` of mean-pooled embeddings."""

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Tensor:
        """Return the loss of a batch that the model reads twice."""
        mask = inputs["attention_mask"].unsqueeze(-1)
        first, second = (
            (model(**inputs).last_hidden_state * mask).sum(1) / mask.sum(1) for _ in range(2)
        )
        # zeros are counted between steps, without dropout
        model.eval()
        return contrastive_loss(first, second)


def learn_per_head(model: PreTrainedModel, plan: Plan, recipe: Recipe) -> dict[str, Any]:
    """Make the dial's parameter one learned value per head, changed only by the loss."""
    dial = get_spec(plan.mapping).dial
    assert dial is not None
    layers = attention_layers(model)
    mappings = {}
    for layer, own in zip(layers, plan.layers, strict=True):
        values = {**plan.parameters, dial.parameter: own.value}
        mappings[layer.name] = make_mapping(layer, plan.mapping, dial.parameter, "head", values)
        own.converted, own.wanted = False, None  # no ramp and no adjustment changes it
    install(model, layers, mappings)
    learned = [p for mapping in mappings.values() for p in mapping.parameters()]
    ours = {id(parameter) for parameter in learned}
    groups: list[dict[str, Any]] = [
        {"params": [p for p in model.parameters() if id(p) not in ours]},
        {"params": learned, "lr": FASTER * recipe.learning_rate},
    ]
    return {"optimizers": (torch.optim.AdamW(groups, recipe.learning_rate, weight_decay=0), None)}


def projections(model: PreTrainedModel) -> list[nn.Module]:
    """Return the projections of queries and keys of all layers.

    Raises:
        ValueError: a layer has no separate modules for them.
    """
    found = []
    for layer in attention_layers(model):
        parts = [part for name, part in layer.module.named_children() if name in PROJECTIONS]
        if len(parts) != 2:
            raise ValueError(
                f"way={FROZEN!r}: {type(model).__name__} has no projections of queries and keys "
                f"of their own in {layer.name}; leave out this way"
            )
        found += parts
    return found


def freeze_scores(model: PreTrainedModel, plan: Plan, recipe: Recipe) -> dict[str, Any]:
    """Freeze the projections of queries and keys; raise the errors of `projections`."""
    for part in projections(model):
        part.requires_grad_(False)
    return {}


class Way(NamedTuple):
    """A way to convert a model.

    Attributes:
        about: description in the report.
        plan: makes the plan of the layers' mappings.
        healer: trainer with the loss; None to train nothing.
        ramp: ramp of the mapping's parameters.
        prepare: changes the swapped model, and returns arguments of the healer.
    """

    about: str
    plan: Callable[[Setup], Plan]
    healer: type[Trainer] | None = Healer
    ramp: Ramp = together(HALF)
    prepare: Callable[[PreTrainedModel, Plan, Recipe], dict[str, Any]] = lambda *_: {}


WAYS = {
    "untrained": Way("each layer's parameter chosen by its loss; nothing trained", chosen, None),
    "uniform, untrained": Way("one parameter for all layers; nothing trained", uniform, None),
    "distilled": Way("as `convert`: chosen by layer, ramped, zeros kept", chosen),
    "without ramp": Way(
        "the parameters at their values from the first step", chosen, ramp=together(0)
    ),
    "layer by layer": Way(
        "layers ramp one after the other in the first half of the steps", chosen, ramp=one_by_one
    ),
    "zeros not kept": Way("the chosen parameters stay as they are", not_kept),
    "uniform": Way("one parameter for all layers, ramped, which stays as it is", uniform),
    LEARNED: Way(
        "a parameter for each head, from the chosen ones on learned by the same loss, at "
        f"{FASTER} times the rate",
        chosen,
        prepare=learn_per_head,
    ),
    FROZEN: Way(
        "as distilled, but for the projections of queries and keys", chosen, prepare=freeze_scores
    ),
    "continued training": Way(
        "no teacher: unsupervised SimCSE (Gao et al. 2021), the same ramp, zeros kept",
        chosen,
        Contrastive,
    ),
    CONTINUED: Way("what that training does without zeros", softmax, Contrastive),
    RANDOM: Way("random-drop-softmax with as many zeros, distilled: the control", random_drop),
}


def check(way: str, model: PreTrainedModel, mapping: str) -> None:
    """Raise ValueError if the mapping or model lacks the parts that the way learns or freezes."""
    spec = get_spec(mapping)
    assert spec.dial is not None
    turned = spec.dial.parameter
    if way == LEARNED and turned not in {p.name for p in spec.parameters if p.learnable}:
        raise ValueError(
            f"way={way!r}: {turned} of {mapping} cannot be learned; leave out this way"
        )
    if way == FROZEN:
        projections(model)


def convert(
    way: Way, setup: Setup, recipe: Recipe, tokens: Any, collate: Any, folder: Path
) -> list[float]:
    """Convert the model in place; return each layer's zeros on the sample before training.

    Args:
        tokens, collate, folder: arguments of `heal`.
    """
    model = setup.model
    plan = way.plan(setup)
    teacher = deepcopy(model).requires_grad_(False)
    patch_model(model, "softmax")
    plan.apply(model)
    zeros = zeros_of(model, setup.sample)
    if way.healer is not None:
        options = way.prepare(model, plan, recipe)
        if way.healer is Healer:
            options["teacher"] = teacher
        heal(
            *(model, plan, recipe, tokens, setup.sample, collate, folder, way.healer),
            ramp=way.ramp,
            **options,
        )
    return zeros
