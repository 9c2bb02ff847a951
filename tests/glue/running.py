"""Runs, sweeps and reports of GLUE as its command line makes them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from glue.__main__ import EXPERIMENT
from glue.report.runs import Sweep
from glue.sweep import CandidateConfig, SweepConfig, TaskConfig
from glue.train import Run
from sparse_attn.engine.config import ReportConfig, ScheduleConfig
from sparse_attn.reports.page import Report

# the arguments of a run, from its output_dir and further options
Asked = Callable[..., list[str]]
RAMP = ScheduleConfig("r", 0.0)
MAPPINGS = {
    "softmax": CandidateConfig("softmax"),
    "r-softmax": CandidateConfig("r-softmax", {"r": [0.1, 0.2, 0.3]}, schedule=RAMP),
}


def sweep(**changes: Any) -> SweepConfig:
    """2 tasks x 2 mappings x (4 trials + 3 seeds)."""
    given: dict[str, Any] = {
        "model": "some/model",
        "output_dir": "runs/sweep",
        "tasks": {"MRPC": TaskConfig(epochs=5), "RTE": None},
        "mappings": MAPPINGS,
        "learning_rates": [1e-5, 2e-5],
        "trials": 4,
        "seeds": 3,
    }
    return SweepConfig(**{**given, **changes})


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
