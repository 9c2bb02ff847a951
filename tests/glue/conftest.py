"""A tiny BERT with its tokenizer, data in the layout of the GLUE download, a run of both."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

from sparse_attn.evaluation.tasks import TASKS
from tests.glue.make_glue import write_task
from tests.glue.running import Asked
from tests.letters import letter_tokenizer


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny-bert")
    tokenizer = letter_tokenizer()
    tokenizer.save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=128,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        BertForSequenceClassification(config).save_pretrained(folder)
    return folder


@pytest.fixture
def kept_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs leave their checkpoints, as one does that is killed at its very end."""
    monkeypatch.setattr("sparse_attn.hf.checkpoints.remove_checkpoints", lambda folder: None)


@pytest.fixture(scope="session")
def glue_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("glue")
    for task in TASKS:
        write_task(folder, task, train=24, dev=7)
    return folder


@pytest.fixture(scope="session")
def asked(tiny_model: Path, glue_folder: Path) -> Asked:
    """The command line of a run of six steps on RTE; options after it win."""

    def arguments(output: Path, *more: Any) -> list[str]:
        given = {"task": "RTE", "model": tiny_model, "data_dir": glue_folder, "output_dir": output}
        given |= {"train.epochs": 2, "train.batch_size": 8, "train.learning_rate": 1e-3}
        options = [word for name, value in given.items() for word in (f"--{name}", value)]
        return ["train", *map(str, [*options, *more])]

    return arguments
