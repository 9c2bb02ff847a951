"""Plots of attention over lengths; needs matplotlib."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from benchmarks import plots
from benchmarks.attention.cases import PASSES
from benchmarks.attention.contestants import BASE
from sparse_attn.inspection.plot_style import styles

SOFTMAX = (BASE, "FlexAttention")  # peers whose names do not include the mapping
PLOTTED = {
    "time": ("ms", "milliseconds"),
    "memory": ("memory_mib", "peak memory beyond the inputs, MiB"),
}


def draw(found: list[dict[str, Any]], key: str, label: str, device: str) -> Figure:
    """Plot both passes side by side, with a curve for each contestant."""
    found = sorted(found, key=lambda case: case["length"])
    figure = Figure((13, 5.5), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for axis, which in zip(axes, PASSES, strict=True):
        curves = plots.curves(found, "length", key, which)
        looks = styles([f"softmax: {n}" if n.startswith(SOFTMAX) else n for n in curves])
        for (name, points), look in zip(curves.items(), looks, strict=True):
            line = "-" if name.startswith("ours") else "--"
            plots.draw(axis, points, {**look, "linestyle": line, "markersize": 4}, name)
        plots.logarithmic(axis, xlabel="length N", title=which)
        axis.set_xticks([case["length"] for case in found], [str(c["length"]) for c in found])
        axis.minorticks_off()
    axes[0].set_ylabel(label)
    handles = {h.get_label(): h for axis in axes for h in axis.get_lines()}
    figure.legend(handles.values(), handles.keys(), loc="outside right center", fontsize=8)
    tokens = ", ".join(f"{c['batch']}x{c['length']}" for c in (found[0], found[-1]))
    figure.suptitle(f"Attention on {device}, {found[0]['heads']} heads, batch x N from {tokens}")
    return figure
