"""Weights and checkpoints that would run something run nothing."""

import json
import shutil
import sys
from pathlib import Path
from pickle import UnpicklingError
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForSequenceClassification

from experiments.language_modeling import __main__ as language_modeling
from experiments.multilabel.backbones import TORCHVISION, WEIGHTS, resnet
from experiments.multilabel.config import MethodConfig
from experiments.multilabel.data.config import TextConfig
from experiments.multilabel.models import text_model
from glue import __main__ as glue
from glue.model import load_model
from glue.tasks import TASKS
from pipeline.fitting import fit
from sparse_attn import load_pretrained, patch_model
from tests.experiments.multilabel.tiny import tiny_bert
from tests.glue.make_glue import write_task


class Attack:
    """Unpickled it makes a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return Path.touch, (self.file,)


@pytest.fixture
def ran(tmp_path: Path) -> Path:
    """A file that is there once something has run that should not."""
    return tmp_path / "ran"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A small BERT and its tokenizer."""
    return tiny_bert(tmp_path / "model")


def test_the_attack_works(ran: Path, tmp_path: Path) -> None:
    torch.save({"weight": Attack(ran)}, tmp_path / "weights")
    torch.load(tmp_path / "weights", weights_only=False)
    assert ran.exists()


def test_weights_of_a_model(ran: Path, model: Path) -> None:
    patched = AutoModelForSequenceClassification.from_pretrained(model)
    patch_model(patched, "sparsemax").save_pretrained(model)
    (model / "model.safetensors").unlink()
    torch.save({"weight": Attack(ran)}, model / "pytorch_model.bin")
    with pytest.raises(UnpicklingError):
        load_pretrained(AutoModelForSequenceClassification, model)
    with pytest.raises(ValueError, match=r"pytorch_model\.bin is broken or names code"):
        load_model(str(model), TASKS["RTE"])
    with pytest.raises(UnpicklingError):
        text_model(TextConfig("folder", str(model), dataset="d", data_dir="d"), MethodConfig(), 2)
    assert not ran.exists()


@pytest.fixture(scope="module")
def cut_off(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A folder with a fine-tuning run that was cut off in its second epoch, and its command."""
    folder = tmp_path_factory.mktemp("glue")
    write_task(folder, "RTE", train=8, dev=2)
    model = tiny_bert(folder / "model")
    command = ["train", "--task", "RTE", "--model", str(model), "--data_dir", str(folder)]
    command += ["--train.epochs", "2", "--train.max_length", "32"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("glue.train.remove_checkpoints", lambda folder: None)
        glue.main([*command, "--output_dir", str(folder / "run")])
    (folder / "run/results.json").unlink()
    shutil.rmtree(folder / "run/checkpoint-2")
    return folder / "run", command


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth"])
def test_checkpoint_of_fine_tuning(
    name: str, ran: Path, cut_off: tuple[Path, list[str]], tmp_path: Path
) -> None:
    folder, command = cut_off
    shutil.copytree(folder, tmp_path / "run")
    for file in (name, "training_args.bin"):
        torch.save({"state": Attack(ran)}, tmp_path / "run/checkpoint-1" / file)
    with pytest.raises(UnpicklingError):
        glue.main([*command, "--output_dir", str(tmp_path / "run"), "--resume"])
    assert not (tmp_path / "run/results.json").exists()
    assert not ran.exists()


def test_checkpoint_of_fitting(ran: Path, tmp_path: Path) -> None:
    layer = nn.Linear(1, 1)
    torch.save({"model": Attack(ran)}, tmp_path / "checkpoint")
    with pytest.raises(ValueError, match="checkpoint"):
        fit(
            layer,
            torch.optim.SGD(layer.parameters(), 0.1),
            lambda epoch: {"loss": 0.0},
            lambda: {"score": 0.0},
            epochs=1,
            checkpoint=tmp_path / "checkpoint",
        )
    assert not ran.exists()


def test_checkpoint_and_weights_of_language_modeling(ran: Path, tmp_path: Path) -> None:
    for split in ("train", "valid", "test"):
        (tmp_path / f"ptb.{split}.txt").write_text("a b c d e\n" * 8)
    output = tmp_path / "run"
    command = ["train", "--output_dir", str(output), "--corpus.data_dir", str(tmp_path)]
    command += ["--model.embedding", "2", "--model.hidden", "2", "--train.batch", "2"]
    command += ["--train.epochs", "1", "--device", "cpu"]
    language_modeling.main(command)
    torch.save({"weight": Attack(ran)}, output / "model.pt")
    with pytest.raises(UnpicklingError):
        language_modeling.main(["measure", str(output)])
    record = json.loads((output / "results.json").read_text())
    (output / "results.json").write_text(json.dumps({**record, "status": "running"}))
    torch.save({"weight": Attack(ran)}, output / "checkpoint.pt")
    with pytest.raises(UnpicklingError):
        language_modeling.main([*command, "--resume"])
    assert not ran.exists()


def test_weights_of_torchvision(ran: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def get_state_dict(check_hash: bool, weights_only: bool) -> Any:
        return torch.load(tmp_path / "weights", weights_only=weights_only)

    models = SimpleNamespace(
        list_models=lambda *_: ["resnet18"],
        get_model=lambda name, weights: nn.ModuleDict({"fc": nn.Linear(2, 3)}),
        get_model_weights=lambda name: {WEIGHTS: SimpleNamespace(get_state_dict=get_state_dict)},
    )
    monkeypatch.setitem(sys.modules, "torchvision", SimpleNamespace(models=models))
    torch.save({"fc.weight": Attack(ran)}, tmp_path / "weights")
    with pytest.raises(ValueError, match="not a state dict of this network"):
        resnet(f"{TORCHVISION}resnet18", str(tmp_path / "weights"))
    with pytest.raises(UnpicklingError):
        resnet(f"{TORCHVISION}resnet18")
    assert not ran.exists()
