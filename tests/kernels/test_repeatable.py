"""The same call gives the same bits: twice, on several threads, whatever memory held before."""

from dataclasses import replace

import pytest
import torch

from .backends import on
from .calls import ONE
from .problems import LEARNED, SETTINGS, SOLVERS, Problem, assert_equal_to_rounding, solve

FEW = [Problem(*s, queries=5, keys=9, **ONE) for s in SOLVERS]
# tiles whose rows are mostly zero are kept for the backward pass
SPARSE = Problem("sparsemax", queries=130, keys=150, dim=16, spread=9.0)


def results(case, backend):
    torch.manual_seed(7)
    return solve(case, backend.impl, torch.float32, torch.float32, backend.device)


@on(
    [
        *(Problem(*s, queries=9, keys=33) for s in SETTINGS),
        *(SPARSE, replace(SPARSE, options={"dropout": 0.25})),
    ],
    FEW,
)
def test_two_runs(backend, case):
    torch.testing.assert_close(results(case, backend), results(case, backend), rtol=0, atol=0)


@on([Problem(*s, queries=9, keys=33) for s in [*SOLVERS, *LEARNED]], FEW)
def test_memory_that_held_something_else(backend, case):
    """Every element of every buffer is written before it is read."""
    case = replace(
        case, mask="BHQK", learn=next((n for n in case.params if n not in ("t", "p")), "")
    )
    torch.use_deterministic_algorithms(True)  # torch.empty and its kin give NaN
    try:
        for empty in (torch.empty(3), torch.empty_like(torch.ones(3)), torch.ones(3).new_empty(3)):
            assert empty.isnan().all()
        got = results(case, backend)
    finally:
        torch.use_deterministic_algorithms(False)
    torch.testing.assert_close(got, results(case, backend), rtol=0, atol=0)


@pytest.fixture
def threads():
    """Three of them, for what comes after the first result."""
    yield lambda: torch.set_num_threads(3)
    torch.set_num_threads(1)


@pytest.mark.parametrize(
    "case",
    [
        Problem("t-softmax", {"t": 1.75}, learn="t", per_head=True, queries=63, keys=70),
        Problem("scaled-softmax", {"beta": 0.5}, learn="beta", per_head=True, queries=63, keys=70),
        Problem("softmax", queries=63, keys=111, dim=80),
        Problem("r-softmax", {"r": 0.3125}, queries=1000, keys=1000, **ONE),
        replace(SPARSE, mapping="entmax", params={"alpha": 1.5}),
    ],
    ids=str,
)
def test_several_threads(case, threads):
    case = replace(case, bias="1H1K", bias_learned=True)
    alone = solve(case, "cpu", torch.float32, torch.float32, "cpu")
    threads()
    together = solve(case, "cpu", torch.float32, torch.float32, "cpu")
    torch.testing.assert_close(alone, together, rtol=0, atol=0)


@pytest.mark.parametrize("setting", SOLVERS, ids=str)
def test_threads_that_share_a_packed_sequence(setting, threads):
    """Few heads, long sequences: their queries are split."""
    size = {"batch": 1, "queries": 505, "keys": 505, "packed": (300, 5, 200)}
    threads()
    assert_equal_to_rounding(Problem(*setting, **size, heads=1, kv_heads=1), "cpu")
