"""The first command of the README: three mappings on a small entailment task.

Run as:
    python -m demo
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from transformers.utils import logging

from glue.__main__ import EXPERIMENT

ROOT = Path(__file__).resolve().parent.parent
MAPPINGS = {
    "softmax": "softmax",
    "r-softmax": "r-softmax, r 0 to 0.15",
    "sparsemax-ramped": "sparsemax, ramped from softmax",
}


def main() -> None:
    """Run, print a table, write a plot."""
    logging.set_verbosity_error()
    folder = ROOT / "runs" / "demo"
    results = {}
    for number, (overlay, title) in enumerate(MAPPINGS.items(), 1):
        print(f"\n[{number}/{len(MAPPINGS)}] {title}")
        shutil.rmtree(folder / overlay, ignore_errors=True)  # of an earlier demo
        results[title] = run(overlay, folder / overlay)
    print(f"\n{table(results)}\n\nplot: {plot(results, folder / 'demo.png')}")


def run(overlay: str, output_dir: Path) -> dict[str, Any]:
    """One fine-tuning run as `python -m glue train` would do it."""
    configs = ROOT / "configs"
    arguments = ["train", "--config", f"{configs}/glue/demo.yaml"]
    arguments += ["--config", f"{configs}/mapping/{overlay}.yaml"]
    arguments += ["--task", f"{ROOT}/demo/entail.yaml", "--output_dir", str(output_dir)]
    (config,) = EXPERIMENT.program.parse(arguments)[1]
    results = EXPERIMENT.train(config, EXPERIMENT.prepare(config))
    assert results is not None  # in one process
    return results


def table(results: dict[str, dict[str, Any]]) -> str:
    """Accuracy, realised sparsity and time, a row a mapping."""
    lines = [f"{'mapping in attention':32}{'accuracy':>10}{'exact zeros':>13}{'seconds':>9}"]
    lines.append("-" * len(lines[0]))
    for title, result in results.items():
        accuracy = f"{100 * result['metrics']['accuracy']:.1f} %"
        zeros = f"{100 * result['sparsity']['dev']['mean']:.1f} %"
        lines.append(f"{title:32}{accuracy:>10}{zeros:>13}{result['seconds']['train']:>9.0f}")
    rows = next(iter(results.values()))["rows"]
    lines.append(
        f"{rows['train']} training and {rows['dev']} dev pairs, one seed: a demonstration,"
    )
    lines.append("not evidence that one mapping is better than another.")
    return "\n".join(lines)


def plot(results: dict[str, dict[str, Any]], path: Path) -> Path:
    """Accuracy and share of exact zeros on the dev set over training."""
    figure = Figure((10, 4), layout="constrained")
    axes = figure.subplots(1, 2)
    labels = {"accuracy": "dev accuracy, %", "sparsity": "exact zeros, % of valid keys"}
    for axis, (key, label) in zip(axes, labels.items(), strict=True):
        for title, result in results.items():
            epochs = [entry["epoch"] for entry in result["per_epoch"]]
            axis.plot(epochs, [100 * e[key] for e in result["per_epoch"]], "o-", label=title)
        axis.set(xlabel="epoch", ylabel=label)
        axis.grid(alpha=0.3)
    axes[0].legend()
    figure.savefig(path, dpi=120)
    return path


if __name__ == "__main__":
    main()
