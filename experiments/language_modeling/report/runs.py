"""Read single runs as the results of a sweep, and name the settings in which cells differ."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, cast

from experiments.language_modeling.config import BASELINE
from experiments.language_modeling.sections import HeadConfig
from sparse_attn.engine.sweep.plan import Cell
from sparse_attn.engine.sweep.records import (
    FOLDER,
    PACKED_FILE,
    SWEEP_FILE,
    Record,
    Stage,
    hash_of,
    read_packed,
)
from sparse_attn.engine.sweep.results import Results, Value
from sparse_attn.reports import text
from sparse_attn.system.files import differences, read_json
from sparse_attn.system.run_folders import CONFIG_FILE, RESULTS_FILE


def read_runs(folder: Path) -> Results:
    """Read every run below a folder; the task is the experiment, the mapping is the head.

    An experiment is a folder of run folders, or one with a file of records. Runs that differ only
    in their seed form a cell. It is named by its head, plus the settings that not all runs of the
    head share.

    Raises:
        ValueError: no run below the folder, an unreadable one, or two of a cell with the same seed.
    """
    heads: dict[Cell, list[Record]] = defaultdict(list)
    for run in _runs(folder):
        heads[run.task, run.mapping].append(run)
    if not heads:
        raise ValueError(
            f"results_dir={folder}: holds no record of a run; expected the output_dir of a sweep, "
            f"folders that `train` has made, or {PACKED_FILE}"
        )
    cells: dict[Cell, list[Record]] = defaultdict(list)
    for (task, head), runs in sorted(heads.items()):
        # the trials of a sweep differ in the rate and belong to the cell of the final runs
        single = [run for run in runs if run.stage == "grid"]
        told = sorted({key for run in single for key in keys(single[0].config, run.config)})
        for run in sorted(runs, key=lambda run: (run.stage, run.index)):
            settings = ", ".join(f"{key} {setting(run.config, key)}" for key in told)
            label = f"{head} ({settings})" if settings else head
            if any((run.stage, run.index) == (r.stage, r.index) for r in cells[task, label]):
                raise ValueError(
                    f"{task}: several records of {label} have seed {run.index} and the same "
                    "settings; keep one of them"
                )
            cells[task, label].append(run)
    return Results(folder, None, sum(map(len, cells.values())), dict(cells))


def keys(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Return the keys in which two configs differ, such as model.layers; not seed or measures."""
    found = [line.split(":")[0] for line in differences(one, other)]
    return [key for key in found if key != "seed" and not key.startswith("measures.")]


def setting(config: dict[str, Any], key: str) -> str:
    """Return a config value in words; on or off for a section such as finetune."""
    value = at(config, key)
    return "on" if isinstance(value, dict) else "off" if value is None else text.plain(value)


def at(content: dict[str, Any], key: str) -> Any:
    """Return the value of a key such as model.layers, or None."""
    found: Any = content
    for part in key.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found


def measured(measure: str) -> Value:
    """Return a function that reads a measure of a run by its dotted key.

    Further keys: `epochs`, the number trained, and `epoch_seconds`, their mean time.
    """

    def value(run: dict[str, Any]) -> float | None:
        if measure == "epochs":
            return len(run["epochs"])
        if measure == "epoch_seconds":
            return fmean([epoch["seconds"] for epoch in run["epochs"]] or [0.0])
        return at(run, measure)

    return value


def values(results: Results, cell: Cell, measure: str) -> dict[int, float]:
    """Return a measure by seed, for each run that has it."""
    return results.by_seed(cell, measured(measure))


def cells_of(results: Results, task: str) -> list[Cell]:
    """The cells of an experiment with final runs: softmax first, then by test perplexity."""

    def order(cell: Cell) -> tuple[bool, float, str]:
        test = results.spread(cell, measured("test_perplexity"))
        head = results.counting(cell)[0].mapping
        return head != BASELINE, float("inf") if test is None else test.mean, cell[1]

    cells = [cell for cell in results.cells if cell[0] == task and results.counting(cell)]
    return sorted(cells, key=order)


def config_of(results: Results, cell: Cell) -> dict[str, Any]:
    """The settings shared by the final runs of a cell."""
    return results.counting(cell)[0].config


def baseline(results: Results, cell: Cell) -> Cell | None:
    """Return the softmax cell that differs from this one only in its head.

    Both have the same start, because after few epochs it matters more than the head. Both have the
    same learning rate, unless trials chose a rate for each.
    """
    config, tuned = config_of(results, cell), results.counting(cell)[0].stage == "final"
    for other in cells_of(results, cell[0]):
        if results.counting(other)[0].mapping == BASELINE:
            differing = set(keys(config, config_of(results, other)))
            differing -= {"train.learning_rate"} if tuned else set()
            if all(key.startswith("head.") and key != "head.start" for key in differing):
                return other
    return None


def described(config: dict[str, Any]) -> str:
    """Return the corpus, network and head of a run, as `published.yaml` names them."""
    model, head = config["model"], HeadConfig(**config["head"]).name
    size = f"{model['embedding']}, {model['layers']} x {model['hidden']}"
    size += f", dropout {model['dropout']}" if model["dropout"] else ""
    finetuned = ", finetuned" if config["finetune"] else ""
    return f"{config['corpus']['name']} {model['kind']} {size}, {head}{finetuned}"


def _runs(folder: Path) -> Iterator[Record]:
    """Yield the runs of run folders, then of record files; the parent folder names the task."""
    for file in sorted(folder.rglob(CONFIG_FILE)):
        config, results = read_json(file, str(file.parent), "move it away"), None
        if (finished := file.with_name(RESULTS_FILE)).exists():
            results = read_json(finished, str(file.parent), "move it away")
        try:
            head, seed = HeadConfig(**config["head"]).name, config["seed"]
            # a run that was interrupted, or is not done yet, has no results
            status: Any = "failed" if results is None else results["status"]
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"{file.parent}: not a language model's run ({error}); move it away"
            ) from None
        task, stage, index = file.parent.resolve().parent, "grid", seed
        if task.name == FOLDER:  # of a sweep, where names end in stage, index and hash
            place = file.parent.name.split(".")[-2]
            task, stage = task.parent, place.rstrip("0123456789")
            index = int(place.removeprefix(stage))
        given = results if status == "finished" else None
        key = hash_of(config)
        yield Record(task.name, head, cast(Stage, stage), index, key, config, status, None, given)
    packed = {file.parent for name in (PACKED_FILE, SWEEP_FILE) for file in folder.rglob(name)}
    for experiment in sorted(packed):
        for record in read_packed(experiment).values():
            yield replace(record, task=experiment.resolve().name)
