"""Report page of a conversion: losses in total and by layer, recipe and cost."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure

from sparse_attn.comparison.page import notes, provenance, results, share, table
from sparse_attn.reports import canvas, text
from sparse_attn.reports.page import Block, Bullets, Heading, Page, Plot, Table

METHODS = (
    "Target zeros: the parameter of each layer is chosen by the least sum of the layers' losses at "
    "that share over all, and held while healing. It is a share in the texts to learn from; longer "
    "texts have more zeros. Without a target the parameters are as given, the same in every layer.",
    "Healing: the loss is the distance of hidden states and outputs from softmax's.",
    "The unpatched model runs Transformers' default attention, mostly PyTorch's SDPA.",
)


def make_page(record: dict[str, Any]) -> Page:
    """Build the report."""
    recipe = record["recipe"]
    blocks: list[Block] = [
        "Softmax in attention replaced by another mapping: swapped without training, then healed "
        "on unlabelled texts.",
        *results(record),
        Heading("Layers"),
        layers(record),
    ]
    if any(len(layer["zeros"]) > 1 for layer in record["layers"]):
        note = "Each layer swapped alone, untrained: distance from softmax's states and outputs."
        blocks.append(Plot("layers", "Loss by zeros, layer by layer", note, by_layer(record)))
    if record["loss"]:
        note = "Means of ten steps. The loss rises while zeros are ramped in, and falls after that."
        blocks.append(Plot("loss", "Training", note, training(record)))
    blocks += [
        Heading("How it was made"),
        made(record),
        Bullets(METHODS),
        Heading("How it was measured"),
        Bullets([*notes(record), *provenance(record)]),
    ]
    return Page(f"Softmax replaced by {recipe['mapping']}", blocks, overview=[table(record)])


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
            ["texts of a step", str(recipe["batch_size"])],
            ["peak learning rate, AdamW", f"{recipe['learning_rate']:g}"],
            ["ramp, share of the steps", share(recipe["ramp"])],
            ["seed", str(recipe["seed"])],
        ]
    stages = record["stages"]
    times = ("choosing", "healing", "measuring")
    rows += [[f"{name}, s", f"{stages[name]:.0f}"] for name in times if name in stages]
    if resumed := stages.get("resumed_from_step"):
        rows.append(["healing timed from step", str(resumed)])
    rows.append(["time of a forward pass / the unpatched model's", f"{cost['ratio']:.2f}"])
    rows.append(["texts of that pass", str(cost["texts"])])
    return Table("Recipe and cost", ["setting", "value"], rows)


def layers(record: dict[str, Any]) -> Table:
    """Tabulate the layers: parameters and zeros, swapped and healed, and the loss of each swap."""
    stages = [key for key in ("swapped", "healed") if key in record["layers"][0]]
    headers = ["layer", *(f"{key}: {what}" for key in stages for what in ("parameter", "zeros"))]
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
    return Table("By layer", [*headers, "loss alone, untrained"], rows)


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
