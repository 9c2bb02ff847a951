"""One run: from a config to results.json and a model that loads again."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_model, save_model
from torch import nn

from experiments.multilabel.config import RunConfig
from experiments.multilabel.data.load import load_data
from experiments.multilabel.models import build_model, head_of
from experiments.multilabel.training import Training
from pipeline.files import write_json
from pipeline.folders import RESULTS_FILE, check_run_folder, claim_run_folder
from pipeline.machine import peak_memory_mib

CHECKPOINT_FILE = "checkpoint.pt"
MODEL_FILE = "model.safetensors"


def prepare(config: RunConfig) -> Training:
    """Read the data and build the model; nothing is written.

    The first weights depend on the seed alone, and below the head not on the method.

    Raises:
        ValueError, TypeError, OSError: what is wrong with the config or the data.
    """
    data = load_data(config, config.train.seed)
    torch.manual_seed(config.train.seed)
    return Training(config, build_model(config, config.method, len(data.labels)), data)


def train(config: RunConfig) -> dict[str, Any]:
    """Train, measure, save, write results.json and return what it holds.

    Raises:
        ValueError, TypeError, OSError: as `prepare`, or output_dir is not this run's.
        DivergedError: the loss is NaN or infinite.
    """
    folder, content = Path(config.output_dir), config.comparable()
    check_run_folder(folder, content, config.resume)
    training = prepare(config)
    claim_run_folder(folder, content, config.resume)
    checkpoint = folder / CHECKPOINT_FILE
    results = training.run(checkpoint if config.keep_model else None)
    if config.keep_model:
        save_model(training.model, str(folder / MODEL_FILE))
    results |= {"peak_memory_mib": round(peak_memory_mib(training.device))}
    results["config"] = asdict(config)
    write_json(folder / RESULTS_FILE, results)
    checkpoint.unlink(missing_ok=True)
    return results


def load(folder: str | Path) -> nn.Module:
    """The model that a finished run has kept, with its threshold, in evaluation mode.

    Args:
        folder: output_dir of the run.

    Raises:
        ValueError: no finished run there, or one that kept no model.
    """
    try:
        results = json.loads((Path(folder) / RESULTS_FILE).read_text(encoding="utf-8"))
        config = RunConfig.from_dict(results["config"])
        model = build_model(config, config.method, len(results["labels"]))
        load_model(model, str(Path(folder) / MODEL_FILE))
    except OSError as error:
        raise ValueError(
            f"folder={folder}: expected the output_dir of a finished run that kept its model "
            f"({error})"
        ) from None
    head_of(model).threshold = results["threshold"]
    return model.eval()
