"""One training run: from a config to results.json and a checkpoint with the best weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from experiments.images.config import CLASSES, RunConfig
from experiments.images.criteria import check_start, make_criterion
from experiments.images.data.base import Splits, load_splits
from experiments.images.networks import make_network
from experiments.images.training import Classifier, Training, measure
from pipeline.files import write_json
from pipeline.folders import RESULTS_FILE, check_run_folder, claim_run_folder
from pipeline.machine import choose_device, device_name, versions

CHECKPOINT_FILE = "checkpoint.pt"


@dataclass
class Run:
    """A run whose parts have been made and found to fit together."""

    config: RunConfig
    splits: Splits
    model: Classifier
    device: torch.device


def prepare(config: RunConfig) -> Run:
    """Read the images, make the network, and only then claim output_dir.

    Raises:
        ValueError, TypeError, OSError: what is wrong with the config, the images or the loss.
            Nothing has been written then.
    """
    folder = Path(config.output_dir)
    check_run_folder(folder, config.comparable(), config.resume)
    run = assemble(config)
    claim_run_folder(folder, config.comparable(), config.resume)
    return run


def assemble(config: RunConfig) -> Run:
    """The parts of a run; raises as `prepare`, but for output_dir, which it leaves alone."""
    device = choose_device(config.device)
    criterion = make_criterion(config.loss)
    check_start(criterion, CLASSES[config.data.name], config.network.output_std)
    splits = load_splits(config.data, config.train.seed)
    # the same first weights for every loss
    torch.manual_seed(config.train.seed)
    network = make_network(config.data.name, config.network)
    return Run(config, splits, Classifier(network, criterion).to(device), device)


def train(run: Run) -> dict[str, Any]:
    """Do what `train_and_measure` does with a checkpoint, and write results.json; raises alike."""
    folder = Path(run.config.output_dir)
    results = train_and_measure(run, folder / CHECKPOINT_FILE)
    write_json(folder / RESULTS_FILE, results)
    return results


def train_and_measure(run: Run, checkpoint: Path | None = None) -> dict[str, Any]:
    """Train, measure with the best weights and return what results.json is to hold.

    Args:
        run: the parts.
        checkpoint: file to go on from and to write to, as in `fit`; none if left out.

    Raises:
        DivergedError: a loss is no number.
    """
    config, model, splits = run.config, run.model, run.splits
    training = Training(
        model, splits.train.to(run.device), splits.validation.to(run.device), config.train
    )
    progress = training.run(checkpoint)
    return {
        "data": config.data.name,
        "loss": config.loss.name,
        "measure": model.criterion.measure,
        "score": progress.best_score,
        "validation": measure(model, training.validation),
        "test": measure(model, splits.test.to(run.device)) if config.test else None,
        "epochs": progress.epoch,
        "best_epoch": progress.best_epoch,
        "history": progress.history,
        "images": splits.sizes(),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "seconds": progress.seconds,
        "seed": config.train.seed,
        "device": device_name(run.device),
        "versions": versions("torch"),
        "config": config.comparable(),
    }
