"""One run: from a config to results.json and a model that loads again."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_model, save_model
from torch import nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedModel

from experiments.multilabel.config import RunConfig
from experiments.multilabel.data.load import load_data
from experiments.multilabel.models import build_model, head_of
from experiments.multilabel.training import Training
from glue.model import resolve_model
from pipeline.files import write_json
from pipeline.folders import RESULTS_FILE, check_run_folder, claim_run_folder
from pipeline.machine import peak_memory_mib
from sparse_attn import load_pretrained
from sparse_attn.heads import MultiLabelHead

CHECKPOINT_FILE = "checkpoint.pt"
MODEL_FILE = "model.safetensors"
MODEL_FOLDER = "model"


def assemble(config: RunConfig) -> Training:
    """Read the data and build the model; nothing is written.

    The first weights depend on the seed alone, and below the head not on the method.

    Raises:
        ValueError, TypeError, OSError: what is wrong with the config or the data.
    """
    data = load_data(config, config.train.seed)
    torch.manual_seed(config.train.seed)
    return Training(config, build_model(config, config.method, len(data.labels)), data)


def prepare(config: RunConfig) -> Training:
    """`assemble`, and make output_dir this run's own.

    Raises:
        ValueError, TypeError, OSError: as `assemble`, or output_dir is not this run's. Nothing has
            been written then.
    """
    folder, content = Path(config.output_dir), config.comparable()
    check_run_folder(folder, content, config.resume)
    training = assemble(config)
    claim_run_folder(folder, content, config.resume)
    return training


def train(training: Training) -> dict[str, Any]:
    """Train, measure, save, write results.json and return what it holds.

    Raises:
        DivergedError: the loss is NaN or infinite.
    """
    config = training.config
    folder = Path(config.output_dir)
    checkpoint = folder / CHECKPOINT_FILE
    results = training.run(checkpoint if config.keep_model else None)
    if config.keep_model:
        _save(training.model, training.data.labels, config, folder)
    results |= {"peak_memory_mib": round(peak_memory_mib(training.device))}
    results["config"] = asdict(config)
    write_json(folder / RESULTS_FILE, results)
    checkpoint.unlink(missing_ok=True)
    return results


def _save(model: nn.Module, labels: tuple[str, ...], config: RunConfig, folder: Path) -> None:
    """A patched Transformer and its tokenizer for `load_pretrained`, other models in one file."""
    if not isinstance(model, PreTrainedModel):
        save_model(model, str(folder / MODEL_FILE))
        return
    model.config.id2label = dict(enumerate(labels))
    model.config.label2id = {label: number for number, label in enumerate(labels)}
    model.save_pretrained(folder / MODEL_FOLDER)
    assert config.text is not None  # no other data has such a model
    tokenizer = AutoTokenizer.from_pretrained(resolve_model(config.text.model))
    tokenizer.save_pretrained(folder / MODEL_FOLDER)


def load(folder: str | Path) -> nn.Module:
    """The model that a finished run has kept, with its threshold, in evaluation mode.

    A text model with a mapping is also what `sparse_attn.load_pretrained` makes of folder/model.

    Args:
        folder: output_dir of the run.

    Raises:
        ValueError: no finished run there, or one that kept no model.
    """
    try:
        results = json.loads((Path(folder) / RESULTS_FILE).read_text(encoding="utf-8"))
        patched = Path(folder) / MODEL_FOLDER
        if patched.is_dir():
            return load_pretrained(AutoModelForSequenceClassification, patched).eval()
        config = RunConfig.from_dict(results["config"])
        model = build_model(config, config.method, len(results["labels"]))
        load_model(model, str(Path(folder) / MODEL_FILE))
    except OSError as error:
        raise ValueError(
            f"folder={folder}: expected the output_dir of a finished run that kept its model "
            f"({error})"
        ) from None
    head = head_of(model)
    head.threshold = results["threshold"]
    if config.method.schedule is not None:
        parameter = config.method.schedule.parameter
        cast(MultiLabelHead, head).set_parameter(parameter, results["parameters"][parameter])
    return model.eval()
