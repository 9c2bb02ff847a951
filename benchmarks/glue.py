"""Fine-tuning on MRPC, compared with the GLUE recipe of Transformers."""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import datasets
import torch
from transformers import (
    AutoTokenizer,
    PrinterCallback,
    ProgressCallback,
    Trainer,
    default_data_collator,
    set_seed,
)
from transformers.utils import logging

from benchmarks import tables
from benchmarks.race import Contestant, Race
from benchmarks.suite import Case, Pace, Record, Suite
from benchmarks.tables import spread, table
from benchmarks.timing import Task, rounded
from glue.__main__ import EXPERIMENT
from glue.config import MappingConfig, RunConfig, TrainConfig
from glue.data import subset
from glue.model import load_model
from glue.scoring import compute_metrics
from glue.trainer import training_arguments
from sparse_attn.evaluation.data import load_task
from sparse_attn.hf.opening import resolve_model

RECIPE, OURS = "recipe", "ours softmax"
MAPPINGS = {
    OURS: MappingConfig("softmax"),
    "ours r-softmax": MappingConfig("r-softmax", {"r": 0.15}),
}
TIMED = """Median examples per second of one pass over the same random training rows, with
quartiles over rounds in which everyone trains once, in random order. `/ recipe` is the median of
the ratios within a round. `padded length` is the mean over the steps of what a batch is padded
to."""
TRAINED = """Whole runs on the training set and their score on the dev set at the end: mean over
seeds (lowest-highest). The seed decides the start of the head, the order of the data and
dropout."""


@dataclass(frozen=True)
class FineTuning(Case):
    """Comparable runs: all have the same `settings` and the data at `data_dir`."""

    settings: dict[str, Any]
    data_dir: str | None
    contestant: str = ""  # for cases that are a whole run
    seed: int = 0

    @property
    def title(self) -> str:
        return about(self.settings)

    @property
    def once(self) -> bool:
        return self.group == "accuracy"

    def config(self, name: str, folder: Path) -> RunConfig:
        """Return the run of a contestant, which writes only to this folder."""
        return RunConfig(
            task="MRPC",
            model=self.settings["model"],
            output_dir=str(folder / name),
            data_dir=self.data_dir,
            train_rows=self.settings["train_rows"],
            evaluate="end",
            keep_model=False,
            mapping=MAPPINGS.get(name, MappingConfig()),
            train=TrainConfig(
                epochs=self.settings["epochs"],
                batch_size=self.settings["batch_size"],
                learning_rate=self.settings["learning_rate"],
                seed=self.seed,
            ),
        )


class Glue(Suite[FineTuning, Contestant]):
    name = "glue"
    title = "Fine-tuning MiniLM on MRPC"
    meaning = f"""\
`{RECIPE}` is what Transformers' run_glue.py does: plain Trainer, every input padded
to 128 tokens, its own random order, softmax in SDPA. `ours` is this project's GLUE pipeline:
batches of similar length padded to their longest, in random order, and its fused attention. Same
model, data, threads, batch size and optimizer, float32."""
    base = RECIPE
    # rounds, and each of them an epoch
    paces: ClassVar = {"cpu": Pace(0, 3), "cuda": Pace(0, 3), "quick": Pace(0, 2)}
    keeps = True

    def cases(self, device: str, options: argparse.Namespace) -> list[FineTuning]:
        quick, whole = options.quick, options.accuracy
        steps = options.steps or (2 if quick else 12)
        settings = {
            "model": options.model,
            "train_rows": None if whole and not quick else steps * options.batch_size,
            "batch_size": options.batch_size,
            "learning_rate": options.learning_rate,
            "epochs": (options.epochs or (1.0 if quick else 2.0)) if whole else 1.0,
        }
        if not whole:
            return [FineTuning("throughput", "MRPC", settings, options.data_dir)]
        said = f"{about(settings)}; {options.model}"
        return [
            FineTuning(
                "accuracy", f"{name}, seed {seed}; {said}", settings, options.data_dir, name, seed
            )
            for seed in options.seeds or ([0] if quick else [0, 1, 2])
            for name in (RECIPE, OURS)
        ]

    def contestants(self, case: FineTuning, device: torch.device) -> list[Contestant]:
        names = [case.contestant] if case.contestant else [RECIPE, *MAPPINGS]
        return [Contestant(name, "softmax", name != RECIPE) for name in names]

    def measure(self, case: FineTuning, race: Race[Contestant]) -> dict[str, Any]:
        """Measure throughput, or the scores of a full run."""
        logging.set_verbosity_error()  # the classification head is newly initialised, as intended
        logging.disable_progress_bar()
        datasets.disable_progress_bars()
        with tempfile.TemporaryDirectory() as folder:
            try:
                configs = {c.name: case.config(c.name, Path(folder)) for c in race.contestants}
                if case.group == "accuracy":
                    rows = [{"name": name, **fine_tune(name, c)} for name, c in configs.items()]
                    return {"settings": case.settings, "seed": case.seed, "rows": rows}
                trainers = {name: trainer_of(name, config) for name, config in configs.items()}
            except (ValueError, TypeError, OSError) as error:
                sys.exit(f"error: {error}")
            tasks = {name: Task(functools.partial(epoch, t)) for name, t in trainers.items()}
            rows = race.rows(lambda c: tasks[c.name], clock=told, memory=False)
        for row in rows:
            if row["reason"] is None:
                row["padded_length"] = round(padded_length(trainers[row["name"]]), 1)
                row["examples_per_second"] = inverse(row["ms"], 1e3 * case.settings["train_rows"])
                row["speedup"] = inverse(row["to"].get(RECIPE))
        return {"settings": case.settings, "rows": rows}

    def sections(self, record: Record) -> list[str]:
        lines = []
        for group, about in (("throughput", TIMED), ("accuracy", TRAINED)):
            cases = [case for case in record["cases"] if case["group"] == group]
            lines += [f"## {group.capitalize()}", "", about, ""] if cases else []
            for title in dict.fromkeys(case["title"] for case in cases):
                some = [case for case in cases if case["title"] == title]
                rows = [row for case in some for row in case["rows"]]
                shown = _rates(rows) if group == "throughput" else _scores(rows)
                lines += [f"{title}.", *tables.measured(some[-1]), "", *shown, ""]
        return lines[:-1]


def about(settings: dict[str, Any]) -> str:
    """Return the settings in words, except the model."""
    return (
        f"{settings['epochs']:g} epochs over {settings['train_rows'] or 'all'} rows, batches of "
        f"{settings['batch_size']}, learning rate {settings['learning_rate']:g}"
    )


def inverse(summary: dict[str, float] | None, by: float = 1.0) -> dict[str, float] | None:
    """Return the median and quartiles of by / values."""
    if summary is None:
        return None
    ends = {"median": "median", "q1": "q3", "q3": "q1"}
    return {name: rounded(by / summary[end]) for name, end in ends.items()} | {"n": summary["n"]}


def _rates(rows: list[dict[str, Any]]) -> list[str]:
    cells = [
        [
            row["name"],
            spread(row["examples_per_second"]),
            spread(row["speedup"]),
            str(row["padded_length"]),
            str(row["examples_per_second"]["n"]),
        ]
        for row in rows
        if row["reason"] is None
    ]
    headings = ["contestant", "examples/s", f"/ {RECIPE}", "padded length", "n"]
    return table(headings, cells) + tables.reasons(rows)


def _scores(rows: list[dict[str, Any]]) -> list[str]:
    runs = {name: [row for row in rows if row["name"] == name] for name in (RECIPE, OURS)}
    cells = [
        [
            name,
            str(len(own)),
            _range(own, "accuracy", 100),
            _range(own, "f1", 100),
            _range(own, "examples_per_second", 1),
        ]
        for name, own in runs.items()
        if own
    ]
    headings = ["contestant", "seeds", "accuracy", "F1", "examples/s"]
    return table(headings, cells) + _difference(*runs.values())


def _difference(base: list[dict[str, Any]], ours: list[dict[str, Any]]) -> list[str]:
    """Return our score minus the recipe's, with its standard error; the seeds are unpaired."""
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


def _range(runs: list[dict[str, Any]], key: str, factor: float) -> str:
    values = [factor * run[key] for run in runs]
    return f"{statistics.mean(values):.1f} ({min(values):.1f}-{max(values):.1f})"


# The timed functions


def recipe(config: RunConfig) -> Trainer:
    """Return a Trainer with the defaults of the recipe.

    It is Transformers' examples/pytorch/text-classification/run_glue.py.
    """
    task = config.task_of_run()
    data = subset(load_task(task, config.data_dir), config.train_rows, config.selection)
    set_seed(config.train.seed)
    path = resolve_model(config.model)
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = load_model(path, task)
    longest = config.train.max_length

    def tokenize(batch: dict[str, list[str]]) -> dict[str, Any]:
        texts = [batch[name] for name in ("text_a", "text_b") if name in batch]
        return tokenizer(*texts, padding="max_length", max_length=longest, truncation=True)

    encoded = data.map(tokenize, batched=True, desc="Tokenizing")
    trainer = Trainer(
        model=model,
        args=training_arguments(config),
        train_dataset=encoded["train"],
        eval_dataset=encoded[task.dev_splits[0]],
        data_collator=default_data_collator,
        processing_class=tokenizer,
        compute_metrics=compute_metrics(task),
    )
    for printing in (ProgressCallback, PrinterCallback):
        trainer.remove_callback(printing)
    return trainer


def trainer_of(name: str, config: RunConfig) -> Trainer:
    return recipe(config) if name == RECIPE else EXPERIMENT.prepare(config).trainer


def epoch(trainer: Trainer) -> float:
    """Train for an epoch with a fresh optimizer; return milliseconds without Trainer's set-up."""
    trainer.optimizer = trainer.lr_scheduler = None
    return 1e3 * trainer.train().metrics["train_runtime"]


def told(epoch: Callable[[], Any]) -> float:
    """Return the milliseconds that an epoch reports; a clock for `Race.rows`."""
    return epoch()


def padded_length(trainer: Trainer) -> float:
    """Return the mean padded length over the steps of an epoch."""
    batches = trainer.get_train_dataloader()
    return statistics.mean(batch["input_ids"].shape[1] for batch in batches)


def fine_tune(name: str, config: RunConfig) -> dict[str, Any]:
    """Return dev scores and speed of a full run."""
    if name == RECIPE:
        trainer = recipe(config)
        trained = trainer.train().metrics
        scores = {k.removeprefix("eval_"): v for k, v in trainer.evaluate().items()}
        seconds, rate = trained["train_runtime"], trained["train_samples_per_second"]
    else:
        results = EXPERIMENT.train(config, EXPERIMENT.prepare(config))
        assert results is not None  # this is the only process
        scores = results["metrics"]
        seconds, rate = results["seconds"]["train"], results["examples_per_second"]
    return {
        "accuracy": scores["accuracy"],
        "f1": scores["f1"],
        "seconds": round(seconds, 1),
        "examples_per_second": round(rate, 2),
    }
