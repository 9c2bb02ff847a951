"""The command line end to end: runs, resume, bad input, report."""

import json
import re
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.bottleneck import run as runner
from experiments.bottleneck.__main__ import main, parse
from experiments.bottleneck.config import SEARCH_SEED, BottleneckConfig, Cell, PackConfig
from experiments.bottleneck.records import pack, read_records
from experiments.bottleneck.run import best_rate, run

ROOT = Path(__file__).parents[3]


def records_of(folder: Path) -> dict[str, dict[str, Any]]:
    return {path.name: json.loads(path.read_text()) for path in folder.glob("*.json")}


def untimed(records: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {name: {**record, "seconds": 0} for name, record in records.items()}


def test_command_line_end_to_end(
    yaml_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["run", "--config", str(yaml_file)])
    assert "16 finished" in capsys.readouterr().out
    records = records_of(tmp_path / "records")
    assert len(records) == 16
    record = records["alpha0.1-M6-D3-mos-seed1.json"]
    assert record["config"]["options"] == {"components": 2}
    assert record["stage"] == "final"
    assert record["device"].endswith("1 threads")
    assert record["versions"]["torch"] == version("torch")
    assert str(tmp_path) not in json.dumps(records)
    searches = [r for r in records.values() if r["stage"] == "search"]
    assert len(searches) == 8
    assert {r["config"]["seed"] for r in searches} == {SEARCH_SEED}

    main(["report", str(tmp_path / "records")])
    page = (tmp_path / "records/report.md").read_text()
    assert "records/report.md\n" in capsys.readouterr().out
    found = [records[f"alpha0.1-M6-D1-softmax-seed{seed}.json"]["kl"] for seed in (0, 1)]
    mean, sd = sum(found) / 2, abs(found[0] - found[1]) / 2**0.5
    assert f"| 6 | 1 | {mean:.3f} ± {sd:.3f} |" in page
    floors = [records[f"alpha0.1-M6-D3-mos-seed{seed}.json"]["floor"] for seed in (0, 1)]
    assert re.search(rf"\| 6 \| 3 \|.*\| {sum(floors) / 2:.1f} \|", page)
    for name in ("mode-matching", "kl", "log-error"):
        assert f"({name}-alpha0.1.png)" in page
        assert (tmp_path / f"records/{name}-alpha0.1.png").stat().st_size > 10_000


def test_report_is_deterministic_and_reads_packed_records(
    config: BottleneckConfig, tmp_path: Path
) -> None:
    run(config)
    packed = tmp_path / "packed/tiny.jsonl"
    assert pack(PackConfig(config.output_dir, str(packed))) == 16
    for source, out in ((config.output_dir, "a"), (str(packed.parent), "b")):
        main(["report", source, "--output_dir", str(tmp_path / out)])
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert len(names) == 4
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_the_best_rate_of_the_search_is_used(config: BottleneckConfig) -> None:
    records = run(config)
    for record in records:
        if record["stage"] == "final":
            asked = {k: record["config"][k] for k in ("dimension", "head")}
            searched = {
                r["config"]["learning_rate"]: r["kl"]
                for r in records
                if r["stage"] == "search" and asked.items() <= r["config"].items()
            }
            assert record["config"]["learning_rate"] == min(searched, key=searched.__getitem__)


def test_a_diverged_rate_loses() -> None:
    def record(rate: float, kl: float | None) -> dict[str, Any]:
        return {"config": {"learning_rate": rate}, "kl": kl}

    assert best_rate([record(0.1, None), record(0.2, 3.0), record(0.3, 2.0)]) == 0.3
    assert best_rate([record(0.1, None), record(0.2, None)]) == 0.1


def stop_after(count: int) -> Callable[[Cell, torch.device], runner.Record]:
    """`run_cell` that is interrupted when it has run `count` times."""
    calls: list[Cell] = []
    whole = runner.run_cell

    def run_cell(cell: Cell, device: torch.device) -> runner.Record:
        if len(calls) == count:
            raise KeyboardInterrupt
        calls.append(cell)
        return whole(cell, device)

    return run_cell


def test_what_has_a_record_is_not_run_again(
    config: BottleneckConfig, yaml_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(config.output_dir)
    run(config)
    whole = records_of(folder)
    for path in folder.glob("*.json"):
        path.unlink()
    with monkeypatch.context() as patched:
        patched.setattr(runner, "run_cell", stop_after(11))
        with pytest.raises(SystemExit, match="goes on where this was"):
            main(["run", "--config", str(yaml_file)])
    first = records_of(folder)
    assert len(first) == 11
    with monkeypatch.context() as patched:
        # one more would be interrupted
        patched.setattr(runner, "run_cell", stop_after(5))
        main(["run", "--config", str(yaml_file)])
    assert {name: record for name, record in records_of(folder).items() if name in first} == first
    assert untimed(records_of(folder)) == untimed(whole)


def test_records_of_another_config_are_refused(config: BottleneckConfig, yaml_file: Path) -> None:
    run(config)
    with pytest.raises(SystemExit, match=r"another config \(steps: asked 5, there 4\)"):
        main(["run", "--config", str(yaml_file), "--steps", "5"])


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--alphas=[0]", "alphas: 0.* is out of range: expected a finite number above 0"),
        ("--alphas=[-0.1]", "alphas: -0.1 is out of range"),
        ("--alphas=[.nan]", "alphas: nan is out of range"),
        ("--alphas=[]", "alphas=.*: expected one value or several different ones"),
        ("--dimensions=[5,0]", "dimensions: 0 is out of range: expected at least 1"),
        ("--dimensions=[5,5]", "dimensions=.*: expected one value or several different ones"),
        ("--vocabularies=[1]", "vocabularies: 1 is out of range: expected at least 2"),
        ("--contexts=0", "contexts: 0 is out of range"),
        ("--heads={hardmax: {}}", "'hardmax' is unknown; expected one of softmax, sigsoftmax"),
        ("--heads={mos: {components: 0}}", "components=0: expected at least 1"),
        ("--heads={plif: {units: 3}}", "units=3: unknown parameter; plif takes bound, knots"),
        ("--heads={}", "heads: expected at least one"),
        ("--learning_rates=[0]", "learning_rates: 0.* is out of range"),
        ("--steps=0", "steps: 0 is out of range: expected at least 1"),
        ("--batch=0", "batch: 0 is out of range"),
        ("--batch=31", "batch=31: expected at most contexts=30"),
        ("--seeds=0", r"seeds=0: expected a whole number in \[1, 1000\]"),
    ],
)
def test_bad_input(option: str, message: str, yaml_file: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=message):
        main(["run", "--config", str(yaml_file), option])
    assert not (tmp_path / "records").exists()


def test_bad_folders_of_records(config: BottleneckConfig, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(SystemExit, match="holds no record"):
        main(["report", str(tmp_path / "empty")])
    other = tmp_path / "other/results.json"
    other.parent.mkdir()
    other.write_text("{}")
    with pytest.raises(SystemExit, match=r"results.json is no record of this experiment"):
        main(["report", str(other.parent)])
    other.write_text('{"config": ')
    with pytest.raises(SystemExit, match="is not readable"):
        main(["report", str(other.parent)])


def test_records_of_several_budgets_are_refused(config: BottleneckConfig, tmp_path: Path) -> None:
    run(config)
    path = next((tmp_path / "records").glob("*softmax*.json"))
    record = json.loads(path.read_text())
    record["config"]["steps"] = 99
    path.write_text(json.dumps(record))
    with pytest.raises(ValueError, match="several budgets"):
        read_records(config.output_dir)


def test_diverged_runs_are_counted(config: BottleneckConfig, tmp_path: Path) -> None:
    run(config)
    folder = tmp_path / "records"
    gone = {"status": "diverged", "kl": None, "mode_matching": None, "log_error": None}
    names = [f"D1-softmax-seed{seed}" for seed in (0, 1)] + ["D3-mos-seed0"]
    for name in names:
        path = folder / f"alpha0.1-M6-{name}.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **gone}))
    main(["report", str(folder)])
    page = (folder / "report.md").read_text()
    assert "3 diverged, 13 finished" in page
    assert "| 6 | 1 | (2 diverged) |" in page
    rest = json.loads((folder / "alpha0.1-M6-D3-mos-seed1.json").read_text())
    assert f"| {rest['kl']:.3f} (1 diverged) |" in page


@pytest.mark.parametrize("name", ["figures-2-3", "figures-6-8", "small"])
def test_configs_are_read(name: str) -> None:
    config = parse(["run", "--config", str(ROOT / f"configs/bottleneck/{name}.yaml")])
    assert isinstance(config, BottleneckConfig)
    assert list(config.heads) == ["softmax", "sigsoftmax", "mos", "lms", "plif"]
    assert config.steps * config.batch == 50 * config.contexts
    assert config.output_dir == f"runs/bottleneck/{name}"
