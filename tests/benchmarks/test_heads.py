"""`python -m benchmarks.heads`: who is compared, that all compute the same, what is recorded."""

import json
import sys
import time
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from benchmarks import heads as command
from benchmarks import heads_cases
from benchmarks.heads_cases import GROUPS, VOCABULARIES, Case, Problem, cases, contestants
from benchmarks.heads_tables import OURS, PLAIN, markdown
from benchmarks.timing import MIB, DeviceLostError, Effort, Measurement, Task

CPU = torch.device("cpu")
VOCAB = 50
EFFORT = Effort(seconds=0, least=2)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setitem(VOCABULARIES, "10k", VOCAB)


@pytest.fixture
def run(tmp_path):
    def run(*arguments):
        command.main(["--quick", "--out", str(tmp_path), *arguments])
        return json.loads((tmp_path / "heads-cpu.json").read_text())

    return run


@pytest.fixture
def installed(monkeypatch):
    """A stand-in for Apple's package, which remembers what it was asked for."""
    asked = []

    def linear_cross_entropy(e, c, targets, impl):
        asked.append(impl)
        return F.cross_entropy(e @ c.t(), targets)

    package = SimpleNamespace(linear_cross_entropy=linear_cross_entropy)
    monkeypatch.setitem(sys.modules, "cut_cross_entropy", package)
    return asked


def problem(group="softmax", tokens=6):
    return Problem(Case(group, "10k", tokens, 8), CPU)


def test_end_to_end(run, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "cut_cross_entropy", None)
    record = run("--only", "softmax", "softmax-no-bias", "plif", "mixture")
    names = [case["group"] for case in record["cases"]]
    assert names == ["softmax", "softmax-no-bias", "mixture", "plif"]
    assert record["left_out"] == []
    assert record["environment"]["threads"] == torch.get_num_threads()
    for case in record["cases"]:
        assert case["vocab"] == VOCAB
        for row in case["rows"]:
            if row["name"] in (PLAIN, OURS):
                assert row["reason"] is None
                assert row["ms"]["median"] > 0
                assert row["peak_mib"] > row["beyond_gradients_mib"] > 0
                assert row["gradient_difference"] < 1e-5
    plain = record["cases"][0]["rows"][0]
    assert plain["to"][PLAIN]["median"] == 1
    assert plain["gradient_difference"] == 0
    table = (tmp_path / "heads-cpu.md").read_text()
    assert table == markdown(record)
    assert "- Liger: Liger needs a GPU" in table
    assert "- Apple: " in table.partition("## softmax-no-bias")[2].partition("## mixture")[0]
    assert table in capsys.readouterr().out
    assert str(tmp_path) not in json.dumps(record) + table


@pytest.mark.parametrize("group", GROUPS)
def test_all_compute_the_same(group, installed):
    given = problem(group)
    found = {}
    for name, loss in contestants(group).items():
        if name != "Liger":
            given.clear()
            value = loss(given)
            value.backward()
            found[name] = (value.detach(), given.hidden.grad, given.head.weight.grad)
    log_p = given.head.log_prob(given.hidden).detach()
    expected = -log_p[torch.arange(6), given.targets].mean()
    for name, (value, *gradients) in found.items():
        torch.testing.assert_close(value, expected, msg=name)
        for gradient, plain in zip(gradients, found[PLAIN][1:], strict=True):
            torch.testing.assert_close(gradient, plain, msg=name)
            assert gradient.abs().max() > 0
    assert installed == (["torch_compile"] if group == "softmax-no-bias" else [])


def test_who_takes_part():
    assert list(contestants("softmax")) == [PLAIN, OURS, "ours, unreduced", "Liger"]
    assert list(contestants("softmax-no-bias")) == [PLAIN, OURS, "Liger", "Apple"]
    assert list(contestants("plif")) == [PLAIN, OURS]
    assert problem("softmax-no-bias").head.bias is None
    assert problem("plif").head.mapping.options["knots"] == 100_000
    assert problem("mixture").head.components == 15


def test_scores_are_spread_as_a_trained_model_has_them():
    given = problem("softmax-no-bias", tokens=2000)
    assert given.head.scores(given.hidden).std().item() == pytest.approx(3, rel=0.1)


@pytest.mark.parametrize(("device", "tokens"), [("cpu", 2048), ("cuda", 4096)])
def test_what_is_measured(device, tokens):
    found = {case.name: case for case in cases(device, quick=False)}
    for vocabulary in ("10k", "33k", "128k"):
        assert found[f"softmax {vocabulary}"] == Case("softmax", vocabulary, tokens, 512)
        assert device == "cpu" or f"plif {vocabulary}" in found
    assert {case.group for case in found.values()} == set(GROUPS)
    assert [name for name in found if "mixture" in name] == ["mixture 10k"]
    assert found["mixture 10k"].tokens < tokens


def test_peak_memory_with_and_without_gradients():
    given = problem(tokens=64)
    tasks = {
        name: Task(lambda loss=loss: given.step(loss), given.clear)
        for name, loss in contestants("softmax").items()
        if name in (PLAIN, OURS)
    }
    measured = {name: Measurement({0: 1.0}) for name in tasks}
    found = command.memory_and_error(given, tasks, measured, EFFORT)
    gradients = 4 * (VOCAB * 8 + VOCAB) / MIB
    scores = 4 * 64 * VOCAB / MIB
    for facts in found.values():
        assert facts["peak_mib"] - facts["beyond_gradients_mib"] == pytest.approx(gradients)
        assert facts["beyond_gradients_mib"] > scores
    assert list(found) == [PLAIN, OURS]


def test_without_the_plain_form_there_is_no_difference():
    given = problem()

    def fails():
        raise torch.OutOfMemoryError

    ours = Task(lambda: given.step(contestants("softmax")[OURS]), given.clear)
    measured = {name: Measurement({0: 1.0}) for name in (PLAIN, OURS)}
    found = command.memory_and_error(given, {PLAIN: Task(fails), OURS: ours}, measured, EFFORT)
    assert measured[PLAIN].reason == "out of memory"
    assert measured[OURS].reason is None
    assert found.keys() == {OURS}
    assert "gradient_difference" not in found[OURS]


def test_a_wrong_gradient_shows():
    given = problem()
    plain = contestants("softmax")[PLAIN]
    tasks = {
        PLAIN: Task(lambda: given.step(plain), given.clear),
        OURS: Task(lambda: given.step(lambda p: 1.5 * plain(p)), given.clear),
    }
    measured = {name: Measurement({0: 1.0}) for name in tasks}
    found = command.memory_and_error(given, tasks, measured, EFFORT)
    assert found[OURS]["gradient_difference"] == pytest.approx(0.5)


def test_the_record_is_written_after_each_case(run, tmp_path, monkeypatch):
    whole = command.run

    def lost(case, *arguments):
        if case.group == "mixture":
            raise DeviceLostError("illegal memory access")
        return whole(case, *arguments)

    monkeypatch.setattr(command, "run", lost)
    with pytest.raises(SystemExit, match="mixture 10k: a kernel left the GPU unusable"):
        run("--only", "sigsoftmax", "mixture", "plif")
    record = json.loads((tmp_path / "heads-cpu.json").read_text())
    assert [case["group"] for case in record["cases"]] == ["sigsoftmax"]
    assert record["left_out"] == ["mixture 10k", "plif 10k"]


def test_the_budget_ends_the_run(run, tmp_path, monkeypatch):
    whole = command.run

    def slow(case, device, effort):
        found = whole(case, device, EFFORT)
        time.sleep(max(0, effort.deadline - time.perf_counter()))
        return found

    monkeypatch.setitem(command.BUDGETS, "cpu", 0.5)
    monkeypatch.setattr(command, "run", slow)
    record = run("--only", "sigsoftmax", "taylor-softmax")
    assert [case["group"] for case in record["cases"]] == ["sigsoftmax"]
    assert record["left_out"] == ["taylor-softmax 10k"]
    table = (tmp_path / "heads-cpu.md").read_text()
    assert table.endswith("Not reached within the time budget: taylor-softmax 10k.\n")


def test_table():
    def row(name, ms, peak, beyond, **to):
        spread = {"median": ms, "q1": ms, "q3": ms, "n": 5}
        to = {who: {"median": r, "q1": r - 0.1, "q3": r + 0.1, "n": 5} for who, r in to.items()}
        return {"name": name, "reason": None, "ms": spread, "to": to, "peak_mib": peak,
                "beyond_gradients_mib": beyond, "gradient_difference": 2e-7}  # fmt: skip

    rows = [
        row(PLAIN, 200.0, 400.0, 300.0, plain=1.0),
        row(OURS, 150.0, 160.0, 60.0, plain=0.75, Apple=1.5),
        row("Apple", 100.0, 200.0, 100.0, plain=0.5),
        {"name": "Liger", "reason": "out of memory"},
    ]
    case = {"group": "softmax", "vocabulary": "10k", "tokens": 2048, "hidden": 8, "vocab": 10_000}
    where = {"device": "CPU", "cpu": "a CPU", "threads": 2, "commit": None, "started": "now"}
    record = {"environment": {**where, "versions": {"torch": "2", "triton": None}}}
    table = markdown({**record, "cases": [{**case, "meaning": "p", "rows": rows}], "left_out": []})
    ours = "| ours | 150 (150-150) | 0.75 (0.65-0.85) | 5 | 160 | 0.4 | 60 | 0.2 | 2.0e-07 |"
    assert ours in table.splitlines()
    assert "- ours / Apple: time 1.5 (1.4-1.6), peak 0.8" in table.splitlines()
    assert "ours / Liger" not in table
    assert "p; 2,048 tokens, d = 8, V = 10,000." in table
    assert "- Liger: out of memory" in table
    assert "a CPU, 2 threads; torch 2; now, commit unknown." in table


def test_only():
    def chosen(*only):
        whole = cases("cuda", quick=False)
        return [case.name for case in whole if command._wanted(case, only)]

    assert chosen("plif", "mixture") == ["plif 10k", "plif 33k", "plif 128k", "mixture 10k"]
    assert chosen("softmax", "plif", "33k") == ["softmax 33k", "plif 33k"]
    assert len(chosen("10k")) == len(GROUPS)
    assert len(chosen()) == 3 * (len(GROUPS) - 1) + 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "mixture", "128k"], "none of the cases softmax 10k, "),
        (["--only", "sparsemax"], "invalid choice: 'sparsemax'"),
        (["--speed"], "unrecognized arguments"),
    ],
)
def test_bad_arguments(arguments, message, capsys, run):
    with pytest.raises(SystemExit) as error:
        run(*arguments)
    assert error.value.code == 2
    assert message in capsys.readouterr().err


def test_kernels_of_peers_where_there_is_a_gpu(monkeypatch):
    given = problem()
    given.hidden = SimpleNamespace(device=torch.device("cuda"))
    arguments = [given.hidden, given.head.weight, given.targets, given.head.bias]
    function = SimpleNamespace(apply=lambda *own: (own, None, None, None))
    ops = SimpleNamespace(LigerFusedLinearCrossEntropyFunction=function)
    monkeypatch.setitem(sys.modules, "liger_kernel.ops", ops)
    package = SimpleNamespace(linear_cross_entropy=lambda *own, impl: (*own, impl))
    monkeypatch.setitem(sys.modules, "cut_cross_entropy", package)
    assert list(map(id, heads_cases.liger(given))) == list(map(id, arguments))
    *own, kernel = heads_cases.apple(given)
    assert list(map(id, own)) == list(map(id, arguments[:3]))
    assert kernel == "cce"
