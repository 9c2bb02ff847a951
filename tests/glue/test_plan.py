"""Which runs a sweep consists of: equal budgets, paired seeds, a dev set that is met once."""

import math
from dataclasses import replace
from typing import Any

import pytest

from glue.plan import make_plan
from glue.sweep import CandidateConfig, TaskConfig
from sparse_attn.engine.sweep.plan import PlannedRun, SweepPlan
from sparse_attn.engine.sweep.records import Record
from tests.glue.running import MAPPINGS, RAMP, sweep


def finished(run: PlannedRun, score: float) -> Record:
    return run.record(status="finished", results={"score": score})


def after_trials(plan: SweepPlan, scores: dict[str, list[float | None]]) -> dict[str, Record]:
    """Records of all trials, those of a mapping with these scores; None for a failed one."""
    done = {}
    for (_, mapping), runs in plan.first.items():
        for run, score in zip(runs, scores[mapping], strict=True):
            failed = run.record(status="failed", error="lost")
            done[run.hash] = failed if score is None else finished(run, score)
    return done


def test_every_mapping_has_as_many_trials_with_the_same_rates_and_seeds() -> None:
    runs = list(make_plan(sweep()).due({}))
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
    for run in make_plan(sweep(selection=0.2)).due({}):
        assert run.stage == "trial"
        assert run.config.selection == 0.2


@pytest.mark.parametrize(
    ("rates", "params"),
    [
        (3, {"r": [0.1, 0.2, 0.3]}),
        (2, {"r": [0.1, 0.2, 0.3]}),
        (4, {"r": [0.1, 0.2]}),
        (2, {"r": [0.1, 0.2], "mix": [0.5, 1.0]}),
    ],
)
def test_settings_go_round_until_all_have_met(rates: int, params: dict[str, Any]) -> None:
    name = "mixed-r-softmax" if "mix" in params else "r-softmax"
    size = math.prod(map(len, params.values()))
    candidate = CandidateConfig(name, params, schedule=RAMP)
    plan = make_plan(
        sweep(
            learning_rates=[1e-5 * (1 + k) for k in range(rates)],
            mappings={"softmax": CandidateConfig("softmax"), "x": candidate},
            trials=rates * size,
        )
    )
    settings = [
        (run.config.train.learning_rate, *run.config.mapping.params.values())
        for run in plan.first["RTE", "x"]
    ]
    assert len(set(settings)) == rates * size
    assert len({setting[1:] for setting in settings[:size]}) == size


def test_best_trial_meets_the_dev_set_with_every_seed() -> None:
    plan = make_plan(sweep())
    done = after_trials(plan, {"softmax": [0.5, 0.7, 0.6, 0.7], "r-softmax": [0.1, 0.2, 0.9, 0.3]})
    finals = list(plan.due(done))
    assert len(finals) == 2 * 2 * 3
    assert len(done) + len(finals) == plan.expected(done) == plan.expected({})
    for run in finals:
        best = plan.first[run.task, run.mapping][1 if run.mapping == "softmax" else 2].config
        assert run.stage == "final"
        assert run.config.selection is None
        assert run.config.evaluate == "end"
        assert run.config.mapping == best.mapping
        assert run.config.train == replace(best.train, seed=run.index)
    assert {run.index for run in finals} == {0, 1, 2}


def test_finals_wait_for_every_trial() -> None:
    plan = make_plan(sweep())
    scores: dict[str, list[float | None]] = {
        "softmax": [0.5, 0.4, 0.6, 0.1],
        "r-softmax": [0.9, None, 0.8, 0.7],
    }
    done = after_trials(plan, scores)
    missing = plan.first["RTE", "softmax"][3].hash
    del done[missing]
    due = list(plan.due(done))
    assert [run.hash for run in due if run.stage == "trial"] == [missing]
    # a failed trial may have been the best: r-softmax has no finals yet
    finals = {(run.task, run.mapping) for run in due if run.stage == "final"}
    assert finals == {("MRPC", "softmax")}


def test_where_every_trial_diverged_there_is_no_final() -> None:
    plan = make_plan(sweep())
    done = after_trials(plan, {"softmax": [0.5] * 4, "r-softmax": [0.5] * 4})
    for run in plan.first["RTE", "r-softmax"]:
        done[run.hash] = run.record(status="diverged", error="NaN")
    due = {(run.task, run.mapping) for run in plan.due(done)}
    assert due == {("MRPC", "softmax"), ("MRPC", "r-softmax"), ("RTE", "softmax")}
    assert plan.expected(done) == plan.expected({}) - 3


def test_grid_of_the_paper() -> None:
    rates = [1e-5, 2e-5, 5e-5, 1e-4, 5e-4]
    mappings = {
        **MAPPINGS,
        "r-softmax": replace(MAPPINGS["r-softmax"], params={"r": [0.05, 0.1, 0.15, 0.2, 0.5]}),
        "sparsemax": CandidateConfig("sparsemax"),
    }
    plan = make_plan(sweep(protocol="paper", learning_rates=rates, seeds=1, mappings=mappings))
    runs = list(plan.due({}))
    assert len(runs) == plan.expected({}) == 2 * (5 + 25 + 5)
    assert all(run.config.selection is None and run.stage == "grid" for run in runs)
    settings = {
        (run.config.train.learning_rate, run.config.mapping.params["r"])
        for run in runs
        if (run.task, run.mapping) == ("RTE", "r-softmax")
    }
    assert len(settings) == 25


def test_tasks_have_their_own_length() -> None:
    tasks = {"MRPC": TaskConfig(epochs=5), "SST-2": TaskConfig(train_rows=100), "RTE": None}
    plan = make_plan(sweep(tasks=tasks))
    lengths = {run.task: (run.config.train.epochs, run.config.train_rows) for run in plan.due({})}
    assert lengths == {"MRPC": (5, None), "SST-2": (3.0, 100), "RTE": (3.0, None)}


def test_a_sweep_cut_short_has_something_of_every_cell() -> None:
    plan = make_plan(sweep())
    first = list(plan.due({}))[: len(plan.cells)]
    assert {(run.task, run.mapping) for run in first} == set(plan.cells)


def test_hash() -> None:
    plan = make_plan(sweep())
    hashes = [run.hash for run in plan.due({})]
    assert len(set(hashes)) == len(hashes)
    # the same in every process and version: records on disk are found by it
    assert hashes[0] == "c2804d2038bd"
    assert [run.hash for run in make_plan(sweep(output_dir="elsewhere")).due({})] == hashes
    labels = {**MAPPINGS, "twin": MAPPINGS["r-softmax"]}
    assert len({run.hash for run in make_plan(sweep(mappings=labels)).due({})}) == 2 * 3 * 4


def test_learned_maps_need_no_ramp_and_paper_asks_for_none() -> None:
    sweep(mappings={**MAPPINGS, "plif": CandidateConfig("plif")})
    sweep(mappings={**MAPPINGS, "sparsemax": CandidateConfig("sparsemax")}, protocol="paper")
