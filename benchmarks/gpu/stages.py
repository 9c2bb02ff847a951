"""Stages of `make gpu` in order: the main results first, slow stages last."""

from benchmarks.gpu import programs, sanity, suites, tune
from benchmarks.gpu.stage import Stage

# 39 minutes in all
_ALL = (
    Stage("sanity", 180, 90, sanity.cases, sanity.run, parallel=True),
    Stage("attention", 120, suites.PATIENCE, suites.attention, suites.measure),
    Stage("step", 100, suites.PATIENCE, suites.steps, suites.measure),
    Stage("candidates", 150, 60, tune.tasks, tune.prepare, parallel=True),
    Stage("tune", 120, 30, tune.tasks, tune.time_candidates),
    Stage("peers", 300, suites.LONG, suites.peers, suites.measure),
    Stage("compiled", 240, suites.LONG, suites.compiled, suites.measure),
    Stage("tests", 780, 500, programs.test_cases, programs.run_tests),
    Stage("more", 200, suites.PATIENCE, suites.more, suites.measure),
    Stage("peaks", 30, 15, sanity.peaks, sanity.peak),
    Stage("sanitizer", 120, 60, programs.sanitizer_cases, programs.sanitize),
)
STAGES = {stage.name: stage for stage in _ALL}
