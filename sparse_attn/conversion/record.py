"""Record of a conversion: `compare`'s fields, the recipe, the layers and the cost."""

from __future__ import annotations

import time
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from sparse_attn.comparison.comparison import command_of, difference, measured, model_of, origin
from sparse_attn.comparison.data import short
from sparse_attn.comparison.measure import Outcome, Variant, sample
from sparse_attn.comparison.reader import Batch, Reader
from sparse_attn.conversion.converting import PLAN
from sparse_attn.conversion.inputs import Inputs, read_model
from sparse_attn.conversion.options import Options
from sparse_attn.conversion.plan import Plan
from sparse_attn.hf.attention import NAME
from sparse_attn.hf.checkpoints import logged_losses
from sparse_attn.hf.layers import attention_layers
from sparse_attn.hf.patching import patch_model
from sparse_attn.mappings import Mapping
from sparse_attn.mappings.syntax import parse_mapping
from sparse_attn.system.files import read_json

MODEL = "model"
STAGES_FILE = "stages.json"
REPEATS = 3  # timed passes over the texts


def measure(options: Options, inputs: Inputs) -> dict[str, Any]:
    """Measure softmax, the untrained swap and the healed model side by side."""
    started = time.perf_counter()
    softmax = read_model(options, inputs.data)
    plan = Plan.read(_read(options.out, PLAN)["plan"])
    copy = patch_model(deepcopy(softmax.model), "softmax")
    plan.apply(copy)
    swapped = replace(softmax, model=copy, forward=copy)
    variants = [
        Variant("softmax", softmax, Mapping("softmax")),
        Variant(f"before training: {options.mapping}", swapped, _mapping(options), own=True),
    ]
    if options.steps:
        healed = read_model(options, inputs.data, options.out / MODEL)
        label = f"after training: {options.mapping}"
        variants.append(Variant(label, healed, _mapping(options), own=True))
    found, outcomes, data = measured(variants, inputs.data)
    if options.steps:
        found["mappings"][1]["against_swapped"] = difference(outcomes[2], outcomes[1], data)
    some = sample(softmax, inputs.data.inputs, softmax.batches(inputs.data.inputs))
    stages = {**_read(options.out, STAGES_FILE), "measuring": time.perf_counter() - started}
    return {
        "command": command_of(options, "convert"),
        "model": model_of(options),
        **found,
        "recipe": _recipe(options, inputs),
        "layers": _layers(plan, outcomes[1:]),
        "loss": [{"step": step, "loss": loss} for step, loss in logged_losses(options.out)],
        "cost": _cost([softmax, variants[-1].reader], some),
        "stages": stages,
        "seconds": sum(stages.get(name, 0) for name in ("choosing", "healing", "measuring")),
        **origin(softmax),
    }


def _read(folder: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = read_json(folder / name, f"--out {folder}", "delete the folder")
    return found


def _mapping(options: Options) -> Mapping:
    return parse_mapping(options.mapping, "--mapping")


def _recipe(options: Options, inputs: Inputs) -> dict[str, Any]:
    assert options.texts is not None
    return {
        "mapping": options.mapping,
        "target_zeros": options.target_zeros,
        "choose_layers": options.choose_layers,
        "texts": short(options.texts),
        "number": len(inputs.texts),
        "steps": options.steps,
        "batch_size": options.batch_size,
        "learning_rate": options.learning_rate,
        "ramp": options.ramp,
        "max_length": options.max_length,
        "seed": options.seed,
    }


def _layers(plan: Plan, outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Return plan, parameters and zeros on the measured texts by layer, swapped and healed."""
    rows = plan.write()["layers"]
    for key, outcome in zip(("swapped", "healed"), outcomes, strict=False):
        values = _parameters(outcome.variant.reader.model)
        zeros = outcome.zero_counts.per_layer
        for row, parameters, share in zip(rows, values, zeros, strict=True):
            row[key] = {"parameters": parameters, "zeros": share}
    return [{k: v for k, v in row.items() if k not in ("offset", "value")} for row in rows]


def _parameters(model: PreTrainedModel) -> list[dict[str, Any]]:
    return [getattr(layer.module, NAME).parameter_values() for layer in attention_layers(model)]


def _cost(readers: Sequence[Reader], batches: Sequence[Batch]) -> dict[str, float]:
    """Time softmax and the converted model in seconds: fastest of REPEATS, interleaved."""
    taken: list[list[float]] = [[] for _ in readers]
    for _ in range(REPEATS):
        for reader, seconds in zip(readers, taken, strict=True):
            started = time.perf_counter()
            for batch in batches:
                reader(batch).flatten()[0].item()  # waits for the GPU
            seconds.append(time.perf_counter() - started)
    softmax, ours = map(min, taken)
    texts = sum(len(batch.places) for batch in batches)
    return {"softmax": softmax, "converted": ours, "ratio": ours / softmax, "texts": texts}
