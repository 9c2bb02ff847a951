"""Configs, weights, checkpoints and folders of models and data that bring code run none of it."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
)

from experiments.bottleneck import __main__ as bottleneck
from experiments.images import __main__ as images
from experiments.language_modeling import __main__ as language_modeling
from experiments.length import __main__ as length
from experiments.multilabel import __main__ as multilabel
from experiments.multilabel.models import pretrained
from glue import __main__ as glue
from glue.model import load_model, load_tokenizer
from sparse_attn import __main__ as sparse_attn
from sparse_attn import load_pretrained, patch_model
from sparse_attn.engine.fitting import fit
from sparse_attn.evaluation.tasks import TASKS, get_task
from sparse_attn.system.hub import load_from_hub
from tests.comparison.running import text_file
from tests.conversion.command.running import converted
from tests.glue.make_glue import write_task
from tests.glue.running import parsed
from tests.letters import letter_tokenizer


@pytest.fixture
def ran(tmp_path: Path) -> Iterator[Path]:
    """A file that would be there if something had run."""
    yield tmp_path / "ran"
    assert not (tmp_path / "ran").exists()


def tiny_bert(folder: Path) -> Path:
    """A BERT that reads letters: weights and tokenizer in a folder."""
    letter_tokenizer().save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(letter_tokenizer()),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
    )
    BertForSequenceClassification(config).save_pretrained(folder)
    return folder


COMMANDS: dict[str, tuple[Callable[[list[str]], None], str]] = {
    "glue train": (glue.main, "train"),
    "glue sweep": (glue.main, "sweep"),
    "images train": (images.main, "train"),
    "images sweep": (images.main, "sweep"),
    "multilabel train": (multilabel.main, "train"),
    "multilabel sweep": (multilabel.main, "sweep"),
    "language_modeling train": (language_modeling.main, "train"),
    "language_modeling sweep": (language_modeling.main, "sweep"),
    "bottleneck train": (bottleneck.main, "train"),
    "bottleneck sweep": (bottleneck.main, "sweep"),
    "length train": (length.main, "train"),
    "length sweep": (length.main, "sweep"),
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


def test_optional_sections_are_classes_of_ours() -> None:
    command = ["train", "--task", "RTE", "--model", "m", "--output_dir", "o"]
    command += ["--mapping.name", "r-softmax", "--mapping.params.r", "0.5"]
    command += ["--mapping.schedule.parameter", "r", "--mapping.schedule.initial", "0.1"]
    assert parsed(command).mapping.schedule.initial == 0.1


def test_yaml_of_a_task(ran: Path, tmp_path: Path) -> None:
    task = tmp_path / "task.yaml"
    task.write_text(f"text: !!python/object/apply:os.mkdir [{ran}]\n")
    with pytest.raises(ValueError, match="could not determine a constructor for the tag"):
        get_task(task)


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


LOADERS: dict[str, Callable[[Path], Any]] = {
    "load_pretrained": lambda f: load_pretrained(AutoModelForSequenceClassification, f),
    "glue": lambda f: load_model(str(f), TASKS["RTE"]),
    "backbone": lambda f: pretrained(str(f)),
    "tokenizer": lambda f: load_tokenizer(str(f)),
}


@pytest.mark.parametrize("loader", LOADERS)
def test_code_of_a_model(loader: str, ran: Path, hostile: Path) -> None:
    with pytest.raises(ValueError, match="trust_remote_code"):
        LOADERS[loader](hostile)


def test_code_of_a_model_whose_kind_is_known_is_left_alone(ran: Path, hostile: Path) -> None:
    change(hostile / "config.json", model_type="bert")
    model = load_model(str(hostile), TASKS["RTE"])
    assert type(model).__name__ == "BertForSequenceClassification"
    patch_model(model, "sparsemax").save_pretrained(hostile / "patched")
    auto_map = {"AutoModelForSequenceClassification": "code.Hostile", "AutoConfig": "code.Hostile"}
    change(hostile / "patched/config.json", auto_map=auto_map)
    shutil.copy(hostile / "code.py", hostile / "patched")
    load_pretrained(AutoModelForSequenceClassification, hostile / "patched")


def test_the_inspect_command_runs_code_if_told_to(
    ran: Path, hostile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["inspect", str(hostile), "a b", "--output", str(tmp_path / "page.html")]
    with pytest.raises(SystemExit):
        sparse_attn.main(command)
    assert "is not run by default" in capsys.readouterr().err
    assert not ran.exists()
    with pytest.raises((SystemExit, AttributeError)):  # the code holds no class
        sparse_attn.main([*command, "--trust_remote_code"])
    assert ran.exists()
    ran.rmdir()


def test_code_of_a_data_set(ran: Path, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "data.py").write_text(f"import os\nos.mkdir({str(ran)!r})\n")
    with pytest.raises(ConnectionError, match="scripts are no longer supported"):
        load_from_hub(str(folder), split="train", what="it", instead="give another")


class Attack:
    """Unpickled it makes a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return Path.touch, (self.file,)


def test_the_attack_works(ran: Path, tmp_path: Path) -> None:
    torch.save({"weight": Attack(ran)}, tmp_path / "weights")
    torch.load(tmp_path / "weights", weights_only=False)
    assert ran.exists()
    ran.unlink()


def test_weights_of_a_model(ran: Path, tmp_path: Path) -> None:
    model = tiny_bert(tmp_path / "model")
    patched = AutoModelForSequenceClassification.from_pretrained(model)
    patch_model(patched, "sparsemax").save_pretrained(model)
    (model / "model.safetensors").unlink()
    torch.save({"weight": Attack(ran)}, model / "pytorch_model.bin")
    with pytest.raises(UnpicklingError):
        load_pretrained(AutoModelForSequenceClassification, model)
    with pytest.raises(ValueError, match="pickled weights are corrupt or name code"):
        load_model(str(model), TASKS["RTE"], "saved")
    with pytest.raises(ValueError, match="pickled weights are corrupt or name code"):
        pretrained(str(model))


def inspected(model: Path, folder: Path) -> None:
    sparse_attn.main(["inspect", str(model), "a film"])


def compared(model: Path, folder: Path) -> None:
    sparse_attn.main(["compare", str(model), "--texts", str(text_file(folder, ["a film"] * 20))])


@pytest.mark.parametrize("command", [inspected, compared, lambda m, f: converted(m, f / "out")])
def test_commands_do_not_advise_to_unpickle_code(
    command: Callable[[Path, Path], None],
    ran: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = tiny_bert(tmp_path / "model")
    (model / "model.safetensors").unlink()
    torch.save({"weight": Attack(ran)}, model / "pytorch_model.bin")
    with pytest.raises((SystemExit, ValueError)) as raised:
        command(model, tmp_path)
    told = capsys.readouterr().err + str(raised.value)
    assert "its pickled weights are corrupt or name code, which is not run" in told
    assert "weights_only" not in told


@pytest.fixture(scope="module")
def cut_off(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A folder with a fine-tuning run that was cut off in its second epoch, and its command."""
    folder = tmp_path_factory.mktemp("glue")
    write_task(folder, "RTE", train=8, dev=2)
    model = tiny_bert(folder / "model")
    command = ["train", "--task", "RTE", "--model", str(model), "--data_dir", str(folder)]
    command += ["--train.epochs", "2", "--train.max_length", "32"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sparse_attn.hf.checkpoints.remove_checkpoints", lambda folder: None)
        glue.main([*command, "--output_dir", str(folder / "run")])
    (folder / "run/results.json").unlink()
    shutil.rmtree(folder / "run/checkpoint-2")
    return folder / "run", command


@pytest.mark.slow
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


def test_checkpoint_of_language_modeling(ran: Path, tmp_path: Path) -> None:
    for split in ("train", "valid", "test"):
        (tmp_path / f"ptb.{split}.txt").write_text("a b c d e\n" * 8)
    output = tmp_path / "run"
    command = ["train", "--output_dir", str(output), "--corpus.data_dir", str(tmp_path)]
    command += ["--model.embedding", "2", "--model.hidden", "2", "--train.batch", "2"]
    command += ["--train.epochs", "1", "--device", "cpu"]
    language_modeling.main(command)
    (output / "results.json").unlink()
    torch.save({"weight": Attack(ran)}, output / "checkpoint.pt")
    with pytest.raises(ValueError, match="checkpoint"):
        language_modeling.main([*command, "--resume"])
