"""Figures of an `AttentionRecord`, over layers, heads, positions and calls."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, Colormap, ListedColormap
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator

from sparse_attn.inspection import plot_style
from sparse_attn.inspection.record import AttentionRecord

_MOST_NUMBERED = 16  # most heads whose cells have room for a number
_NAME_LENGTH = 28
_UNSEEN = "has no call of the whole model; call it inside `with record_attention(model) as record:`"


def draw_sparsity(
    record: AttentionRecord,
    *,
    ax: Axes | None = None,
    figsize: tuple[float, float] | None = None,
    cmap: str | Colormap | None = None,
    title: str | None = None,
) -> Figure:
    """Draw `record.zeros` in %: exact zeros among valid pairs, layers down, heads across.

    Cells of layers that did not run and of heads that a layer does not have are hatched.

    Args:
        record: a record of L layers of up to H heads; cells have numbers up to H = 16.
        ax, figsize, cmap, title: as `draw_weights`.

    Raises:
        ValueError: the record saw no call; or both ax and figsize.
    """
    _check_seen(record)
    zeros = 100 * record.zeros.numpy()
    layers, heads = zeros.shape
    figure, axes = plot_style.axes_of(ax, figsize, (plot_style.WIDTH, 1.5 + 0.34 * layers))
    axes.patch.set(**plot_style.HATCHED)
    image = axes.imshow(
        np.ma.masked_invalid(zeros), cmap=cmap or "cividis", vmin=0, vmax=100, aspect="auto"
    )
    if heads <= _MOST_NUMBERED:
        _write_numbers(image, zeros)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    same_mapping = len(set(record.mappings)) == 1
    names = _layer_names(record.layers)
    both = zip(names, record.mappings, strict=True)
    labels = names if same_mapping else [f"{name}  {mapping}" for name, mapping in both]
    axes.set_yticks(range(layers), labels, parse_math=False)
    axes.set_xlabel("head", fontsize=11)
    axes.set_ylabel("layer", fontsize=11)
    figure.colorbar(image, ax=axes, label="exact zeros in %", aspect=30)
    default = _title(record, f"{100 * record.mean:.0f} % exact zeros")
    plot_style.write_title(figure, ax, default if title is None else title)
    return figure


def draw_support(
    record: AttentionRecord,
    *,
    ax: Axes | None = None,
    figsize: tuple[float, float] | None = None,
    title: str | None = None,
) -> Figure:
    """Draw the mean over heads of `record.support_by_position`, keys with p > 0, a line per layer.

    The x-axis is the query's position in its sequence, counted from 0. With causal attention the
    query at position i has i + 1 keys, which bounds its support.

    Args:
        record: a record of one or more calls; queries at the same position are averaged.
        ax, figsize, title: as `draw_weights`.

    Raises:
        ValueError: the record saw no call; or both ax and figsize.
    """
    _check_seen(record)
    support = _mean_over_heads(record.support_by_position.transpose(1, 2).numpy())
    figure, axes = plot_style.axes_of(ax, figsize, (plot_style.WIDTH, 3.8))
    plot_style.tidy(axes)
    colours = _layer_colours(len(support))
    for values, colour in zip(support, colours, strict=True):
        axes.plot(values, color=colour, lw=1.8, marker="." if len(values) < 40 else "")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.set_xlabel("position of the query", fontsize=11)
    axes.set_ylabel("keys with $p > 0$, mean over heads", fontsize=11)
    _layer_bar(figure, [axes], record.layers)
    default = _title(record, "support by position")
    plot_style.write_title(figure, ax, default if title is None else title)
    return figure


def draw_parameters(
    record: AttentionRecord,
    name: str | None = None,
    *,
    figsize: tuple[float, float] | None = None,
    title: str | None = None,
) -> Figure:
    """Draw `record.parameters` against the forward call, counted from 1: a panel per parameter.

    Lines are means over heads, one per layer; if the heads of a layer differ, each is a thin line
    of the same colour. If all layers have the same values, as under a schedule, they share one
    black line.

    Args:
        record: from a block with calls of the model, such as a training loop.
        name: a single parameter; None for all.
        figsize, title: as `draw_weights`.

    Raises:
        ValueError: the record saw no call, its mappings have no parameters, or none called `name`.
    """
    found = record.parameters
    if not record.calls:
        raise ValueError(f"record: {_UNSEEN}")
    if not found:
        raise ValueError(f"record: {', '.join(sorted(set(record.mappings)))} has no parameters")
    if name is not None and name not in found:
        raise ValueError(f"name={name!r}: expected one of {', '.join(found)}, or None for all")
    chosen = found if name is None else {name: found[name]}
    figure, panels = plot_style.panels([""] * len(chosen), 3.4 if len(chosen) == 1 else 2.6)
    if figsize is not None:
        figure.set_size_inches(figsize)
    apart = False
    for axes, (label, values) in zip(panels, chosen.items(), strict=True):
        apart |= _parameter_lines(axes, np.array(record.calls), values.numpy())
        axes.set_xlabel("forward call", fontsize=11)
        axes.set_ylabel(plot_style.name(label), fontsize=11)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6, min_n_ticks=1))
    if apart:
        _layer_bar(figure, panels, record.layers)
    default = _title(record, "parameters over the calls")
    figure.suptitle(default if title is None else title, fontsize=12)
    return figure


def _write_numbers(image: AxesImage, percent: np.ndarray) -> None:
    """Write whole numbers into the cells of an image, except NaN."""
    size = 9 if percent.shape[1] <= 12 else 7.5
    luma = image.to_rgba(np.ma.masked_invalid(percent))[..., :3] @ (0.299, 0.587, 0.114)
    for layer, head in np.argwhere(~np.isnan(percent)):
        text = image.axes.text(head, layer, f"{percent[layer, head]:.0f}", ha="center", va="center")
        text.set(color="black" if luma[layer, head] > 0.5 else "white", fontsize=size)


def _parameter_lines(axes: Axes, calls: np.ndarray, values: np.ndarray) -> bool:
    """Draw the lines of one parameter, (calls, layers, heads); return whether its layers differ."""
    mark = "." if len(calls) < 20 else ""
    means = _mean_over_heads(values)
    if not _differ(values, (1, 2)):
        held = ~np.isnan(means).all(0)
        label = "all layers" if held.all() else "the layers that have it"
        axes.plot(calls, means[:, held][:, 0], color="black", marker=mark, label=label)
        axes.legend(fontsize=9.5, frameon=False)
        return False
    for layer, colour in enumerate(_layer_colours(values.shape[1])):
        if _differ(values[:, layer], 1):
            axes.plot(calls, values[:, layer], color=colour, lw=0.7, alpha=0.5)
        axes.plot(calls, means[:, layer], color=colour, lw=2, marker=mark)
    return True


def _differ(values: np.ndarray, over: int | tuple[int, ...]) -> bool:
    """Whether two values that are not NaN differ along these dimensions."""
    seen = np.ma.array(values, mask=np.isnan(values))
    return bool((seen.max(over) > seen.min(over)).any())


def _check_seen(record: AttentionRecord) -> None:
    if record.zeros.isnan().all():
        raise ValueError(f"record: {_UNSEEN}")


def _mean_over_heads(values: np.ndarray) -> np.ndarray:
    """Mean over the last dimension without NaN; NaN where all are NaN."""
    seen = ~np.isnan(values)
    total = np.where(seen, values, 0.0).sum(-1)
    return np.divide(total, seen.sum(-1), out=np.full_like(total, np.nan), where=seen.any(-1))


def _layer_names(layers: Sequence[str]) -> list[str]:
    """Return the parts in which qualified names differ: `encoder.layer.3.attention` -> `3`."""
    parts = [layer.split(".") for layer in layers]
    if len(layers) == 1 or len({len(each) for each in parts}) > 1:
        shown = list(layers)
    else:
        differ = [len(set(column)) > 1 for column in zip(*parts, strict=True)]
        shown = [".".join(p for p, d in zip(each, differ, strict=True) if d) for each in parts]
    return [n if len(n) <= _NAME_LENGTH else "…" + n[1 - _NAME_LENGTH :] for n in shown]


def _layer_colours(layers: int) -> np.ndarray:
    """Colours from dark (first layer) to light (last), without yellow, invisible on white."""
    return colormaps["viridis"](np.linspace(0, 0.88, layers))


def _layer_bar(figure: Figure, panels: Sequence[Axes], layers: Sequence[str]) -> None:
    """Draw the colour bar of the layers."""
    n = len(layers)
    shades = ScalarMappable(
        BoundaryNorm(np.arange(n + 1) - 0.5, n), ListedColormap(_layer_colours(n))
    )
    bar = figure.colorbar(shades, ax=list(panels), aspect=30)
    bar.minorticks_off()
    names = _layer_names(layers)
    some = range(0, n, -(-n // 12))
    size = 10 if max(map(len, names)) < 4 else 8
    bar.set_ticks(some, labels=[names[i] for i in some], fontsize=size, parse_math=False)
    bar.ax.invert_yaxis()
    bar.set_label("layer", fontsize=11)


def _title(record: AttentionRecord, what: str) -> str:
    mappings = sorted(set(record.mappings))
    names = ", ".join(map(plot_style.name, mappings)) if len(mappings) < 3 else "several mappings"
    return f"{names}: {what}"
