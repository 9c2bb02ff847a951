"""YAML files and folders of models and data that bring code are read without running it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForSequenceClassification

from experiments.bottleneck import __main__ as bottleneck
from experiments.images import __main__ as images
from experiments.language_modeling import __main__ as language_modeling
from experiments.multilabel import __main__ as multilabel
from experiments.multilabel.backbones import resnet
from experiments.multilabel.config import MethodConfig
from experiments.multilabel.data.config import TextConfig
from experiments.multilabel.data.hub import read_hub
from experiments.multilabel.data.text import load_tokenizer
from experiments.multilabel.models import text_model
from glue import __main__ as glue
from glue.model import load_model
from glue.tasks import TASKS, get_task
from sparse_attn import __main__ as sparse_attn
from sparse_attn import load_pretrained, patch_model
from tests.experiments.multilabel.tiny import tiny_bert


@pytest.fixture
def ran(tmp_path: Path) -> Path:
    """A file that is there once something has run that should not."""
    return tmp_path / "ran"


COMMANDS: dict[str, tuple[Callable[[list[str]], None], str]] = {
    "glue train": (glue.main, "train"),
    "glue sweep": (glue.main, "sweep"),
    "images train": (images.main, "train"),
    "images sweep": (images.main, "sweep"),
    "multilabel train": (multilabel.main, "train"),
    "multilabel sweep": (multilabel.main, "sweep"),
    "language_modeling train": (language_modeling.main, "train"),
    "bottleneck run": (bottleneck.main, "run"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_yaml_of_a_config(
    command: str, ran: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main, stage = COMMANDS[command]
    config = tmp_path / "config.yaml"
    config.write_text(f"output_dir: !!python/object/apply:os.mkdir [{ran}]\n")
    with pytest.raises(SystemExit):
        main([stage, "--config", str(config)])
    assert "could not determine a constructor for the tag" in capsys.readouterr().err
    assert not ran.exists()


def test_yaml_of_an_option_and_classes_by_path(
    ran: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hostile.py").write_text(f"import os\nos.mkdir({str(ran)!r})\n")
    monkeypatch.syspath_prepend(tmp_path)
    config = tmp_path / "config.yaml"
    config.write_text("mapping: {class_path: hostile.Mapping}\n")
    for option, value in (
        ("--mapping.params", f"!!python/object/apply:os.mkdir [{ran}]"),
        ("--mapping", "hostile.Mapping"),
        ("--mapping", "{class_path: hostile.Mapping}"),
        ("--mapping.schedule", "{class_path: hostile.Schedule}"),
        ("--config", str(config)),
    ):
        command = ["train", "--task", "RTE", "--model", "m", "--output_dir", "o"]
        with pytest.raises(SystemExit):
            glue.main([*command, option, value])
    assert not ran.exists()


def test_optional_sections_are_classes_of_ours() -> None:
    command = ["train", "--task", "RTE", "--model", "m", "--output_dir", "o"]
    command += ["--mapping.name", "r-softmax", "--mapping.params.r", "0.5"]
    command += ["--mapping.schedule.parameter", "r", "--mapping.schedule.initial", "0.1"]
    assert glue.PROGRAM.parse(command).mapping.schedule.initial == 0.1


def test_yaml_of_a_task(ran: Path, tmp_path: Path) -> None:
    task = tmp_path / "task.yaml"
    task.write_text(f"text: !!python/object/apply:os.mkdir [{ran}]\n")
    with pytest.raises(ValueError, match="could not determine a constructor for the tag"):
        get_task(task)
    assert not ran.exists()


@pytest.fixture
def hostile(ran: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model of a kind that nobody knows, with the code for it."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "c"))
    folder = tiny_bert(tmp_path / "hostile")
    (folder / "code.py").write_text(f"import os\nos.mkdir({str(ran)!r})\n")
    classes = ("AutoModel", "AutoModelForSequenceClassification", "AutoConfig")
    auto_map = dict.fromkeys(classes, "code.Hostile")
    change(folder / "config.json", model_type="hostile", auto_map=auto_map)
    tokenizer = {"AutoTokenizer": ["code.Hostile", None]}
    change(folder / "tokenizer_config.json", tokenizer_class="Hostile", auto_map=tokenizer)
    return folder


def change(file: Path, **entries: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **entries}))


def text(folder: Path) -> TextConfig:
    return TextConfig("folder", str(folder), dataset="d", data_dir="d")


LOADERS: dict[str, Callable[[Path], Any]] = {
    "load_pretrained": lambda f: load_pretrained(AutoModelForSequenceClassification, f),
    "glue": lambda f: load_model(str(f), TASKS["RTE"]),
    "backbone": lambda f: resnet(str(f)),
    "text model": lambda f: text_model(text(f), MethodConfig(), 2),
    "tokenizer": lambda f: load_tokenizer(text(f)),
}


@pytest.mark.parametrize("loader", LOADERS)
def test_code_of_a_model(loader: str, ran: Path, hostile: Path) -> None:
    with pytest.raises(ValueError, match="trust_remote_code"):
        LOADERS[loader](hostile)
    assert not ran.exists()


def test_code_of_a_model_whose_kind_is_known_is_left_alone(ran: Path, hostile: Path) -> None:
    change(hostile / "config.json", model_type="bert")
    model = load_model(str(hostile), TASKS["RTE"])
    assert type(model).__name__ == "BertForSequenceClassification"
    patch_model(model, "sparsemax").save_pretrained(hostile / "patched")
    auto_map = {"AutoModelForSequenceClassification": "code.Hostile", "AutoConfig": "code.Hostile"}
    change(hostile / "patched/config.json", auto_map=auto_map)
    shutil.copy(hostile / "code.py", hostile / "patched")
    load_pretrained(AutoModelForSequenceClassification, hostile / "patched")
    assert not ran.exists()


def test_the_inspect_command_runs_code_if_told_to(
    ran: Path, hostile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["inspect", str(hostile), "a b", "--output", str(tmp_path / "page.html")]
    with pytest.raises(SystemExit):
        sparse_attn.main(command)
    assert "does not run unasked" in capsys.readouterr().err
    assert not ran.exists()
    with pytest.raises((SystemExit, AttributeError)):  # the code holds no class
        sparse_attn.main([*command, "--trust-remote-code"])
    assert ran.exists()


def test_code_of_a_data_set(ran: Path, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "data.py").write_text(f"import os\nos.mkdir({str(ran)!r})\n")
    with pytest.raises(ConnectionError, match="scripts are no longer supported"):
        read_hub(str(folder), {"train": "train"}, ["text"], "labels")
    assert not ran.exists()
