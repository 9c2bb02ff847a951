"""The stages of `make gpu` in order; what tunes the kernels belongs after `compile`."""

from benchmarks.gpu import programs, sanity, suites
from benchmarks.gpu.stage import Stage

# 38 minutes in all
_ALL = (
    Stage("peaks", 60, 30, sanity.peaks, sanity.peak),
    Stage("sanity", 180, 90, sanity.cases, sanity.run, parallel=True),
    Stage("sanitizer", 180, 90, programs.sanitizer_cases, programs.sanitize),
    Stage("tests", 600, 300, programs.test_cases, programs.run_tests),
    Stage("compile", 480, 150, suites.compilations, suites.compile_kernels, parallel=True),
    Stage("attention", 420, suites.PATIENCE, suites.benchmarks, suites.measure),
    Stage("causal", 360, suites.PATIENCE, suites.causal, suites.measure),
)
STAGES = {stage.name: stage for stage in _ALL}
