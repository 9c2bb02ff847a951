"""Time and memory against length, on logarithmic axes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

MEASURES = {
    "time": ("ms", "milliseconds"),
    "memory": ("memory_mib", "peak memory beyond the inputs, MiB"),
}


def plot(record: dict[str, Any], folder: Path, stem: str) -> list[Path]:
    """One PNG a group of lengths and measure, of those with at least two lengths."""
    paths = []
    for group in ("length", "causal"):
        found = [case for case in record["cases"] if case["group"] == group]
        found.sort(key=lambda case: case["length"])
        if len(found) < 2:
            continue
        for measure in MEASURES:
            paths.append(folder / f"{stem}-{group}-{measure}.png")
            _draw(found, measure, paths[-1], record["environment"]["device"])
    return paths


def _draw(found: list[dict[str, Any]], measure: str, path: Path, device: str) -> None:
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    key, label = MEASURES[measure]
    figure, axes = plt.subplots(1, 2, figsize=(13, 5.5), layout="constrained", sharey=True)
    for axis, which in zip(axes, ("forward", "forward+backward"), strict=True):
        for number, (name, points) in enumerate(_curves(found, which, key).items()):
            style = "-" if name.startswith("ours") else "--"
            axis.plot(
                *zip(*points, strict=True), style, marker=".", color=f"C{number % 10}", label=name
            )
        axis.set(xscale="log", yscale="log", xlabel="length N", title=which)
        axis.set_xticks([case["length"] for case in found], [str(c["length"]) for c in found])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0].set_ylabel(label)
    handles = {h.get_label(): h for axis in axes for h in axis.get_lines()}
    figure.legend(handles.values(), handles.keys(), loc="outside right center", fontsize=8)
    tokens = ", ".join(f"{c['batch']}x{c['length']}" for c in (found[0], found[-1]))
    figure.suptitle(f"Attention on {device}, {found[0]['heads']} heads, batch x N from {tokens}")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _curves(
    found: list[dict[str, Any]], which: str, key: str
) -> dict[str, list[tuple[int, float]]]:
    curves: dict[str, list[tuple[int, float]]] = {}
    for case in found:
        for row in case["rows"]:
            value = row.get(key)
            value = value["median"] if isinstance(value, dict) else value
            if row["pass"] == which and value:
                curves.setdefault(row["name"], []).append((case["length"], value))
    return curves
