"""`python -m benchmarks.factored`: who is compared, what is measured and written."""

import json

import pytest
import torch

from benchmarks import factored as command
from benchmarks.factored import DENSE, FACTORED, RESET, Case, Problem, markdown


@pytest.fixture
def problem():
    return Problem(Case(50, 6), torch.device("cpu"))


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(command, "QUICK", [Case(20, 4), Case(300, 4), Case(1000, 4)])
    monkeypatch.setattr(command, "MOST_DENSE", 2000)
    monkeypatch.setattr(command, "Effort", lambda seconds, least: RealEffort(0, 2))


RealEffort = command.Effort


def test_end_to_end(tiny, tmp_path, capsys):
    command.main(["--quick", "--out", str(tmp_path)])
    assert {path.name for path in tmp_path.iterdir()} == {
        f"factored-cpu.{suffix}" for suffix in ("json", "md", "png")
    }
    record = json.loads((tmp_path / "factored-cpu.json").read_text())
    assert [case["vocab"] for case in record["cases"]] == [20, 300, 1000]
    assert record["environment"]["versions"]["torch"] == torch.__version__
    for case in record["cases"]:
        rows = {row["name"]: row for row in case["rows"]}
        assert list(rows) == [FACTORED, DENSE, RESET]
        measured = [FACTORED, RESET] if case["vocab"] == 1000 else list(rows)
        for name in measured:
            assert rows[name]["ms"]["median"] > 0
            assert rows[name]["memory_mib"] > 0
        assert case["steps_between_checks"] > 0
    assert "million weights" in rows[DENSE]["reason"]
    table = (tmp_path / "factored-cpu.md").read_text()
    assert table == markdown(record)
    assert "## d = 4" in table
    assert "| 1,000 |" in table
    assert f"Empty cells: {rows[DENSE]['reason']}." in table
    assert str(tmp_path) not in json.dumps(record) + table
    assert "vocabulary 300, d = 4" in capsys.readouterr().out


def test_memory_of_a_step_does_not_depend_on_the_vocabulary(tiny, tmp_path):
    command.main(["--quick", "--out", str(tmp_path)])
    record = json.loads((tmp_path / "factored-cpu.json").read_text())
    memory = [case["rows"][0]["memory_mib"] for case in record["cases"]]
    # fewer words than rows: fewer different targets
    assert memory[1] == pytest.approx(memory[2], rel=0.05)


def test_both_sides_train_alike(problem):
    """Once each over the same batches: the same weights."""
    head, tasks = problem.head, problem.tasks()
    for name in (FACTORED, DENSE):
        for _ in range(command.BATCHES):
            tasks[name].run()
    assert not torch.equal(problem.weight, Problem(Case(50, 6), torch.device("cpu")).weight)
    torch.testing.assert_close(head.W, problem.weight.detach(), rtol=1e-4, atol=1e-4)


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


def test_unknown_argument(capsys):
    with pytest.raises(SystemExit):
        command.main(["--speed"])
    assert "unrecognized arguments" in capsys.readouterr().err
