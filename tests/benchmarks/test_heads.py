"""Who is compared at output layers, and that all compute the same."""

import sys
from argparse import Namespace
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from benchmarks import heads
from benchmarks.heads import OURS, PLAIN, VOCABULARIES, Contestant, HeadCase, Heads, Problem
from benchmarks.race import Race
from benchmarks.timing import MIB, Effort

CPU = torch.device("cpu")
VOCAB = 50
SUITE = Heads()


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setitem(VOCABULARIES, "10k", VOCAB)


def case(group="softmax", tokens=6):
    return HeadCase(group, "10k", tokens, 8)


def rows(some, **losses):
    """Of everyone, or of the given losses by name."""
    who = [Contestant(name, name, False, loss) for name, loss in losses.items()]
    contestants = who or SUITE.contestants(some, CPU)
    found = SUITE.measure(some, Race(contestants, PLAIN, CPU, Effort(seconds=0, least=2)))
    return {row["name"]: row for row in found["rows"]}


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
    for contestant in SUITE.contestants(case(group), CPU):
        if contestant.name != "Liger":
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
    assert list(found) == [PLAIN, OURS, "Liger", "Apple"]
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


def test_who_takes_part():
    names = {g: [c.name for c in SUITE.contestants(case(g), CPU)] for g in heads.GROUPS}
    assert names.pop("softmax") == [PLAIN, OURS, "ours, unreduced", "Liger"]
    assert names.pop("softmax-no-bias") == [PLAIN, OURS, "Liger", "Apple"]
    assert all(who == [PLAIN, OURS] for who in names.values())
    assert Problem(case("softmax-no-bias"), CPU).head.bias is None
    assert Problem(case("plif"), CPU).head.mapping.options["knots"] == 100_000
    assert Problem(case("mixture"), CPU).head.components == 15


def test_scores_are_spread_as_a_trained_model_has_them():
    given = Problem(case("softmax-no-bias", tokens=2000), CPU)
    assert given.head.scores(given.hidden).std().item() == pytest.approx(3, rel=0.1)


@pytest.mark.parametrize(("device", "tokens"), [("cpu", 2048), ("cuda", 4096)])
def test_what_is_measured(device, tokens):
    found = SUITE.cases(device, Namespace(quick=False))
    for vocabulary in VOCABULARIES:
        assert HeadCase("softmax", vocabulary, tokens, 512) in found
        assert device == "cpu" or HeadCase("plif", vocabulary, tokens, 512) in found
    assert {some.group for some in found} == set(heads.GROUPS)
    (mixture,) = (some for some in found if some.group == "mixture")
    assert mixture.tokens < tokens


def test_without_the_plain_form_there_is_no_difference():
    def fails(problem):
        raise torch.OutOfMemoryError

    found = rows(case(), **{PLAIN: fails, OURS: heads.nll})
    assert found[PLAIN]["reason"] == "out of memory"
    assert found[OURS]["reason"] is None
    assert "gradient_difference" not in found[OURS]


def test_a_wrong_gradient_shows():
    wrong = {PLAIN: heads.cross_entropy, OURS: lambda p: 1.5 * heads.cross_entropy(p)}
    assert rows(case(), **wrong)[OURS]["gradient_difference"] == pytest.approx(0.5)


def test_kernels_of_peers_where_there_is_a_gpu(monkeypatch):
    given = Problem(case(), CPU)
    given.hidden = SimpleNamespace(device=torch.device("cuda"))
    arguments = [given.hidden, given.head.weight, given.targets, given.head.bias]
    function = SimpleNamespace(apply=lambda *own: (own, None, None, None))
    ops = SimpleNamespace(LigerFusedLinearCrossEntropyFunction=function)
    monkeypatch.setitem(sys.modules, "liger_kernel.ops", ops)
    package = SimpleNamespace(linear_cross_entropy=lambda *own, impl: (*own, impl))
    monkeypatch.setitem(sys.modules, "cut_cross_entropy", package)
    assert list(map(id, heads.liger(given))) == list(map(id, arguments))
    *own, kernel = heads.apple(given)
    assert list(map(id, own)) == list(map(id, arguments[:3]))
    assert kernel == "cce"
