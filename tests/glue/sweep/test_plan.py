"""Which runs a sweep consists of: equal budgets, paired seeds, a dev set that is met once."""

from dataclasses import replace
from typing import Any

import pytest

from glue.config import ScheduleConfig
from glue.sweep.config import CandidateConfig, SweepConfig, TaskConfig
from glue.sweep.plan import Plan, PlannedRun
from glue.sweep.records import Record

RAMP = ScheduleConfig("r", 0.0)
MAPPINGS = {
    "softmax": CandidateConfig("softmax"),
    "r-softmax": CandidateConfig("r-softmax", {"r": [0.1, 0.2, 0.3]}, schedule=RAMP),
}


def sweep(**changes: Any) -> SweepConfig:
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


def finished(run: PlannedRun, score: float) -> Record:
    return run.record(status="finished", results={"score": score})


def after_trials(plan: Plan, scores: dict[str, list[float | None]]) -> dict[str, Record]:
    """Records of all trials, those of a mapping with these scores; None for a failed one."""
    done = {}
    for (_, mapping), runs in plan.first.items():
        for run, score in zip(runs, scores[mapping], strict=True):
            failed = run.record(status="failed", error="lost")
            done[run.hash] = failed if score is None else finished(run, score)
    return done


def test_every_mapping_has_as_many_trials_with_the_same_rates_and_seeds() -> None:
    runs = list(Plan(sweep()).due({}))
    assert len(runs) == 2 * 2 * 4
    for task in ("MRPC", "RTE"):
        by_mapping = [
            [
                (run.index, run.config.train.learning_rate, run.config.train.seed)
                for run in runs
                if (run.task, run.mapping) == (task, mapping)
            ]
            for mapping in MAPPINGS
        ]
        assert by_mapping[0] == by_mapping[1]
        assert [rate for _, rate, _ in by_mapping[0]] == [1e-5, 2e-5, 1e-5, 2e-5]
        # the same rate again is another seed, not the same run
        assert [seed for *_, seed in by_mapping[0]] == [1000, 1000, 1001, 1001]


def test_trials_see_the_selection_split_and_not_the_dev_set() -> None:
    for run in Plan(sweep(selection=0.2)).due({}):
        assert run.stage == "trial"
        assert run.config.selection == 0.2


def test_values_go_round_and_meet_every_rate() -> None:
    plan = Plan(sweep(learning_rates=[1e-5, 2e-5, 3e-5], trials=9))
    met = {
        (run.config.train.learning_rate, run.config.mapping.params["r"])
        for run in plan.first["RTE", "r-softmax"]
    }
    assert len(met) == 9
    first = plan.first["RTE", "r-softmax"][:3]
    assert {run.config.mapping.params["r"] for run in first} == {0.1, 0.2, 0.3}


def test_best_trial_meets_the_dev_set_with_every_seed() -> None:
    plan = Plan(sweep())
    done = after_trials(plan, {"softmax": [0.5, 0.7, 0.6, 0.7], "r-softmax": [0.1, 0.2, 0.9, 0.3]})
    finals = list(plan.due(done))
    assert len(finals) == 2 * 2 * 3
    assert len(done) + len(finals) == plan.total
    for run in finals:
        best = plan.first[run.task, run.mapping][1 if run.mapping == "softmax" else 2].config
        assert run.stage == "final"
        assert run.config.selection is None
        assert run.config.evaluate == "end"
        assert run.config.mapping == best.mapping
        assert run.config.train == replace(best.train, seed=run.index)
    assert {run.index for run in finals} == {0, 1, 2}


def test_no_final_before_the_last_trial_and_none_without_a_finished_one() -> None:
    plan = Plan(sweep())
    scores: dict[str, list[float | None]] = {
        "softmax": [0.5, None, 0.4, None],
        "r-softmax": [None] * 4,
    }
    done = after_trials(plan, scores)
    missing = plan.first["RTE", "softmax"][3].hash
    del done[missing]
    due = list(plan.due(done))
    assert [run.hash for run in due if run.stage == "trial"] == [missing]
    assert {(run.task, run.mapping) for run in due if run.stage == "final"} == {("MRPC", "softmax")}
    assert {run.config.train.learning_rate for run in due if run.stage == "final"} == {1e-5}


def test_grid_of_the_paper() -> None:
    rates = [1e-5, 2e-5, 5e-5, 1e-4, 5e-4]
    mappings = {
        **MAPPINGS,
        "r-softmax": replace(MAPPINGS["r-softmax"], params={"r": [0.05, 0.1, 0.15, 0.2, 0.5]}),
        "sparsemax": CandidateConfig("sparsemax"),
    }
    plan = Plan(sweep(protocol="paper", learning_rates=rates, seeds=1, mappings=mappings))
    runs = list(plan.due({}))
    assert len(runs) == plan.total == 2 * (5 + 25 + 5)
    assert all(run.config.selection is None and run.stage == "grid" for run in runs)
    settings = {
        (run.config.train.learning_rate, run.config.mapping.params["r"])
        for run in runs
        if (run.task, run.mapping) == ("RTE", "r-softmax")
    }
    assert len(settings) == 25


def test_tasks_have_their_own_length() -> None:
    tasks = {"MRPC": TaskConfig(epochs=5), "SST-2": TaskConfig(train_rows=100), "RTE": None}
    plan = Plan(sweep(tasks=tasks))
    lengths = {run.task: (run.config.train.epochs, run.config.train_rows) for run in plan.due({})}
    assert lengths == {"MRPC": (5, None), "SST-2": (3.0, 100), "RTE": (3.0, None)}


def test_a_sweep_cut_short_has_something_of_every_cell() -> None:
    plan = Plan(sweep())
    first = list(plan.due({}))[: len(plan.cells)]
    assert {(run.task, run.mapping) for run in first} == set(plan.cells)


def test_hash() -> None:
    plan = Plan(sweep())
    hashes = [run.hash for run in plan.due({})]
    assert len(set(hashes)) == len(hashes)
    # the same in every process and version: records on disk are found by it
    assert hashes[0] == "b9c9cce73ab2"
    assert [run.hash for run in Plan(sweep(output_dir="elsewhere")).due({})] == hashes
    labels = {**MAPPINGS, "twin": MAPPINGS["r-softmax"]}
    assert len({run.hash for run in Plan(sweep(mappings=labels)).due({})}) == 2 * 3 * 4


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"tasks": {}}, "tasks=.*expected one at least"),
        ({"tasks": {"MRPC": None, "mrpc": None}}, "tasks: expected each once"),
        ({"tasks": {"MRCP": None}}, "'MRCP'; the nearest: MRPC"),
        ({"learning_rates": []}, "learning_rates=.*expected one at least"),
        ({"trials": 1}, "trials=1: expected one at least for each of the 2 learning_rates"),
        ({"trials": 2}, "mappings.r-softmax: params.r: 3 values in 2 trials, some would never be"),
        (
            {"mappings": {**MAPPINGS, "x": CandidateConfig("t-softmax", {"t": [1.0, -1.0]})}},
            "mappings.x: t=-1.0 is out of range",
        ),
        ({"seeds": 0}, "seeds=0: expected at least 1"),
        ({"selection": 1.0}, "selection=1.0: expected a share"),
        ({"mappings": {"r": MAPPINGS["r-softmax"]}}, "expected 'softmax' among them"),
        (
            {"mappings": {"softmax": CandidateConfig("sparsemax", schedule=RAMP)}},
            "expected 'softmax' among them",
        ),
        (
            {"mappings": {**MAPPINGS, "x": CandidateConfig("r-sotfmax")}},
            "mappings.x: mapping='r-sotfmax' is unknown; did you mean r-softmax",
        ),
        (
            {"mappings": {**MAPPINGS, "x": CandidateConfig("sparsemax")}},
            "mappings.x: the fair protocol ramps every mapping; .* mixed-sparsemax",
        ),
        (
            {"mappings": {**MAPPINGS, "x": CandidateConfig("r-softmax", {"r": []})}},
            "mappings.x: params.r: no value to try",
        ),
        (
            {"mappings": {**MAPPINGS, "a/b": MAPPINGS["r-softmax"]}},
            "the name 'a/b' is to name files",
        ),
    ],
)
def test_bad_sweeps(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        sweep(**changes)


def test_train_settings_that_the_sweep_sets() -> None:
    train = sweep().train
    for changed, says in (
        (replace(train, learning_rate=1e-4), "train.learning_rate=0.0001: .* give learning_rates"),
        (replace(train, seed=3), "train.seed=3: .* give seeds"),
    ):
        with pytest.raises(ValueError, match=says):
            sweep(train=changed)


def test_learned_maps_need_no_ramp_and_paper_asks_for_none() -> None:
    sweep(mappings={**MAPPINGS, "plif": CandidateConfig("plif")})
    sweep(mappings={**MAPPINGS, "sparsemax": CandidateConfig("sparsemax")}, protocol="paper")
