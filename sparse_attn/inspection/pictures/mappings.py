"""Pictures of a mapping of two scores, and of three."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from torch import Tensor

from sparse_attn.inspection import plot_style
from sparse_attn.mappings import Mapping

_REACH = 5.0  # scores of the curves go from -5 to 5
_JUMP = 0.25  # larger steps between two points of a curve are drawn as a gap
_STEP, _STEPS = 1 / 6, 24  # lattice of scores on the simplex: spacing, and largest difference
# corners of a triangle around the origin, the first on top
_CORNERS = np.array([[0.0, 1.0], [-np.sqrt(0.75), -0.5], [np.sqrt(0.75), -0.5]])
# colour, marker and meaning by the number of probabilities above 0
_KEPT = {
    3: ("#0072B2", "o", "no zero"),
    2: ("#E69F00", "^", "one zero: an edge"),
    1: ("#D55E00", "s", "two zeros: a corner"),
    0: (plot_style.GREY, "X", "all zero"),
}


def draw_curves(
    mappings: Sequence[str | Mapping], *, figsize: tuple[float, float] | None = None
) -> Figure:
    """Draw p_1 of the scores (z, 0) against z in [-5, 5], one line per mapping.

    If a mapping drops one of the two, each mapping gets a row below the lines, thick where one
    probability is exactly 0: p_1 where its line is at 0, p_2 where it is at 1. A line is broken
    where the mapping jumps.

    Args:
        mappings: names, drawn with the parameters' defaults, or `Mapping`s without `heads`.
        figsize: width and height in inches.

    Raises:
        ValueError: no mapping, an unknown name, or a mapping with one value per head.
    """
    if isinstance(mappings, str) or not mappings:
        raise ValueError(f"mappings: expected a list of names or Mappings, got {mappings!r}")
    held = [_as_mapping(mapping) for mapping in mappings]
    z = np.linspace(-_REACH, _REACH, 2001)
    found = [_probabilities(mapping, np.stack([z, np.zeros_like(z)], -1)) for mapping in held]
    styles = plot_style.styles([mapping.name for mapping in held])
    lines = [{"color": look["color"], "linestyle": look["linestyle"], "lw": 2} for look in styles]
    sparse = any((p == 0).any() for p in found)
    heights = (3.0, 0.36 * len(held)) if sparse else (3.0,)
    size = figsize or (plot_style.WIDTH, 1.15 + sum(heights))
    figure = plot_style.PaperFigure(figsize=size, layout="constrained")
    panels = figure.subplots(len(heights), height_ratios=heights, sharex=True, squeeze=False)[:, 0]
    for mapping, p, line in zip(held, found, lines, strict=True):
        jumps = np.flatnonzero(np.abs(np.diff(p[:, 0])) > _JUMP) + 1
        broken = np.insert(z, jumps, np.nan), np.insert(p[:, 0], jumps, np.nan)
        panels[0].plot(*broken, **line, label=_label(mapping, ", "))
    panels[0].set_ylabel("$p_1$", fontsize=11)
    top = max(1.0, *(p[:, 0].max() for p in found))  # above 1 for some unnormalised rows
    panels[0].set_ylim(-0.04 * top, 1.04 * top)
    plot_style.tidy(panels[0])
    if sparse:
        _zero_rows(panels[1], z, found, lines)
        panels[1].set_yticks(range(len(held)), [_label(m, "\n") for m in held], fontsize=9)
    else:
        plot_style.legend_below(figure, panels[0])
    panels[-1].set_xlabel("score $z$ of the first; the second has score 0", fontsize=11)
    panels[-1].set_xlim(-_REACH, _REACH)
    return figure


def _zero_rows(
    axes: Axes, z: np.ndarray, found: list[np.ndarray], lines: list[dict[str, Any]]
) -> None:
    """Draw a row per mapping: a sample of its line, thick where one of the two is exactly 0."""
    plot_style.tidy(axes)
    margin: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "clip_on": False}
    for row, (p, line) in enumerate(zip(found, lines, strict=True)):
        dropped = np.where((p == 0).any(-1), row, np.nan)
        axes.plot(z, dropped, color=line["color"], lw=7, solid_capstyle="butt")
        axes.plot((-0.075, -0.015), (row, row), **line, **margin)
    axes.set_title("where one of the two is exactly 0", fontsize=10, loc="left")
    axes.tick_params(axis="y", length=0, pad=36)
    axes.set_ylim(len(found) - 0.5, -0.5)


def draw_simplex(
    mapping: str | Mapping,
    *,
    figsize: tuple[float, float] | None = None,
    title: str | None = None,
) -> Figure:
    """Draw p = map(z) for a lattice of scores z = (z_1, z_2, z_3): z on the left, p on the right.

    Both panels put a point x at x_1 c_1 + x_2 c_2 + x_3 c_3, where c_i are the corners of the
    triangle: the nearer a point is to a corner, the higher that score or probability. The scores
    have sum 0, steps of 1/6, and differ by at most 4. A row of p that sums to less than 1 is drawn
    nearer to the middle, and one that sums to more may leave the triangle. Colour and marker show
    how many of the three probabilities are exactly 0, and the legend gives the share of scores for
    each number. Grey lines join neighbours of the lattice that have the same zeros.

    Args:
        mapping: a name, drawn with the parameters' defaults, or a `Mapping` without `heads`.
        figsize: width and height in inches.
        title: text above the panels; None for the mapping and its parameters.

    Raises:
        ValueError: an unknown name, or a mapping with one value per head.
    """
    held = _as_mapping(mapping)
    scores, _ = _lattice()
    p = _probabilities(held, scores)
    size = figsize or (plot_style.WIDTH, 4.3)
    figure = plot_style.PaperFigure(figsize=size, layout="constrained")
    left, right = figure.subplots(1, 2)
    _plane(left, "scores $z$", scores, p, reach=4.0)
    _plane(right, "probabilities $p$", p, p, reach=1.0)
    right.plot(*_CORNERS[[0, 1, 2, 0]].T, color="black", lw=0.8, zorder=0)
    for place, (x, y) in enumerate(_CORNERS, start=1):
        near: dict[str, Any] = {"ha": "center", "va": "bottom" if y > 0 else "top", "fontsize": 10}
        left.text(4 * x, (4.2 if y > 0 else 5.3) * y, f"$z_{place}$ high", **near)
        right.text(x, 1.08 * y, f"$p_{place} = 1$", **near)
    plot_style.legend_below(figure, left)
    figure.suptitle(_label(held, ", ") if title is None else title)
    return figure


def _as_mapping(mapping: str | Mapping) -> Mapping:
    if isinstance(mapping, str):
        return Mapping(mapping)
    if mapping.num_heads is not None:
        raise ValueError(
            f"mapping: expected one value of each parameter, got {mapping.name} with "
            f"num_heads={mapping.num_heads}; draw Mapping({mapping.name!r}, ...) with those "
            "of one head"
        )
    return mapping


def _label(mapping: Mapping, between: str) -> str:
    """Name and parameters, without values that each row derives."""
    values = {p.name: mapping.value(p.name) for p in mapping.spec.parameters}
    single = {n: torch.as_tensor(v) for n, v in values.items() if v is not None}
    shown = [f"{name} = {value.item():.3g}" for name, value in single.items() if value.numel() == 1]
    return between.join([plot_style.name(mapping.name), *([", ".join(shown)] if shown else [])])


def _probabilities(mapping: Mapping, scores: np.ndarray) -> np.ndarray:
    """Compute p of rows of scores in float64 on the CPU, wherever the mapping is."""
    arguments = {
        name: value.detach().cpu() if isinstance(value, Tensor) else value
        for name, value in mapping.arguments().items()
    }
    return mapping.spec.function(torch.as_tensor(scores), **arguments).numpy()


@cache
def _lattice() -> tuple[np.ndarray, np.ndarray]:
    """Return the scores (n, 3) of the lattice, and the indices (m, 2) of its neighbours."""
    i, j = np.mgrid[-_STEPS : _STEPS + 1, -_STEPS : _STEPS + 1].reshape(2, -1)
    whole = np.stack([i, j, -i - j], -1)
    whole = whole[np.ptp(whole, axis=-1) <= _STEPS]
    number = {place: n for n, place in enumerate(map(tuple, whole.tolist()))}
    pairs = [
        (n, number[near])
        for (i, j, k), n in number.items()
        for near in ((i + 1, j, k - 1), (i, j + 1, k - 1), (i + 1, j - 1, k))
        if near in number
    ]
    return whole * _STEP, np.array(pairs)


def _plane(axes: Axes, title: str, points: np.ndarray, p: np.ndarray, reach: float) -> None:
    """Draw points (n, 3) in the plane of the three corners, marked by the number of zeros in p."""
    axes.set_title(title, fontsize=11)
    axes.set_aspect("equal")
    axes.set_axis_off()
    axes.set(xlim=(-1.1 * reach, 1.1 * reach), ylim=(-1.02 * reach, 1.18 * reach))
    flat, kept = points @ _CORNERS, p != 0
    _, pairs = _lattice()
    normalised = np.allclose(p.sum(-1), 1)  # otherwise a zero does not put a point on an edge
    same_zeros = (kept[pairs[:, 0]] == kept[pairs[:, 1]]).all(-1)
    net = LineCollection(flat[pairs[same_zeros]], colors="#CCCCCC", linewidths=0.5, zorder=1)
    axes.add_collection(net, autolim=False)
    for support, (colour, mark, meaning) in _KEPT.items():
        chosen = flat[kept.sum(-1) == support]
        if not (support or len(chosen)):  # only possible for unnormalised rows
            continue
        share = 100 * len(chosen) / len(flat)
        said = meaning if normalised else meaning.partition(":")[0]
        axes.plot(*chosen.T, mark, color=colour, ms=2.5, label=f"{said} ({share:.0f} %)")
