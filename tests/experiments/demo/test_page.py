"""The demo's tables, plot and page, and what the committed records say."""

import json
from pathlib import Path

import pytest

from experiments.demo import reading
from experiments.demo.page import forgetting, make_page, retrieval_table, training_table
from experiments.demo.retrieval import settings
from sparse_attn.comparison.measure import CONTROL
from sparse_attn.mappings.syntax import describe
from sparse_attn.system.files import differences
from tests.commands import ROOT
from tests.glue.running import parsed

RECORDS = ROOT / "results/demo"
RUNS = [json.loads(line) for line in (RECORDS / "training.jsonl").read_text().splitlines()]
ROWS = {
    "softmax": [(0.0, 0.95)],
    "r-softmax": [(0.5, 0.9), (0.87, 0.75)],
    CONTROL: [(0.5, 0.7), (0.87, 0.04)],
    "entmax": [(0.7, 0.85)],
    "sparsemax": [(0.85, 0.8)],
}
RECORD = {
    "questions": 200,
    "candidates": 400,
    "rows": [
        {
            "mapping": mapping,
            "setting": mapping,
            "zeros": zeros,
            "right": right,
            "difference": right - 0.95,
            "interval": [right - 0.97, right - 0.93] if zeros else [0.0, 0.0],
        }
        for mapping, points in ROWS.items()
        for zeros, right in points
    ],
}


def test_retrieval_table() -> None:
    rows = retrieval_table(RECORD).rows
    assert rows[0] == ["softmax", "0.0%", "95.0%", "-", "-"]
    assert rows[1] == ["r-softmax", "50.0%", "90.0%", "-5.0 [-7.0, -3.0]", "worse"]
    assert len(rows) == 7


def test_plot_has_every_setting() -> None:
    (axes,) = forgetting(RECORD).axes
    drawn = {line.get_label(): len(line.get_xdata()) for line in axes.lines}
    assert drawn == {"r-softmax": 3, CONTROL: 3, "entmax": 1, "sparsemax": 1, "softmax": 1}


def test_page(tmp_path: Path) -> None:
    report = make_page(RECORD, RUNS[:2]).write(tmp_path)
    assert report.path.read_text().count("<table") == 2
    assert (tmp_path / "forgetting.png").read_bytes().startswith(b"\x89PNG")


def test_page_with_a_language_model(tmp_path: Path) -> None:
    record = json.loads((ROOT / "results/compare/smollm2-wikitext-4096.json").read_text())
    report = make_page(RECORD, RUNS[:2], record).write(tmp_path)
    assert report.path.read_text().count("<table") == 3


def test_without_the_language_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MODEL", "not_installed")
    assert reading.read(tmp_path) is None


def test_training_table() -> None:
    rows = training_table([RUNS[0], RUNS[-1]]).rows
    assert [row[0] for row in rows] == ["softmax", "r-softmax, r 0 to 0.15"]
    assert [row[-3] for row in rows] == [f"{run['score']:.1%}" for run in (RUNS[0], RUNS[-1])]


def test_record_of_retrieval_has_every_setting() -> None:
    record = json.loads((RECORDS / "retrieval.json").read_text())
    assert [row["setting"] for row in record["rows"]] == [*map(describe, settings())]


@pytest.mark.parametrize("mapping", ["softmax", "r-softmax"])
def test_seeds_agree(mapping: str) -> None:
    runs = [run for run in RUNS if run["mapping"] == mapping]
    scores = [run["score"] for run in runs]
    assert [run["seed"] for run in runs] == [0, 1, 2]
    assert min(scores) > 0.95
    assert max(scores) - min(scores) < 0.02


@pytest.mark.parametrize("run", RUNS, ids=lambda run: f"{run['mapping']}-{run['seed']}")
def test_runs_are_of_the_shipped_configs(run: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    arguments = ["train", "--config", "configs/glue/demo.yaml"]
    arguments += ["--config", f"configs/mapping/{run['mapping']}.yaml"]
    config = parsed([*arguments, "--train.seed", str(run["seed"])])
    recorded = {"train": run["config"]["train"], "mapping": run["config"]["mapping"]}
    asked = json.loads(json.dumps(config.comparable()))
    assert not differences({key: asked[key] for key in recorded}, recorded)
