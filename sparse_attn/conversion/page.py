"""The page of a conversion: what was lost, how, and layer by layer."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from sparse_attn.comparison.page import caption, notes, provenance, results, share, table
from sparse_attn.reports import canvas, text
from sparse_attn.reports.page import Block, Bullets, Heading, Page, Plot, Table


def make_page(record: dict[str, Any]) -> Page:
    """The report."""
    recipe = record["recipe"]
    blocks: list[Block] = [
        f"{caption(record)}: softmax in attention replaced by {recipe['mapping']}, swapped without "
        "training and healed on unlabelled texts.",
        *results(record),
        Heading("Layers"),
        layers(record),
    ]
    if any(layer["head_zeros"] for layer in record["layers"]):
        said = "Of the untrained swap; left: exact zeros, right: squared error of the head's output"
        said += ", relative to softmax's."
        blocks.append(Plot("heads", "Heads", said, heads(record)))
    if any(len(layer["zeros"]) > 1 for layer in record["layers"]):
        said = "Each layer swapped alone, untrained: distance from softmax's states and outputs."
        blocks.append(Plot("layers", "Loss by zeros, layer by layer", said, by_layer(record)))
    if record["loss"]:
        said = f"Means of ten steps; zeros reach their target after {share(recipe['ramp'])} of all."
        blocks.append(Plot("loss", "Training", said, training(record)))
    blocks += [
        Heading("How it was made"),
        Bullets(made(record)),
        Heading("How it was measured"),
        Bullets([*notes(record), *provenance(record)]),
    ]
    return Page(f"Softmax replaced by {recipe['mapping']}", blocks, overview=[table(record)])


def made(record: dict[str, Any]) -> list[str]:
    """The recipe, and what it took."""
    recipe, stages, cost = record["recipe"], record["stages"], record["cost"]
    target, length = recipe["target_zeros"], min(recipe["max_length"], record["limit"])
    lines = [
        "Parameters as given, the same in every layer."
        if target is None
        else f"The parameter of each layer: least sum of the layers' losses at {share(target)} of "
        "zeros over all, held while healing. That is a share in the texts to learn from; longer "
        "texts have more zeros." + (" Layers may keep softmax." if recipe["choose_layers"] else "")
    ]
    if recipe["steps"]:
        lines.append(
            f"Healed on {text.counted(recipe['number'], 'text')} of {recipe['texts']} without "
            f"labels, cut after {length} tokens: {recipe['steps']} steps of "
            f"{recipe['batch_size']} texts, AdamW with a peak rate of {recipe['learning_rate']:g}, "
            f"parameters ramped over {share(recipe['ramp'])} of the steps, seed {recipe['seed']}. "
            "The loss is the distance of hidden states and outputs from softmax's."
        )
    resumed = stages.get("resumed_from_step")
    times = [
        f"{name} {stages[name]:.0f} s"
        + (f" from step {resumed} on" if name == "healing" and resumed else "")
        for name in ("choosing", "healing", "measuring")
        if name in stages
    ]
    return [
        *lines,
        f"{text.listing(times)}.",
        f"A forward pass takes {cost['ratio']:.2f} times softmax's "
        f"({text.counted(cost['texts'], 'text')}, {record['device']}).",
    ]


def layers(record: dict[str, Any]) -> Table:
    """A row per layer: parameters and zeros, swapped and healed, and what it costs alone."""
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
        rows.append([*row, _alone(layer)])
    return Table("By layer", [*headers, "loss alone, untrained"], rows)


def _alone(layer: dict[str, Any]) -> str:
    """Its loss at the zeros that it was to have, interpolated as when they were chosen."""
    if not layer["converted"]:
        return text.NOTHING
    if layer["wanted"] is None:
        return f"{layer['losses'][0]:.4f}"
    rising = np.maximum.accumulate(layer["zeros"])
    return f"{np.interp(layer['wanted'], rising, layer['losses']):.4f}"


def heads(record: dict[str, Any]) -> Figure:
    """Zeros and errors of every head; layers that keep softmax are blank."""
    figure, panels = canvas.panels(
        ["exact zeros, %", "relative error of the output"], 1.0 + 0.3 * len(record["layers"])
    )
    shown = (("head_zeros", 100, 100), ("head_errors", 1, None))
    for axes, (key, scale, most) in zip(panels, shown, strict=True):
        rows = [layer[key] for layer in record["layers"]]
        values = np.full((len(rows), max(map(len, rows))), np.nan)
        for place, row in enumerate(rows):
            values[place, : len(row)] = scale * np.array(row)
        shades: dict[str, Any] = {"cmap": "cividis", "aspect": "auto", "vmin": 0, "vmax": most}
        image = axes.imshow(np.ma.masked_invalid(values), **shades)
        axes.grid(visible=False)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.set(xlabel="head", ylabel="layer")
        figure.colorbar(image, ax=axes)
    return figure


def by_layer(record: dict[str, Any]) -> Figure:
    """Loss of each layer swapped alone by its zeros, a line per layer, its choice marked."""
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
    """The loss by step."""
    figure, axes = canvas.single()
    steps, losses = zip(*((line["step"], line["loss"]) for line in record["loss"]), strict=True)
    axes.plot(steps, losses, "o-", color="black", ms=3)
    axes.set(xlabel="step", ylabel="distance from softmax", ylim=(0, None))
    return figure
