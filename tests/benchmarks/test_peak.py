"""Operations counted and reached, and the loop that they are compared with."""

import pytest
import torch

from benchmarks import peak
from benchmarks.peak import FMA, PASSES, Peak, fma_loop, products
from benchmarks.race import Contestant
from benchmarks.sparsity import MAPPINGS, SOFTMAX, Case
from sparse_attn.kernels.cpu import build

TINY = Case("peak", "N=40", 1, 40, 2, 16)


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(Peak, "cases", lambda *arguments: [TINY])
    monkeypatch.setattr(peak, "STEPS", 100)


def test_rows(tiny, bench, tmp_path):
    (case,) = bench("peak")["cases"]
    by = {(row["name"], row["pass"]): row for row in case["rows"]}
    assert all(row["reason"] is None for row in by.values())
    for which, expected in zip(PASSES, (2, 5), strict=True):
        row, loop = by["ours softmax", which], by[FMA, which]
        assert row["gflop"] == pytest.approx(2e-9 * expected * 2 * 40 * 40 * 16)
        assert loop["gflop"] == pytest.approx(fma_loop()(100) / 1e9)
        share = row["gflop"] / loop["gflop"] / row["to"][FMA]["median"]
        assert f"| {share:.0%} |" in (tmp_path / "peak-cpu.md").read_text()


def test_sparse_products_are_those_of_the_weights():
    data = TINY.problem()
    scores = data.query @ data.key.transpose(-2, -1) / 4
    for name in peak.SPARSE:
        weights = (MAPPINGS[name](scores) > 0).float().mean().item()
        assert products(data, "forward", name) == pytest.approx(1 + weights, abs=1e-4)
        assert products(data, "backward", name) == pytest.approx(4 * weights, abs=1e-4)


def test_the_backward_pass_is_timed_alone():
    data = TINY.problem()
    with torch.enable_grad():
        task = peak.task_of(data, "backward", Contestant("ours softmax", SOFTMAX, True))
        for _ in range(2):
            task.prepare()
            assert [tensor.shape for tensor in task.run()] == [data.query.shape] * 3


def test_the_loop_does_what_it_says():
    lanes = {"AVX512": 16, "AVX2": 8}.get(torch.backends.cpu.get_cpu_capability(), 4)
    assert [fma_loop()(steps) for steps in (0, 1, 50)] == [0, 24 * lanes, 50 * 24 * lanes]


def test_without_a_compiler(tiny, bench, monkeypatch, tmp_path):
    fma_loop.cache_clear()
    message = "no C++ compiler was found"
    monkeypatch.setattr(build, "_compiler", lambda: (_ for _ in ()).throw(RuntimeError(message)))
    (case,) = bench("peak")["cases"]
    assert case["rows"][0]["reason"] == f"RuntimeError: {message}"
    assert message in (tmp_path / "peak-cpu.md").read_text()
