"""Wrong input: an error that names argument, value and remedy, and nothing written or lost."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from glue.__main__ import main
from sparse_attn.hf.checkpoints import last_complete_checkpoint
from tests.commands import refusal
from tests.glue.running import Asked, prepared, trained
from tests.marks import first

R_SOFTMAX = ("--mapping.name", "r-softmax")
RAMPED = (*R_SOFTMAX, "--mapping.schedule.parameter")


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--mapping.name", "r-sotfmax"], "did you mean r-softmax"),
        ([*R_SOFTMAX, "--mapping.params.r", "1.5"], r"r=1\.5 .*\[0, 1\]"),
        (["--mapping.name", "sparsemax", "--mapping.layers", "[7]"], "has no layer 7"),
        ([*RAMPED, "t", "--mapping.schedule.initial", "1"], "schedule.parameter='t'"),
        ([*RAMPED, "r", "--mapping.schedule.initial", "-1"], "schedule.initial: r=-1"),
        (["--task", "RTEE"], "nearest: RTE"),
        (["--model", "pkg://no_such_package/model"], "'no_such_package' is not installed"),
        (["--data_dir", "/nowhere"], "nowhere"),
        (["--train.max_length", "1000"], "max_length=1000"),
        (["--train.epochs", ".inf"], "epochs=inf"),
        (["--train.batch_size", "0"], "batch_size=0"),
        (["--train.learning_rate", ".nan"], "learning_rate=nan"),
        (["--train.seed", "-1"], "train.seed=-1"),
        (["--resume"], "holds no run to resume"),
    ],
)
def test_message_and_nothing_written(
    more: list[str], says: str, asked: Asked, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = refusal(main, capsys, *asked(tmp_path / "run", *more))
    assert re.search(says, message), message
    assert not (tmp_path / "run").exists()


def test_a_run_that_diverges_is_one_line(
    asked: Asked, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(asked(tmp_path / "run", "--train.learning_rate", "1e30"))
    assert stopped.value.code == 1
    message = capsys.readouterr().err.splitlines()[-1]  # below the lines of training
    assert re.fullmatch("error: RTE: .*diverged; lower train.learning_rate.*", message)
    found = json.loads((tmp_path / "run/results.json").read_text())
    assert found["status"] == "diverged"


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
    ("broken", "step"),
    first(
        ("trainer_state.json", 3),
        ("model.safetensors", 3),
        ("optimizer.pt", 3),
        ("scheduler.pt", 3),
        ("rng_state.pth", 3),
        ("trainer_state.json", 0),
    ),
)
def test_checkpoint_cut_short(
    broken: str,
    step: int,
    finished: tuple[Path, dict[str, Any]],
    asked: Asked,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder = shutil.copytree(finished[0], tmp_path / "run")
    for name in ("checkpoint-6",) if step else ("checkpoint-3", "checkpoint-6"):
        file = folder / name / broken
        content = file.read_bytes()
        file.write_bytes(content[: len(content) // 2])
    assert last_complete_checkpoint(folder) == (folder / f"checkpoint-{step}" if step else None)
    assert f"checkpoint-6 is truncated ({broken}" in caplog.text
    resumed = trained(prepared(asked(folder, "--resume")))
    assert resumed["resumed_from_step"] == step
    assert resumed["metrics"] == finished[1]["metrics"]


def test_model_cut_short(tiny_model: Path, asked: Asked, tmp_path: Path) -> None:
    shutil.copytree(tiny_model, tmp_path / "model")
    weights = tmp_path / "model/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ValueError, match="weights are truncated"):
        prepared(asked(tmp_path / "run", "--model", tmp_path / "model"))
    assert not (tmp_path / "run").exists()
