"""Work that is killed, or whose disk is full, goes on and comes to the same bits."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import TrainerCallback, TrainerState

from glue.__main__ import EXPERIMENT, main
from sparse_attn.engine.sweep import run as sweep_run
from tests import commands
from tests.engine.sweep.inline import Inline, full_disk
from tests.glue.running import Asked, prepared, trained

# a parameter that is learned for each head, and another that is scheduled
MAPPING = {
    "name": "mixed-t-softmax",
    "params": '{"t": 2.0, "mix": 1.0}',
    "learn": "[t]",
    "per": "head",
    "schedule.parameter": "mix",
    "schedule.initial": "0.0",
}
OPTIONS = [word for name, value in MAPPING.items() for word in (f"--mapping.{name}", value)]
# what must not depend on kills; times may
KEPT = ("metrics", "per_epoch", "sparsity", "predictions", "steps")


class Steps(TrainerCallback):
    """The number of steps that were done before the first of a training."""

    first: int | None = None

    def on_step_begin(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        self.first = state.global_step if self.first is None else self.first


def kill(pattern: str, given: list[str]) -> None:
    """Run `glue` until it writes a file whose path matches."""
    done = commands.run("-m", "tests.trust.killed", pattern, "glue.__main__", *given)
    assert done.returncode == -signal.SIGKILL, done.stderr


def files(folder: Path) -> set[str]:
    """Names of the files of a run, without TensorBoard's."""
    names = {str(path.relative_to(folder)) for path in folder.rglob("*")}
    return {name for name in names if not name.startswith("runs/")}


@pytest.fixture(scope="module")
def whole(asked: Asked, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """An undisturbed run with dropout, and its results."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    return folder, trained(prepared(asked(folder, *OPTIONS)))


def assert_same(folder: Path, results: dict[str, Any], whole: tuple[Path, dict[str, Any]]) -> None:
    assert {name: results[name] for name in KEPT} == {name: whole[1][name] for name in KEPT}
    ours, theirs = (load_file(run / "model/model.safetensors") for run in (folder, whole[0]))
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []
    assert files(folder) == files(whole[0])
    assert not list(folder.glob("checkpoint-*"))


@pytest.mark.slow
def test_a_training_killed_within_a_checkpoint(
    whole: tuple[Path, dict[str, Any]], asked: Asked, tmp_path: Path
) -> None:
    given = asked(tmp_path, *OPTIONS)
    kill(r"checkpoint-6/trainer_state\.json", given)
    assert not (tmp_path / "results.json").exists()
    run, steps = prepared([*given, "--resume"]), Steps()
    run.trainer.add_callback(steps)
    resumed = trained(run)
    assert resumed["resumed_from_step"] == steps.first == 3
    assert_same(tmp_path, resumed, whole)


@pytest.mark.parametrize("size", [100, 8_000, 40_000])
def test_a_training_on_a_full_disk(
    size: int,
    whole: tuple[Path, dict[str, Any]],
    asked: Asked,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One that has no room for its config, its weights, or the state of its optimizer."""
    folder = tmp_path / "run"
    given = asked(folder, *OPTIONS)
    with full_disk(size), pytest.raises(SystemExit, match=r"^1$"):
        main(given)
    said = capsys.readouterr().err
    words = r".*: could not be written \(.*freeing disk space, and repeat the com"
    assert re.search(f"error: {re.escape(str(folder))}{words}", said), said
    assert "Traceback" not in said
    resume = ["--resume"] if (folder / "config.json").exists() else []
    assert_same(folder, trained(prepared([*given, *resume])), whole)


def sweep(folder: Path, model: Path, data: Path) -> list[str]:
    """The command line of a trial and a seed, with its config in a file."""
    content = {
        **{"model": str(model), "data_dir": str(data), "output_dir": str(folder)},
        **{"tasks": {"RTE": None}, "mappings": {"softmax": {"name": "softmax"}}},
        **{"learning_rates": [1e-3], "trials": 1, "seeds": 1},
        "train": {"epochs": 1, "batch_size": 8},
    }
    file = folder.with_suffix(".yaml")
    file.write_text(yaml.safe_dump(content))
    return ["sweep", "--config", str(file)]


def outcomes(folder: Path) -> dict[str, Any]:
    """What the runs have come to, by their stages."""
    done = {r.stage: r.results for r in EXPERIMENT.read(folder).records if r.results}
    return {stage: {name: results[name] for name in KEPT} for stage, results in done.items()}


@pytest.mark.slow
def test_a_sweep_killed_within_a_record(
    tiny_model: Path, glue_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep_run, "make_pool", Inline)
    main(sweep(tmp_path / "whole", tiny_model, glue_folder))
    folder = tmp_path / "killed"
    given = sweep(folder, tiny_model, glue_folder)
    kill(r"final0[^/]*/results\.json", given)
    assert outcomes(folder).keys() == {"trial"}
    main(given)
    assert Inline.order == ["RTE.softmax.final0"]
    assert outcomes(folder) == outcomes(tmp_path / "whole")
    assert not list(folder.rglob("*.tmp"))
