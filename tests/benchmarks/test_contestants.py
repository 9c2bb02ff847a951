"""Contestants compute what they say; what cannot be done becomes a reason."""

import importlib

import pytest
import torch

from benchmarks import attention, contestants, peers
from benchmarks.cases import GROUPS, MRPC_79, MRPC_103, Case, cases, problem
from benchmarks.timing import Effort
from sparse_attn import mapping_names
from sparse_attn.mappings import get_spec

CPU = torch.device("cpu")
TINY = Case("tiny", "attention", 2, 9, 2, 4, lengths=(5, 9), few=True, caches=("",))
FEW = Effort(0, least=2)


def rows(case=TINY, skip=None):
    return attention.run(case, CPU, FEW, skip)


def test_all_that_run_agree_with_the_reference():
    found = rows()
    forward = {row["name"]: row for row in found if row["pass"] == "forward"}
    measured = [row for row in forward.values() if row["reason"] is None]
    assert {"SDPA", "eager softmax", "ours r-softmax", "entmax sparsemax"} <= {
        row["name"] for row in measured
    }
    assert all(row["max_error"] < 1e-5 for row in measured)
    assert all(row["ms"]["n"] == 2 and row["memory_mib"] > 0 for row in measured)
    assert forward["Liger sparsemax"]["reason"] == "Liger needs a GPU"
    assert forward["ours entmax"]["to_peers"].keys() == {"entmax entmax15"}
    assert forward["SDPA"]["to_sdpa"]["median"] == 1


def test_gradients_agree_too():
    measured = [r for r in rows() if r["pass"] == "forward+backward" and r["reason"] is None]
    assert len(measured) > 5
    assert all(row["gradient_error"] < 1e-4 for row in measured)


def test_a_wrong_contestant_is_not_timed(monkeypatch):
    monkeypatch.setattr(peers, "eager", lambda problem: lambda q, k, v: v)
    found = [row for row in rows() if row["name"] == "eager softmax"]
    assert [row["pass"] for row in found] == ["forward", "forward+backward"]
    for row in found:
        assert "wrong: differs from the float32 reference" in row["reason"]
        assert "ms" not in row


def test_wrong_gradients_are_not_timed(monkeypatch):
    true = peers.eager

    def tripled(problem):
        forward = true(problem)
        return lambda q, k, v: forward(q, k, v) * 3 - 2 * forward(q, k, v).detach()

    monkeypatch.setattr(peers, "eager", tripled)
    found = {row["pass"]: row for row in rows() if row["name"] == "eager softmax"}
    assert found["forward"]["reason"] is None
    assert "wrong: its gradients differ" in found["forward+backward"]["reason"]


def test_skip():
    assert not any("entmax" in row["name"] for row in rows(skip="entmax"))


def test_a_library_that_is_not_there(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ModuleNotFoundError, match="not installed: pip install entmax"):
        peers.entmax("sparsemax")(problem(TINY, CPU))


def test_adasplash_gets_lengths_where_it_needs_them(monkeypatch):
    monkeypatch.setattr(peers, "_needs_cuda", lambda problem, who: None)
    assert peers._varlen(problem(TINY, CPU)).tolist() == [5, 9]
    full = Case("full", "attention", 2, 12, 2, 4)
    assert peers._varlen(problem(full, CPU)).tolist() == [12, 12]
    power = Case("power", "attention", 2, 16, 2, 4)
    assert peers._varlen(problem(power, CPU)) is None
    with pytest.raises(NotImplementedError, match="no dropout"):
        peers._varlen(problem(Case("drop", "attention", 2, 16, 2, 4, dropout=0.1), CPU))


def test_too_little_memory_is_a_reason(monkeypatch):
    monkeypatch.setattr(peers, "_available", lambda: 1000)
    with pytest.raises(NotImplementedError, match="would need about"):
        peers.eager(problem(TINY, CPU))


def test_mappings_are_all_those_with_a_kernel():
    fused = {name for name in mapping_names() if get_spec(name).kernel is not None}
    assert contestants.MAPPINGS.keys() == fused


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("quick", [False, True])
def test_cases(device, quick):
    found = cases(device, quick)
    assert len({(c.group, c.name) for c in found}) == len(found)
    for case in found:
        assert case.group in GROUPS
        assert case.lengths is None or (
            len(case.lengths) == case.batch and max(case.lengths) == case.length
        )


def test_lengths_are_those_of_mrpc():
    for lengths in (MRPC_79, MRPC_103):
        assert sum(lengths) / len(lengths) == pytest.approx(53.2, abs=0.5)
