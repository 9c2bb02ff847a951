"""Whole sweeps of tiny models: killed, continued, and given bad input."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from glue.__main__ import EXPERIMENT, main
from glue.plan import make_plan
from sparse_attn.engine.sweep import run as sweep_run
from tests.engine.sweep.inline import Inline


def config(model: Path, data: Path, output: Path) -> dict[str, Any]:
    """2 tasks x 3 mappings x (1 trial + 2 seeds)."""
    return {
        "model": str(model),
        "data_dir": str(data),
        "output_dir": str(output),
        "tasks": {"RTE": None, "STS-B": {"epochs": 1, "train_rows": 16}},
        "learning_rates": [1e-3],
        "trials": 1,
        "seeds": 2,
        "mappings": {
            "softmax": {"name": "softmax"},
            "r-softmax": {
                "name": "r-softmax",
                "params": {"r": [0.3]},
                "schedule": {"parameter": "r", "initial": 0.0},
            },
            "taylor": {
                "name": "mixed-taylor-softmax",
                "schedule": {"parameter": "mix", "initial": 0.0},
            },
        },
        "train": {"epochs": 2, "batch_size": 8},
    }


@pytest.fixture
def given(tiny_model: Path, glue_folder: Path, tmp_path: Path) -> dict[str, Any]:
    return config(tiny_model, glue_folder, tmp_path / "sweep")


def arguments(given: dict[str, Any], *more: str) -> list[str]:
    """The command line, with the config in a file beside the sweep's folder."""
    file = Path(given["output_dir"]).with_suffix(".yaml")
    file.write_text(yaml.safe_dump(given))
    return ["sweep", "--config", str(file), *more]


def test_a_sweep_counts_what_diverged(
    given: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sweep_run, "make_pool", Inline)
    given |= {"learning_rates": [1e30], "tasks": {"RTE": None}}
    main(arguments(given))
    assert "training has diverged" in capsys.readouterr().out
    records = EXPERIMENT.read(Path(given["output_dir"])).records
    assert [record.status for record in records] == ["diverged"] * 3
    assert all("training has diverged" in str(record.error) for record in records)


def test_a_dry_run_tells_what_is_due(
    given: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    main(arguments(given, "--dry_run"))
    runs, *cells = capsys.readouterr().out.splitlines()
    assert runs == "runs: 18 of 18 are due"
    assert "  RTE softmax: 3" in cells
    assert not Path(given["output_dir"]).exists()


def test_a_smoke_run_is_another_run(given: dict[str, Any]) -> None:
    whole, few = (
        next(make_plan(EXPERIMENT.program.parse(arguments({**given, **more}))[1][0]).due({}))
        for more in ({}, {"limit": 12})
    )
    assert "limit" not in whole.record(status="failed").config
    assert whole.hash != few.hash
    assert [len(rows) for rows in EXPERIMENT.assemble(few.config).data.values()] == [11, 1]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"protocol": "unfair"}, "protocol"),
        ({"data_dir": "/nowhere"}, "nowhere"),
        ({"model": "pkg://no_such_package/model"}, "'no_such_package' is not installed"),
        ({"tasks": {"RTE": {"train_rows": 1000}}}, "train_rows=1000: the training set has only 24"),
        ({"selection": 0.01}, "selection=0.01: of 24 training rows this holds out 0"),
        ({"cpus_per_run": 1000}, "cpus_per_run=1000: this machine has"),
        ({"gpus_per_run": 2}, "gpus_per_run=2.0: expected a number"),
        (
            {"mappings": {"softmax": {"name": "softmax"}, "x": {
                "name": "r-softmax", "layers": [7],
                "schedule": {"parameter": "r", "initial": 0.0}}}},
            "mappings.x: .* no layer 7",
        ),
    ],
)  # fmt: skip
def test_bad_input_before_the_first_run(
    change: dict[str, Any], says: str, given: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    given.update(change)
    with pytest.raises(SystemExit) as stop:
        main(arguments(given))
    message = f"{stop.value.code} {capsys.readouterr().err}"  # and bars of what was loaded
    assert "Traceback" not in message
    assert re.search(says, message), message
    assert not list(Path(given["output_dir"]).rglob("*.json"))
