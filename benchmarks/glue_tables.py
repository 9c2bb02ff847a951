"""The Markdown of benchmarks.glue's record."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.tables import line, spread

Record = dict[str, Any]
RECIPE = "recipe"
OURS = "ours softmax"
MEANING = f"""`{RECIPE}` is what Transformers' run_glue.py does: plain Trainer, every input padded
to 128 tokens, its own random order, softmax in SDPA. `ours` is this project's GLUE pipeline:
batches of similar length padded to their longest, in random order, and its fused attention. Same
model, data, threads, batch size and optimizer, float32."""
TIMED = """Median examples per second of one pass over the same random training rows, with
quartiles over rounds in which everyone trains once, in random order. `/ recipe` is the median of
the ratios within a round. `padded length` is the mean over the steps of what a batch is padded
to."""
TRAINED = """Whole runs on the training set and their score on the dev set at the end: mean over
seeds (lowest-highest). The seed decides the start of the head, the order of the data and
dropout."""


def markdown(record: Record) -> str:
    """The whole record as tables."""
    lines = ["# Fine-tuning MiniLM on MRPC, examples per second", "", MEANING]
    if found := record.get("throughput"):
        lines += ["", "## Throughput", "", TIMED, "", *_throughput_table(found)]
    if runs := record.get("accuracy"):
        lines += ["", "## Accuracy", "", TRAINED]
        for settings in _distinct([run["settings"] for run in runs]):
            lines += ["", *_accuracy_table([r for r in runs if r["settings"] == settings])]
    return "\n".join(lines) + "\n"


def _throughput_table(found: Record) -> list[str]:
    settings = found["settings"]
    lines = [
        f"{_where(found['environment'])}; {found['steps']} steps of {settings['batch_size']}.",
        "",
        "| contestant | examples/s | / recipe | padded length | n |",
        "| --- | --: | --: | --: | --: |",
    ]
    for row in found["rows"]:
        rate, gain = row["examples_per_second"], row["to_recipe"]
        cells = [row["name"], spread(rate), spread(gain), row["padded_length"], rate["n"]]
        lines.append(line(map(str, cells)))
    return lines


def _accuracy_table(runs: list[Record]) -> list[str]:
    settings = runs[0]["settings"]
    rows = settings["train_rows"] or "all"
    lines = [
        f"{_where(runs[-1]['environment'])}; {settings['epochs']:g} epochs over {rows} rows, "
        f"batches of {settings['batch_size']}, learning rate {settings['learning_rate']:g}.",
        "",
        "| contestant | seeds | accuracy | F1 | examples/s |",
        "| --- | --: | --: | --: | --: |",
    ]
    by_name = {name: [r for r in runs if r["name"] == name] for name in (RECIPE, OURS)}
    for name, own in by_name.items():
        if own:
            cells = [name, str(len(own)), _range(own, "accuracy", 100), _range(own, "f1", 100)]
            lines.append(line([*cells, _range(own, "examples_per_second", 1)]))
    return lines + _difference(*by_name.values())


def _difference(base: list[Record], ours: list[Record]) -> list[str]:
    """Ours minus the recipe's, with its standard error: the seeds of the two share nothing."""
    if min(len(base), len(ours)) < 2:
        return []
    both = [[100 * run["accuracy"] for run in runs] for runs in (base, ours)]
    gap = statistics.mean(both[1]) - statistics.mean(both[0])
    error = sum(statistics.variance(values) / len(values) for values in both) ** 0.5
    speeds = [statistics.mean(r["examples_per_second"] for r in runs) for runs in (base, ours)]
    return [
        "",
        f"Ours minus recipe: {gap:+.2f} points of accuracy, standard error {error:.2f}; "
        f"{speeds[1] / speeds[0]:.2f} times the examples per second.",
    ]


def _distinct(values: list[Record]) -> list[Record]:
    return [value for i, value in enumerate(values) if value not in values[:i]]


def _where(where: Record) -> str:
    versions = ", ".join(f"{k} {where['versions'][k]}" for k in ("torch", "transformers"))
    return (
        f"{where['device'] if where['cuda'] else where['cpu']}, {where['threads']} threads; "
        f"{versions}; {where['started']}, commit {where['commit'] or 'unknown'}"
    )


def _range(runs: list[Record], key: str, factor: float) -> str:
    values = [factor * run[key] for run in runs]
    return f"{statistics.mean(values):.1f} ({min(values):.1f}-{max(values):.1f})"
