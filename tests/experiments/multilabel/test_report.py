"""The page and its figures from records, whole or half done."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from experiments.multilabel.__main__ import EXPERIMENT
from experiments.multilabel.config import MethodConfig, MultilabelSweepConfig, TrainConfig
from experiments.multilabel.data.config import DataConfig, ImageConfig
from experiments.multilabel.plots import plot_curves, series
from sparse_attn.engine.config import ReportConfig, ScheduleConfig
from sparse_attn.engine.sweep.plan import PlannedRun
from sparse_attn.engine.sweep.records import FORMAT, SWEEP_FILE, Record
from sparse_attn.system.files import write_json
from sparse_attn.system.paths import ROOT
from tests.engine.sweep.inline import write_record
from tests.experiments.multilabel.tiny import DATA, METHODS

NAMES = ("softmax", "sparsemax-huber", "r-softmax")
DATA_SETS = {
    "few": replace(DATA, labels=1),
    "half": DATA,
    "short": replace(DATA, length=10),
}


def sweep_config(folder: Path, **changes: Any) -> MultilabelSweepConfig:
    given: dict[str, Any] = {
        "output_dir": str(folder),
        "data": {name: DataConfig(synthetic=data) for name, data in DATA_SETS.items()},
        "methods": {name: METHODS[name] for name in NAMES},
        "learning_rates": [0.01],
        "seeds": 3,
        "train": TrainConfig(epochs=2),
    }
    return MultilabelSweepConfig(**{**given, **changes})


def results_of(run: PlannedRun) -> dict[str, Any]:
    """r-softmax is 2 points above softmax for every seed, sparsemax 1, 0 or -1."""
    seed = run.config.train.seed
    gain = {"softmax": 0.0, "sparsemax-huber": 0.01 * (1 - seed), "r-softmax": 0.02}[run.mapping]
    micro = 0.5 + 0.1 * seed + gain
    return {
        "score": micro,
        "measured_on": "test" if run.task != "short" else "validation",
        "f1": {"micro": micro, "macro": micro - 0.1, "samples": micro - 0.2},
        "micro_by_threshold": {str(t): micro - t for t in run.config.method.thresholds or [0.0]},
        "decided_labels": 2.5,
        "best_epoch": 1,
        "true_labels": 2.0,
        "history": {"loss": [1.0, 0.5], "score": [micro - 0.1, micro]},
        "seconds": 1.5,
        "device": "a machine",
    }


def write_sweep(config: MultilabelSweepConfig, leave_out: int = 0) -> list[Record]:
    """Records of all runs that are due at once, but for the last so many."""
    folder = Path(config.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    content = json.loads(json.dumps(config.content()))
    write_json(folder / SWEEP_FILE, {"format": FORMAT, **content})
    runs = list(EXPERIMENT.plan(config).due({}))
    records = [r.record(status="finished", results=results_of(r)) for r in runs]
    for record in records[: len(records) - leave_out]:
        write_record(folder, record)
    return records


def page_of(folder: Path) -> str:
    """The report on a folder, written there."""
    return EXPERIMENT.report(ReportConfig(str(folder))).path.with_suffix(".md").read_text()


def lines_of(folder: Path) -> dict[tuple[str, str, str], dict[str, str]]:
    """report.csv by measure, task and mapping."""
    with (folder / "report.csv").open(encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    return {(line["measure"].split()[0], line["task"], line["mapping"]): line for line in lines}


def test_means_differences_and_counts(tmp_path: Path) -> None:
    write_sweep(sweep_config(tmp_path))
    page = page_of(tmp_path).replace("\\", "")
    assert "| without a test set | short |" in page
    assert "| half | 60.00 ± 10.00 | 60.00 ± 9.00 | 62.00 ± 10.00 |" in page
    assert "| few | 50.00 ± 10.00 |" in page
    assert "| few | 40.00 ± 10.00 |" in page
    # t(0.975, 2) = 4.3027 times 1 / sqrt(3)
    assert (
        "| half | sparsemax-huber | 3 of 3 | 0 | 0 | 60.00 ± 9.00 | +0.00 | [-2.48, +2.48] |"
        in page
    )
    verdicts = {name: lines_of(tmp_path)["Micro-F1", "half", name]["verdict"] for name in NAMES}
    assert list(verdicts.values()) == ["", "not significant", "better"]
    assert "softmax: micro-F1 in % at each threshold" in page
    assert "| half | 55.00 ± 10.00 |" in page
    assert "| half | softmax | lr 0.01 | 2.50 | 2.00 | 0 | 1.5 |" in page
    for name in ("differences", "labels", "length", "curves"):
        assert f"({name}.png)" in page
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000


@pytest.mark.slow
def test_the_same_records_give_the_same_bytes(tmp_path: Path) -> None:
    write_sweep(sweep_config(tmp_path / "sweep"))
    for out in "ab":
        EXPERIMENT.report(ReportConfig(str(tmp_path / "sweep"), str(tmp_path / out)))
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()


def test_failed_diverged_and_missing_runs_are_counted(tmp_path: Path) -> None:
    records = write_sweep(sweep_config(tmp_path), leave_out=1)
    for record, status in zip(records[:2], ("diverged", "failed"), strict=True):
        assert record.task == "few"
        write_record(tmp_path, replace(record, status=status, results=None, error="why"))
    page = page_of(tmp_path)
    assert "**Incomplete. Runs: 26 of 27. Failed: 1. Diverged: 1.**" in page
    lines = {name: lines_of(tmp_path)["Micro-F1", "few", name] for name in NAMES[:2]}
    counts = [(line["runs"], line["diverged"], line["failed"]) for line in lines.values()]
    assert counts == [("2", "1", "0"), ("2", "0", "1")]
    assert "| few | softmax | grid 0 | diverged | why |" in page
    # of seeds 1 and 2 alone, softmax at 0.6 and 0.7
    assert float(lines["softmax"]["mean"]) == pytest.approx(65)


def test_trials_of_learning_rates_do_not_count(tmp_path: Path) -> None:
    config = sweep_config(tmp_path, learning_rates=[0.01, 0.1], seeds=1)
    trials = {record.hash: record for record in write_sweep(config)}
    for run in EXPERIMENT.plan(config).due(trials):
        results = {**results_of(run), "f1": dict.fromkeys(("micro", "macro", "samples"), 0.25)}
        write_record(tmp_path, run.record(status="finished", results=results))
    page = page_of(tmp_path)
    assert "| half | 25.00 | 25.00 | 25.00 |" in page
    assert "| learning rates | 0.01, 0.1 |" in page
    line = lines_of(tmp_path)["Micro-F1", "half", "softmax"]
    assert (line["settings"], line["runs"]) == ("lr 0.01", "1")


@pytest.mark.slow
def test_a_schedule_comes_back_from_sweep_json(tmp_path: Path) -> None:
    ramped = MethodConfig("r-softmax", {"r": 0.5}, schedule=ScheduleConfig("r", 0.0))
    methods = {"softmax": MethodConfig(), "r-softmax": ramped}
    records = write_sweep(sweep_config(tmp_path, methods=methods))
    assert len(EXPERIMENT.read(tmp_path).records) == len(records) == 18


def test_runs_that_had_not_settled_are_counted(tmp_path: Path) -> None:
    late = {"r-softmax": 3, "sparsemax-huber": 2}  # of nine runs each
    for record in write_sweep(sweep_config(tmp_path)):
        if late.get(record.mapping):
            late[record.mapping] -= 1
            results = {**(record.results or {}), "best_epoch": 2}
            write_record(tmp_path, replace(record, results=results))
    page_of(tmp_path)
    lines = lines_of(tmp_path)
    late = [
        sum(int(lines["Micro-F1", task, name]["not_settled"]) for task in DATA_SETS)
        for name in NAMES
    ]
    assert late == [0, 2, 3]


def test_ours_stand_beside_what_was_published(tmp_path: Path) -> None:
    data = {"half": DataConfig(images=ImageConfig("voc2007", data_dir="somewhere"))}
    write_sweep(sweep_config(tmp_path, data=data))
    page = page_of(tmp_path)
    table = page[page.index("Published") :].split("\n\n")[1]
    assert "| half | softmax, p0 = 0.05 | 75.05 | 55.00 ± 10.00 |" in table
    assert "| half | r-softmax | 77.90 | 62.00 ± 10.00 |" in table
    assert "| half | sparsemax-huber | 66.84 |" in table


def test_one_epoch_is_no_curve(tmp_path: Path) -> None:
    for record in write_sweep(sweep_config(tmp_path)):
        assert record.results
        micro = record.results["f1"]["micro"]
        history = {"loss": [1.0], "score": [micro]}
        write_record(tmp_path, replace(record, results={**record.results, "history": history}))
    page = page_of(tmp_path)
    assert "(labels.png)" in page
    assert "curves.png" not in page


def test_curves_of_runs_that_have_not_finished(tmp_path: Path) -> None:
    for record in write_sweep(sweep_config(tmp_path)):
        if record.task == "half":
            write_record(tmp_path, replace(record, status="failed", results=None, error="why"))
    assert plot_curves(EXPERIMENT.read(tmp_path)) is None


def test_a_sweep_whose_runs_have_all_failed_has_a_page(tmp_path: Path) -> None:
    for record in write_sweep(sweep_config(tmp_path)):
        write_record(tmp_path, replace(record, status="failed", results=None, error="why"))
    page = page_of(tmp_path)
    assert "| half | n/a | n/a | n/a |" in page
    assert "Runs: 27 of 27. Failed: 27. Diverged: 0." in page


def test_axes_of_the_figures(tmp_path: Path) -> None:
    write_sweep(sweep_config(tmp_path))
    results = EXPERIMENT.read(tmp_path)
    assert series(results, "labels") == {4: [(1, "few"), (2, "half")]}
    assert series(results, "length") == {4: [(10, "short"), (100, "half")]}


def test_data_that_lie_on_no_axis_still_give_a_page(tmp_path: Path) -> None:
    write_sweep(sweep_config(tmp_path, data={"few": DataConfig(synthetic=DATA_SETS["few"])}))
    page = page_of(tmp_path)
    assert page.count(".png") == 1  # of the differences
    assert lines_of(tmp_path)["Micro-F1", "few", "softmax"]


def test_a_curve_goes_on_at_the_best_score_of_a_run_that_has_stopped(tmp_path: Path) -> None:
    for record in write_sweep(sweep_config(tmp_path)):
        if record.index == 0 and record.results:
            history = {"loss": [1.0, 0.5, 0.2], "score": [0.5, 0.25, 0.75]}
            results = {**record.results, "history": history}
            write_record(tmp_path, replace(record, results=results))
    results = EXPERIMENT.read(tmp_path)
    others = [run["history"]["score"] for run in results.finished(("half", "softmax"))[1:]]
    mean = 100 * fmean([0.75, *map(max, others)])
    figure = plot_curves(results)
    assert figure is not None
    ends = [line.get_ydata()[2] for line in figure.axes[0].lines if len(line.get_ydata()) == 3]
    assert mean in [pytest.approx(end) for end in ends]


@pytest.mark.parametrize(("study", "runs"), [("synthetic", 675), ("synthetic-rates", 576)])
def test_committed_records_are_read(study: str, runs: int) -> None:
    """The second has methods that this version does not train; both are from when texts were."""
    results = EXPERIMENT.read(ROOT / "results/multilabel" / study)
    assert len(results.records) == runs
