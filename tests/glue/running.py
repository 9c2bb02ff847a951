"""Runs, sweeps and reports of GLUE as its command line makes them."""

from pathlib import Path
from typing import Any

from glue.__main__ import EXPERIMENT
from glue.report.runs import Sweep
from glue.train import Run
from pipeline.config import ReportConfig
from pipeline.report.page import Report


def parsed(given: list[str]) -> Any:
    """The first config of a command line."""
    return EXPERIMENT.program.parse(given)[1][0]


def prepared(given: list[str]) -> Run:
    """A run that has its folder."""
    run: Run = EXPERIMENT.prepare(parsed(given))
    return run


def trained(run: Run) -> dict[str, Any]:
    """What results.json holds of it."""
    results = EXPERIMENT.train(run.config, run)
    assert results is not None
    return results


def report(results_dir: Path, output_dir: Path | None = None) -> Report:
    """The report of a sweep, written."""
    return EXPERIMENT.report(ReportConfig(str(results_dir), output_dir and str(output_dir)))


def read_sweep(folder: Path) -> Sweep:
    """What the report counts of a sweep."""
    return Sweep(**vars(EXPERIMENT.read(folder)))
