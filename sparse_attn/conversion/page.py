"""Report page of a conversion: losses in total and by layer, recipe and cost."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure

from sparse_attn.comparison.page import measure_of, notes, provenance, results, share, table
from sparse_attn.reports import canvas, text
from sparse_attn.reports.page import Block, Bullets, Heading, Page, Plot, Table

METHODS = (
    "Target zeros: share of exact zeros over all layers, in the training texts; longer texts have "
    "more. Each layer gets its own parameter, so that the layers reach the target with the least "
    "sum of losses. The parameters are adjusted during training to hold the zeros. Without a "
    "target they are as given, the same in every layer.",
    "Training: no labels are used. The loss is the distance of hidden states and outputs from "
    "those of the original model.",
    "The original model runs Transformers' default attention, mostly PyTorch's SDPA.",
)
TRAINED = (
    "After training, the model is the one that was saved. It learned from unlabelled texts to give "
    "what the original model gives."
)


def make_page(record: dict[str, Any]) -> Page:
    """Build the report."""
    recipe = record["recipe"]
    blocks: list[Block] = [
        f"The row softmax is the original model. Before training, {recipe['mapping']} takes the "
        "place of softmax in its attention, with the same weights.",
        *([TRAINED] if recipe["steps"] else []),
        *results(record),
        *trained(record),
        Heading("Layers"),
        layers(record),
    ]
    if any(len(layer["zeros"]) > 1 for layer in record["layers"]):
        note = (
            "One layer at a time without softmax, before training: distance of the model's hidden "
            "states and outputs from the original's. Diamonds: chosen zeros."
        )
        blocks.append(Plot("layers", "Loss by zeros, layer by layer", note, by_layer(record)))
    if record["loss"]:
        note = "Means of ten steps. The loss rises while zeros are added, and falls after that."
        blocks.append(Plot("loss", "Training", note, training(record)))
    blocks += [
        Heading("How it was made"),
        made(record),
        Bullets(METHODS),
        Heading("How it was measured"),
        Bullets([*notes(record), *provenance(record)]),
    ]
    shown = [table(record), *trained(record)]
    return Page(f"Softmax replaced by {recipe['mapping']}", blocks, overview=shown)


def overview(record: dict[str, Any]) -> list[str]:
    """Return the tables of results and the notes for the terminal."""
    return [*(f"{shown}\n" for shown in (table(record), *trained(record))), *notes(record)]


def trained(record: dict[str, Any]) -> list[Table]:
    """Tabulate what training changed; nothing for records without that difference."""
    before, after = record["mappings"][0], record["mappings"][-1]
    if "against_swapped" not in after:
        return []
    measure = measure_of(record)
    headers = ["measure", "before training", "after training", "difference [95 %]", "verdict"]
    difference = measure.judged(after["against_swapped"])
    row = [measure.name, measure.text(before), measure.text(after), *difference]
    return [Table("What training changed", headers, [row])]


def made(record: dict[str, Any]) -> Table:
    """Tabulate the recipe and its cost, a row per setting."""
    recipe, cost = record["recipe"], record["cost"]
    target = recipe["target_zeros"]
    rows = [
        ["mapping", recipe["mapping"]],
        ["target zeros", text.NOTHING if target is None else share(target)],
        ["layers may keep softmax", "yes" if recipe["choose_layers"] else "no"],
    ]
    if recipe["steps"]:
        rows += [
            ["texts", f"{recipe['number']:,} of {recipe['texts']}"],
            ["tokens of a text, at most", str(min(recipe["max_length"], record["limit"]))],
            ["steps", str(recipe["steps"])],
            ["texts per step", str(recipe["batch_size"])],
            ["peak learning rate, AdamW", f"{recipe['learning_rate']:g}"],
            ["ramp, share of the steps", share(recipe["ramp"])],
            ["seed", str(recipe["seed"])],
        ]
    stages = record["stages"]
    times = {"choosing": "choosing", "healing": "training", "measuring": "measuring"}
    rows += [[f"{times[name]}, s", f"{stages[name]:.0f}"] for name in times if name in stages]
    if resumed := stages.get("resumed_from_step"):
        rows.append(["training timed from step", str(resumed)])
    rows.append(["time of a forward pass / the original model's", f"{cost['ratio']:.2f}"])
    rows.append(["texts in that pass", str(cost["texts"])])
    return Table("Recipe and cost", ["setting", "value"], rows)


def layers(record: dict[str, Any]) -> Table:
    """Tabulate the layers: parameters and zeros before and after, and the loss of each swap."""
    names = {"swapped": "before training", "healed": "after training"}
    stages = [key for key in names if key in record["layers"][0]]
    columns = ("parameter", "zeros")
    headers = ["layer", *(f"{names[key]}: {what}" for key in stages for what in columns)]
    rows = []
    for place, layer in enumerate(record["layers"]):
        row = [str(place)]
        for key in stages:
            values = layer[key]["parameters"].items()
            shown = ", ".join(f"{name}={value:.4g}" for name, value in values)
            row += [
                (shown or text.NOTHING) if layer["converted"] else "softmax",
                share(layer[key]["zeros"]),
            ]
        rows.append([*row, _loss_alone(layer)])
    return Table("By layer", [*headers, "loss with only this layer changed"], rows)


def _loss_alone(layer: dict[str, Any]) -> str:
    """Return the layer's loss at its target zeros, interpolated as when they were chosen."""
    if not layer["converted"]:
        return text.NOTHING
    if layer["wanted"] is None:
        return f"{layer['losses'][0]:.4f}"
    rising = np.maximum.accumulate(layer["zeros"])
    return f"{np.interp(layer['wanted'], rising, layer['losses']):.4f}"


def by_layer(record: dict[str, Any]) -> Figure:
    """Plot the loss against the zeros of each layer swapped alone, and mark its choice."""
    figure, axes = canvas.single(height=4.2)
    colours = colormaps["viridis"](np.linspace(0, 0.88, len(record["layers"])))
    lines = {}
    for place, (layer, colour) in enumerate(zip(record["layers"], colours, strict=True)):
        zeros = 100 * np.array(layer["zeros"])
        (lines[str(place)],) = axes.plot(zeros, layer["losses"], "o-", color=colour, ms=3, lw=1.2)
        if layer["wanted"] is not None:
            loss = np.interp(100 * layer["wanted"], np.maximum.accumulate(zeros), layer["losses"])
            axes.plot([100 * layer["wanted"]], [loss], "D", color=colour, ms=7)
    axes.set(xlabel="exact zeros, % of valid keys", ylabel="distance from softmax")
    canvas.label_ends(axes, lines)
    return figure


def training(record: dict[str, Any]) -> Figure:
    """Plot the loss by step."""
    figure, axes = canvas.single()
    steps, losses = zip(*((line["step"], line["loss"]) for line in record["loss"]), strict=True)
    axes.plot(steps, losses, "o-", color="black", ms=3)
    axes.set(xlabel="step", ylabel="distance from softmax", ylim=(0, None))
    return figure
