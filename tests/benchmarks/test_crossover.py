"""Both kinds of products compute the same, each as it says."""

import pytest
import torch

from benchmarks.crossover import DENSE, RATIO, SPARSE, ZEROS, Crossover, forced_kinds
from benchmarks.sparsity import SparsityCase
from sparse_attn import Mapping
from sparse_attn.kernels import cpu
from sparse_attn.kernels.cpu import build
from sparse_attn.kernels.inputs import AttentionInputs
from sparse_attn.kernels.reference import attention as reference

TINY = SparsityCase("crossover", "N=128", 1, 128, 2)


@pytest.mark.slow
def test_products_are_of_their_kind():
    usual = build.library()
    inputs = AttentionInputs(*TINY.problem().inputs, Mapping("r-softmax", r=0.6))
    expected = reference(inputs).output
    with forced_kinds() as use:
        for kind in (SPARSE, DENSE):
            use(kind)
            out, _, found, columns, *_ = cpu._forward(
                *inputs.for_operator(), None, False, True, True
            )
            torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
            assert (found[..., 1] >= 0).all() == (kind == SPARSE)
            assert (columns.numel() > 0) == (kind == SPARSE)
    assert build.library() is usual


@pytest.mark.slow
def test_rows(bench, monkeypatch, tmp_path):
    monkeypatch.setattr(Crossover, "cases", lambda *arguments: [TINY])
    (case,) = bench("crossover")["cases"]
    ratios = [
        row["to"][f"{DENSE} {row['mapping'][2:]}"] for row in case["rows"] if SPARSE in row["name"]
    ]
    assert len(ratios) == 2 * len(ZEROS)
    page = (tmp_path / "crossover-cpu.md").read_text()
    assert f"forward, {RATIO}" in page
    assert page.count("\n| ") == 2 + len(ZEROS)


def test_without_a_compiler(monkeypatch):
    monkeypatch.setattr(
        build, "_compiler", lambda: (_ for _ in ()).throw(RuntimeError("no compiler"))
    )
    with pytest.raises(RuntimeError, match="no compiler"), forced_kinds():
        pass
