"""The command line end to end: a run, a sweep, its report."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from engine.command import from_dict
from engine.sweep.config import Resources
from engine.sweep.plan import PlannedRun
from engine.sweep.records import Record, read_records, write_record
from experiments.conversion.__main__ import EXPERIMENT, main
from experiments.conversion.config import ConversionSweepConfig
from experiments.conversion.ways import CONTINUED, RANDOM, WAYS
from tests.experiments.conversion.tiny import BUDGET, write

CONFIG = Path(__file__).parents[3] / "configs/conversion/minilm.yaml"


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparse_attn.reports.bootstrap.RESAMPLES", 99)


def sweep(folder: Path, **changes: Any) -> ConversionSweepConfig:
    return ConversionSweepConfig(
        **{**BUDGET, **write(folder), "output_dir": str(folder / "out"), **changes}
    )


def test_one_run_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shared = {**BUDGET, **write(tmp_path), "output_dir": str(tmp_path / "run"), "way": "uniform"}
    main(["train", *(word for name, value in shared.items() for word in (f"--{name}", str(value)))])
    results = json.loads((tmp_path / "run/results.json").read_text())
    out = capsys.readouterr().out
    low, high = results["difference"]["interval"]
    assert f"zeros: {100 * results['zeros']:.1f} %\n" in out
    assert f"[{low:+.2f}, {high:+.2f}] against softmax\n" in out
    assert out.endswith(f"\nresults: {tmp_path}/run/results.json\n")
    assert not list((tmp_path / "run").glob("checkpoint-*"))


@pytest.mark.slow
@pytest.mark.usefixtures("in_this_process")
def test_a_resumed_sweep_has_the_records_of_a_whole_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ways = ["uniform, untrained", CONTINUED]
    content = {**BUDGET, **write(tmp_path), "ways": ways, "seeds": 2}
    file = tmp_path / "sweep.yaml"
    file.write_text(yaml.safe_dump(content))

    def records(folder: Path) -> dict[str, Record]:
        main(["sweep", "--config", str(file), "--output_dir", str(folder)])
        assert "3 finished" in capsys.readouterr().out
        return {
            key: replace(
                record, results={**(record.results or {}), "seconds": 0, "startup_seconds": 0}
            )
            for key, record in read_records(folder).by_hash.items()
        }

    whole = records(tmp_path / "whole")
    assert str(tmp_path) not in json.dumps([record.config for record in whole.values()])
    half = shutil.copytree(tmp_path / "whole", tmp_path / "half")
    for path in sorted((half / "runs").iterdir())[1:]:
        path.unlink()
    assert records(half) == whole
    main(["report", str(half)])
    assert "3 finished of 3" in (half / "report.md").read_text()


def test_the_runs_of_a_sweep(tmp_path: Path) -> None:
    config = sweep(tmp_path, seeds=2)
    plan = EXPERIMENT.plan(config)
    seeds = {way: [run.config.seed for run in runs] for (_, way), runs in plan.first.items()}
    assert seeds == {way: [0, 1] if WAYS[way].healer else [0] for way in WAYS}
    budgets = {
        json.dumps({**run.config.comparable(), "way": "", "seed": 0})
        for runs in plan.first.values()
        for run in runs
    }
    assert len(budgets) == 1
    moved = replace(config, output_dir="elsewhere")
    assert moved.content() == config.content()
    assert (
        from_dict(ConversionSweepConfig, {"output_dir": "", **config.content()}).ways == config.ways
    )


def results(score: float, zeros: float, **more: Any) -> dict[str, Any]:
    """Of a run; its interval is half a point to both sides."""
    return {
        "score": score,
        "softmax": 80.0,
        "difference": {"value": score - 80, "interval": [score - 80.5, score - 79.5]},
        "agreement": 0.9,
        "zeros": zeros,
        "layers": [zeros - 0.1, zeros + 0.1],
        "seconds": 90.0,
        "texts": 1234,
        "rows": 56,
        "device": "a CPU",
        **more,
    }


FOUND = {
    "untrained": [results(78.0, 0.85)],
    "distilled": [results(79.0, 0.84), results(79.4, 0.84, seconds=30.0)],
    "uniform": [results(79.9, 0.8), results(79.9, 0.8)],
    CONTINUED: [results(81.0, 0.0, layers=[0.0, 0.0])],
    RANDOM: [results(60.0, 0.85), None],
    "without ramp": [],
}


def report(folder: Path, found: dict[str, list[Any]]) -> str:
    """Of a sweep with these results, where None has diverged."""
    config = sweep(folder, ways=list(FOUND), seeds=2)
    out = Path(config.output_dir)
    (out / "runs").mkdir(parents=True)
    (out / "sweep.json").write_text(json.dumps({"format": 1, **config.content()}))
    for (_, way), runs in EXPERIMENT.plan(config).first.items():
        for run, outcome in zip(runs, found.get(way, []), strict=False):
            write_record(out, _record(run, outcome))
    main(["report", str(out)])
    return (out / "report.md").read_text()


def _record(run: PlannedRun, outcome: dict[str, Any] | None) -> Record:
    status = "diverged" if outcome is None else "finished"
    return run.record(status=status, results=outcome)


def test_the_report_by_hand(tmp_path: Path) -> None:
    page = report(tmp_path, FOUND)
    rows = [line.replace("\\", "") for line in page.splitlines() if line.startswith("| ")]
    expected = [
        "| softmax | 0.0 | 0.0 | 80.00 | - | - | 1.000 | 0.0 |",
        "| untrained | 85.0 | 95.0 | 78.00 | -2.00 [-2.50, -1.50] | worse | 0.900 | 1.5 |",
        "| distilled | 84.0 | 94.0 | 79.20 ± 0.28 | -0.80 [-3.34, +1.74] | not significant | 0.900 "
        "| 1.0 ± 0.7 |",
        f"| {RANDOM} (1 diverged) | 85.0 | 95.0 | 60.00 | -20.00 [-20.50, -19.50] | worse | 0.900 "
        "| 1.5 |",
        f"| {CONTINUED} | 0.0 | 0.0 | 81.00 | +1.00 [+0.50, +1.50] | better | 0.900 | 1.5 |",
        "| without ramp | n/a | n/a | n/a | n/a | n/a | n/a | n/a |",
        "| distilled | 74.0 | 94.0 |",
        f"| {CONTINUED} | 0.0 | 0.0 |",
        "| texts | 1,234 |",
        "| pairs | 56 |",
    ]
    assert [row for row in expected if row not in rows] == []
    assert "the best way on these pairs flatters its difference" in page
    assert "1 diverged and 7 finished of 11" in page
    assert (tmp_path / "out/quality.png").stat().st_size > 10_000


def test_a_sweep_without_a_sparse_way_has_a_page_without_figures(tmp_path: Path) -> None:
    page = report(tmp_path, {CONTINUED: FOUND[CONTINUED]})
    assert "| untrained | n/a |" in page
    assert "png" not in page


def test_the_config_is_read(tmp_path: Path) -> None:
    files = {name: path for name, path in write(tmp_path).items() if name != "model"}
    given = [word for name, path in files.items() for word in (f"--{name}", path)]
    config, resources = EXPERIMENT.program.parse(["sweep", "--config", str(CONFIG), *given])[1]
    assert isinstance(resources, Resources)
    assert config.ways == list(WAYS)
    assert config.output_dir == "runs/conversion/minilm"
