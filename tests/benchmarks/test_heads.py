"""Who is compared at output layers, and that all compute the same."""

import sys
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from benchmarks import heads
from benchmarks.heads import OURS, PLAIN, VOCABULARIES, Contestant, HeadCase, Problem
from benchmarks.timing import MIB, Effort, Race

CPU = torch.device("cpu")
VOCAB = 50


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setitem(VOCABULARIES, "10k", VOCAB)


def case(group="softmax", tokens=6):
    return HeadCase(group, "10k", tokens, 8)


def rows(some, **losses):
    """Of everyone, or of the given losses by name."""
    who = [Contestant(name, name, False, loss) for name, loss in losses.items()]
    contestants = who or heads.contestants(some, CPU)
    found = heads.measure(some, Race(contestants, PLAIN, CPU, Effort(seconds=0, least=2)))
    return {row["name"]: row for row in found}


@pytest.mark.parametrize("group", heads.GROUPS)
def test_all_compute_the_same(group, monkeypatch):
    asked = []

    def linear_cross_entropy(e, c, targets, impl):
        asked.append(impl)
        return F.cross_entropy(e @ c.t(), targets)

    package = SimpleNamespace(linear_cross_entropy=linear_cross_entropy)
    monkeypatch.setitem(sys.modules, "cut_cross_entropy", package)
    given = Problem(case(group), CPU)
    found = {}
    absent = ["Liger"] if hasattr(F, "linear_cross_entropy") else ["Liger", "PyTorch, chunked"]
    for contestant in heads.contestants(case(group), CPU):
        if contestant.name not in absent:
            given.clear()
            value = contestant.loss(given)
            value.backward()
            found[contestant.name] = (value.detach(), given.hidden.grad, given.head.weight.grad)
    log_p = given.head.log_prob(given.hidden).detach()
    expected = -log_p[torch.arange(6), given.targets].mean()
    for name, (value, *gradients) in found.items():
        torch.testing.assert_close(value, expected, msg=name)
        for gradient, plain in zip(gradients, found[PLAIN][1:], strict=True):
            torch.testing.assert_close(gradient, plain, msg=name)
            assert gradient.abs().max() > 0
    assert asked == (["torch_compile"] if group == "softmax-no-bias" else [])


def test_rows(monkeypatch):
    monkeypatch.setitem(sys.modules, "cut_cross_entropy", None)
    found = rows(case("softmax-no-bias", tokens=64))
    assert list(found) == [PLAIN, OURS, "PyTorch, chunked", "Liger", "Apple"]
    gradients, scores = 4 * VOCAB * 8 / MIB, 4 * 64 * VOCAB / MIB
    for row in (found[PLAIN], found[OURS]):
        beyond = row["beyond_gradients_mib"]
        assert row["memory_mib"] - beyond == pytest.approx(gradients, rel=1e-3)
        assert beyond > scores
        assert row["gradient_difference"] < 1e-5
    assert found[PLAIN]["gradient_difference"] == 0
    assert found[PLAIN]["to"] == {PLAIN: {"median": 1, "q1": 1, "q3": 1, "n": 2}}
    assert found["Liger"]["reason"] == "Liger needs a GPU"
    assert "cut_cross_entropy" in found["Apple"]["reason"]


def test_a_wrong_gradient_shows():
    wrong = {PLAIN: heads.cross_entropy, OURS: lambda p: 1.5 * heads.cross_entropy(p)}
    assert rows(case(), **wrong)[OURS]["gradient_difference"] == pytest.approx(0.5)
