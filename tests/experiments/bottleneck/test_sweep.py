"""The command line end to end: a run, a sweep, its report."""

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

from experiments.bottleneck.__main__ import EXPERIMENT, main
from experiments.bottleneck.config import BottleneckSweepConfig
from experiments.bottleneck.heads import HEADS
from sparse_attn.engine.sweep.config import FIRST_TRIAL_SEED, Resources
from sparse_attn.engine.sweep.records import Record
from tests.engine.sweep.inline import write_record
from tests.experiments.bottleneck.tiny import TINY, sweep

CONFIGS = Path(__file__).parents[3] / "configs/bottleneck"
pytestmark = pytest.mark.usefixtures("in_this_process")


def page_of(config: BottleneckSweepConfig, changes: Iterable[Record] = ()) -> str:
    """The report on a sweep, some records of which have come out otherwise."""
    for record in changes:
        write_record(Path(config.output_dir), record)
    main(["report", config.output_dir])
    return (Path(config.output_dir) / "report.md").read_text()


def test_a_sweep_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, file = tmp_path / "records", tmp_path / "tiny.yaml"
    file.write_text(yaml.safe_dump({**TINY, "output_dir": str(folder)}))
    main(["sweep", "--config", str(file)])
    assert "16/16" in capsys.readouterr().err
    records = EXPERIMENT.read(folder).records
    cell = [r for r in records if (r.task, r.mapping) == ("alpha0.1-M6-D3", "mos")]
    assert all(record.config["options"] == {"components": 2} for record in cell)
    assert {record.config["seed"] for record in cell if record.stage == "trial"} == {
        FIRST_TRIAL_SEED
    }
    results = cell[0].results or {}
    assert results["device"].endswith("1 threads")
    assert results["versions"]["torch"] == version("torch")
    assert str(tmp_path) not in json.dumps([record.config for record in cell])


def test_one_run_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = "--head mos --options.components 2 --contexts 30 --steps 4 --batch 10 --vocabulary 6"
    main(["train", "--output_dir", str(tmp_path / "run"), *given.split(), "--device", "cpu"])
    results = json.loads((tmp_path / "run/results.json").read_text())
    out = capsys.readouterr().out
    assert f"mean KL: {results['kl']:.3f} nats" in out
    assert out.endswith(f"\nresults: {tmp_path}/run/results.json\n")
    assert results["config"]["options"] == {"components": 2}


def test_the_report_is_of_the_runs_that_count(tmp_path: Path) -> None:
    config = sweep(output_dir=str(tmp_path))
    EXPERIMENT.search(config, Resources())
    records = EXPERIMENT.read(tmp_path).records
    page = page_of(config)

    def values(head: str, dimension: int, key: str) -> list[float]:
        cell = (f"alpha0.1-M6-D{dimension}", head, "final")
        runs = [r for r in records if (r.task, r.mapping, r.stage) == cell]
        return [run.results[key] for run in runs if run.results]

    found = values("softmax", 1, "kl")
    mean, sd = sum(found) / 2, abs(found[0] - found[1]) / 2**0.5
    assert f"| alpha0.1-M6-D1 | {mean:.3f} ± {sd:.3f} |" in page
    floors = values("mos", 3, "floor")
    assert re.search(rf"\| alpha0.1-M6-D3 \| mos \| lr .*\| {sum(floors) / 2:.1f} \|", page)
    assert "| mos | components 2 |" in page
    figures = [tmp_path / "differences.png", tmp_path / "measures-alpha0.1.png"]
    assert all(f"({figure.name})" in page for figure in figures)
    first = [figure.read_bytes() for figure in figures]
    assert min(map(len, first)) > 10_000
    assert page_of(config) == page
    assert [figure.read_bytes() for figure in figures] == first


def test_diverged_runs_are_counted(tmp_path: Path) -> None:
    config = sweep(output_dir=str(tmp_path))
    EXPERIMENT.search(config, Resources())
    records = EXPERIMENT.read(tmp_path).records
    finals = [record for record in records if record.stage == "final"]
    gone = [r for r in finals if (r.task, r.mapping) == ("alpha0.1-M6-D1", "softmax")]
    mos = [r for r in finals if (r.task, r.mapping) == ("alpha0.1-M6-D3", "mos")]
    diverged = [replace(r, status="diverged", results=None) for r in (*gone, mos[0])]
    page = page_of(config, diverged)
    assert "Runs: 16 of 16. Failed: 0. Diverged: 3." in page
    assert "| alpha0.1-M6-D1 | softmax | 0 of 2 | 0 | 2 | n/a |" in page
    kl = f"{(mos[1].results or {})['kl']:.3f}"
    assert f"| alpha0.1-M6-D3 | mos | 1 of 2 | 0 | 1 | {kl} |" in page


@pytest.mark.parametrize("file", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_configs_are_read(file: Path) -> None:
    config, _ = EXPERIMENT.program.parse(["sweep", "--config", str(file)])[1]
    assert tuple(config.heads) == HEADS
    assert config.steps * config.batch == 50 * config.contexts
    assert config.output_dir == f"runs/bottleneck/{file.stem}"
