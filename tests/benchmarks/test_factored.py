"""The factored layer beside dense SGD: both train alike, and what is measured."""

import pytest
import torch

from benchmarks import factored
from benchmarks.factored import BATCHES, DENSE, FACTORED, RESET, Factored, Factors, Problem

CPU = torch.device("cpu")


def case(vocab, hidden):
    return Factors("factored", f"{vocab:,} words", vocab, hidden)


@pytest.fixture
def problem():
    return Problem(case(50, 6), CPU)


def test_rows(bench, monkeypatch, tmp_path):
    cases = [case(vocab, 4) for vocab in (20, 300, 1000)]
    monkeypatch.setattr(Factored, "cases", lambda *arguments: cases)
    monkeypatch.setattr(factored, "MOST_DENSE", 2000)
    found = bench("factored")["cases"]
    assert [found["vocab"] for found in found] == [20, 300, 1000]
    rows = [{row["name"]: row for row in case["rows"]} for case in found]
    assert all(list(row) == [FACTORED, DENSE, RESET] for row in rows)
    assert all(case["steps_between_checks"] > 0 for case in found)
    reason = rows[2].pop(DENSE)["reason"]
    assert "million weights" in reason
    for row in rows:
        for facts in row.values():
            assert facts["ms"]["median"] > 0
            assert facts["memory_mib"] > 0
    # a step's memory does not depend on the vocabulary; of 20 words, fewer targets differ
    memory = [row[FACTORED]["memory_mib"] for row in rows]
    assert memory[1] == pytest.approx(memory[2], rel=0.05)
    page = (tmp_path / "factored-cpu.md").read_text()
    assert "## d = 4" in page
    assert "| 1,000 |" in page
    assert f"Empty cells: {reason}." in page


def test_both_sides_train_alike(problem):
    """Once each over the same batches: the same weights."""
    tasks = problem.tasks()
    for name in (FACTORED, DENSE):
        for _ in range(BATCHES):
            tasks[name].run()
    assert not torch.equal(problem.weight, Problem(case(50, 6), CPU).weight)
    torch.testing.assert_close(problem.head.W, problem.weight.detach(), rtol=1e-4, atol=1e-4)


def test_every_reset_is_one(problem):
    matrix, task = problem.head.matrix, problem.tasks()[RESET]
    for _ in range(4):
        task.prepare()
        before, rows = problem.head.W, matrix.V.clone()
        sigma = torch.linalg.svdvals(matrix.U)
        assert ((sigma < 0.5) | (sigma > 2)).sum() == 1
        task.run()
        sigma = torch.linalg.svdvals(matrix.U)
        assert ((sigma > 0.5) & (sigma < 2)).all()
        assert not torch.equal(matrix.V, rows)
        torch.testing.assert_close(problem.head.W, before)
