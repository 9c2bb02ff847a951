"""Who takes part in attention and training steps, and that all compute what they say."""

import functools
import importlib
from dataclasses import replace

import pytest
import torch

from benchmarks.attention import contestants, peers
from benchmarks.attention.cases import AttentionCase, cases, problem
from benchmarks.attention.measuring import everyone, measure
from benchmarks.timing import Effort, Race

CPU = torch.device("cpu")
TINY = AttentionCase("attention", "tiny", 2, 9, 2, 4, lengths=(5, 9), few=True)


def rows():
    """By name and pass."""
    race = Race(everyone(TINY, CPU), TINY.base, CPU, Effort(0, least=2))
    return {(row["name"], row["pass"]): row for row in measure(TINY, race)}


@pytest.mark.slow
def test_all_that_run_agree_with_the_reference():
    found = rows()
    for which, error, bound in [
        ("forward", "max_error", 1e-5),
        ("forward+backward", "gradient_error", 1e-4),
    ]:
        measured = {name: row for (name, p), row in found.items() if p == which and "ms" in row}
        assert {"SDPA", "eager softmax", "ours r-softmax", "entmax sparsemax"} <= measured.keys()
        assert all(row[error] < bound for row in measured.values())
        assert all(row["ms"]["n"] == 2 and row["memory_mib"] > 0 for row in measured.values())
    peers_of_entmax = found["ours entmax", "forward"]["to"].keys()
    assert peers_of_entmax == {"SDPA", "entmax entmax15"}
    assert found["SDPA", "forward"]["to"]["SDPA"]["median"] == 1


def change_eager(monkeypatch, make):
    changed = replace(contestants.PEERS["eager softmax"], make=make)
    monkeypatch.setitem(contestants.PEERS, "eager softmax", changed)


def test_a_wrong_contestant_is_not_timed(monkeypatch):
    change_eager(monkeypatch, lambda problem: lambda q, k, v: v)
    found = rows()
    for which in ("forward", "forward+backward"):
        row = found["eager softmax", which]
        assert "wrong: differs from the float32 reference" in row["reason"]
        assert "ms" not in row


def test_wrong_gradients_are_not_timed(monkeypatch):
    def tripled(problem):
        forward = peers.eager(problem)
        return lambda q, k, v: forward(q, k, v) * 3 - 2 * forward(q, k, v).detach()

    change_eager(monkeypatch, tripled)
    found = rows()
    assert found["eager softmax", "forward"]["reason"] is None
    assert "wrong: its gradients differ" in found["eager softmax", "forward+backward"]["reason"]


def test_a_library_that_is_not_there(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ModuleNotFoundError, match="not installed: pip install entmax"):
        peers.entmax("sparsemax")(problem(TINY, CPU))


@pytest.mark.parametrize("change", [{"window": 3}, {"queries": 2, "lengths": None}])
def test_windows_and_few_queries_are_the_same_for_all(change):
    case = replace(TINY, **change)
    data = problem(case, CPU)
    makers = (
        functools.partial(peers.sdpa, backend=None),
        peers.eager,
        *(contestants.ours("softmax", impl, by).make
          for impl, by in ((None, "mask"), (None, "key_lengths"), ("reference", "mask"))),
    )  # fmt: skip
    found = [make(data)(*data.inputs) for make in makers]
    plain = peers.eager(problem(TINY, CPU))(*problem(TINY, CPU).inputs)
    assert found[0].shape == (2, 2, change.get("queries", 9), 4)
    for row, valid in enumerate(case.lengths or (9, 9)):
        outs = [out[row, :, :valid] for out in found]
        for other in outs[1:]:
            torch.testing.assert_close(other, outs[0])
        if case.window:
            assert not torch.allclose(outs[0], plain[row, :, :valid])


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("quick", [False, True])
def test_cases(device, quick):
    found = cases(device, quick)
    assert len({(c.group, c.name) for c in found}) == len(found)
    for case in found:
        names = [c.name for c in everyone(case, torch.device(device))]
        assert len(set(names)) == len(names)
        assert case.base in names
        assert case.lengths is None or (
            len(case.lengths) == case.batch and max(case.lengths) == case.length
        )


def test_share_of_zeros():
    data = problem(AttentionCase("sparsity", "", 1, 40, 2, 8, spread=2.0), CPU)
    scores = data.query @ data.key.transpose(-2, -1) * 8**-0.5
    for title in contestants.ZEROS:
        mapping = contestants.mapping_of(title)
        expected = (mapping(scores) == 0).float().mean().item()
        assert contestants.share_of_zeros(data, mapping) == pytest.approx(expected, abs=1e-4), title
