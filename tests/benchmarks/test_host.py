"""What a layer costs the host: every contestant runs both passes, with kernels that do nothing."""

import torch

from benchmarks.host import DISPATCHED, INTEGRATION, MAPPINGS, OURS, PASSES, Host, HostCase, stubbed
from sparse_attn.kernels import attention, triton

TINY = [HostCase("host", "plain", False, layers=3), HostCase("host", "BERT", True, layers=2)]


def test_rows(bench, monkeypatch):
    monkeypatch.setattr(Host, "cases", lambda *arguments: TINY)
    for case in bench("host")["cases"]:
        for which in PASSES:
            rows = {row["name"]: row for row in case["rows"] if row["pass"] == which}
            ours = [f"{OURS} {label}" for label in MAPPINGS]
            assert list(rows) == [INTEGRATION, f"{DISPATCHED} softmax", *ours]
            assert all(row["reason"] is None for row in rows.values())


def test_only_the_kernels_are_replaced():
    query = torch.randn(1, 2, 5, 16, requires_grad=True)
    before = vars(triton.launch).copy()
    with stubbed():
        out = attention(query, query, query, MAPPINGS["sparsemax"])
        assert out.shape == query.shape
        assert "Direct" in type(out.grad_fn).__name__
        assert torch.autograd.grad(out.sum(), query)[0].shape == query.shape
    assert vars(triton.launch) == before
