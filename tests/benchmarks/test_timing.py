"""The statistics and the rounds, with contestants whose times are made up."""

import itertools
import time

import pytest
import torch

from benchmarks.timing import (
    Contestant,
    DeviceClock,
    Effort,
    Measurement,
    Race,
    Task,
    measure,
    peak_memory,
    ratio,
    summarise,
)


def played(call):
    """A clock that reads what the fake contestant says it took."""
    return call()


def fake(*times):
    return Task(itertools.cycle(times).__next__)


def test_summary():
    assert summarise([4.0, 1.0, 3.0, 2.0, 5.0]) == {"median": 3.0, "q1": 2.0, "q3": 4.0, "n": 5}
    assert summarise([7.0]) == {"median": 7.0, "q1": 7.0, "q3": 7.0, "n": 1}
    assert summarise([1.2345678, 123456.0]) == {
        "median": 61729.0, "q1": 30865.0, "q3": 92592.0, "n": 2
    }  # fmt: skip
    assert summarise([]) is None


def test_ratio_is_the_median_of_paired_rounds_not_of_medians():
    # the machine slows down tenfold in round 1, and 9 was measured for one of them alone
    one = Measurement({0: 2.0, 1: 20.0, 2: 2.0, 9: 500.0})
    other = Measurement({0: 1.0, 1: 10.0, 2: 1.0})
    assert ratio(one, other) == {"median": 2.0, "q1": 2.0, "q3": 2.0, "n": 3}
    assert ratio(one, Measurement()) is None


def test_a_race_compares_all_with_the_base_and_ours_with_peers_of_its_mapping():
    times = {"SDPA": 2.0, "ours": 3.0, "peer": 6.0, "other": 8.0}
    mappings = {"SDPA": "softmax", "other": "softmax"}
    contestants = [Contestant(n, mappings.get(n, "entmax"), n == "ours") for n in times]

    def make(contestant):
        if contestant.name == "other":
            raise NotImplementedError("no such thing")
        return fake(times[contestant.name])

    race = Race(contestants, "SDPA", torch.device("cpu"), Effort(0, least=3))
    found = {row["name"]: row for row in race.rows(make, "forward", played, memory=False)}
    ratios = {
        n: {to: r["median"] for to, r in row.get("to", {}).items()} for n, row in found.items()
    }
    assert ratios == {"SDPA": {"SDPA": 1.0}, "ours": {"SDPA": 1.5, "peer": 0.5},
                      "peer": {"SDPA": 3.0}, "other": {}}  # fmt: skip
    assert found["other"]["reason"] == "no such thing"
    assert found["ours"]["ms"] == {"median": 3.0, "q1": 3.0, "q3": 3.0, "n": 3}


def test_every_round_runs_all_in_shuffled_order_that_repeats():
    def orders():
        ran = []
        tasks = {name: Task(lambda name=name: ran.append(name) or 1.0) for name in "abcd"}
        found = measure(tasks, played, Effort(0, least=8), "a")
        assert all(len(m.samples) == 8 for m in found.values())
        rounds = [tuple(ran[i : i + 4]) for i in range(8, len(ran), 4)]  # after the warm-up
        assert all(sorted(order) == list("abcd") for order in rounds)
        return rounds

    assert len(set(orders())) > 2
    assert orders() == orders()


def test_prepare_is_not_timed():
    def clock(call):
        begun = time.perf_counter()
        call()
        return time.perf_counter() - begun

    task = Task(lambda: None, prepare=lambda: time.sleep(0.01))
    found = measure({"a": task}, clock, Effort(0, least=3), "a")
    assert max(found["a"].samples.values()) < 0.01


def test_a_failing_contestant_leaves_a_reason_and_the_rest_goes_on():
    def late():
        for _ in range(4):
            yield 1.0
        raise ValueError("later\nsecond line")

    def never():
        raise NotImplementedError("no such thing")

    tasks = {"a": fake(1.0), "late": Task(late().__next__), "never": Task(never)}
    found = measure(tasks, played, Effort(0, least=5), "a")
    assert found["never"] == Measurement({}, "no such thing")
    assert found["late"] == Measurement({}, "ValueError: later")
    assert len(found["a"].samples) == 5


def test_slow_contestants_cost_few_rounds_and_the_base_runs_in_all():
    tasks = {
        "base": Task(lambda: time.sleep(0.004) or 4.0),
        "fast": Task(lambda: time.sleep(0.0005) or 1.0),
        "slow": Task(lambda: time.sleep(0.02) or 20.0),
    }
    found = measure(tasks, played, Effort(0.012, least=6, most=50), "base")
    rounds = {name: len(m.samples) for name, m in found.items()}
    assert rounds["slow"] == 3
    assert rounds["fast"] >= 6
    assert found["base"].samples.keys() >= found["fast"].samples.keys()


def test_after_the_deadline_nothing_begins():
    past = Effort(1, deadline=time.perf_counter() - 1)
    found = measure({"a": fake(1.0)}, played, past, "a")
    assert found["a"] == Measurement({}, "no time left")


@pytest.mark.parametrize("size", [1000, 250_000])
def test_peak_memory_counts_what_lives_at_once(size):
    given = torch.zeros(size)

    def call():
        first = given + given  # 1
        second = first + given  # 2
        del first  # 1
        return second + given  # 2

    device = torch.device("cpu")
    call()
    assert peak_memory(call, device) == 2 * 4 * size / 2**20
    assert peak_memory(call, device) == peak_memory(call, device)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_device_clock_and_memory():
    given = torch.ones(1 << 20, device="cuda")
    found = measure({"a": Task(lambda: given + given)}, DeviceClock(), Effort(0, least=3), "a")
    assert found["a"].reason is None
    assert all(0 < sample < 10 for sample in found["a"].samples.values())
    assert peak_memory(lambda: given + given, given.device) == 4.0
