"""Exact weights as sparse rows, beside those of the reference."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from torch import Tensor

from sparse_attn import Mapping
from sparse_attn.kernels import cpu, reference
from sparse_attn.kernels.inputs import AttentionInputs
from sparse_attn.kernels.sparse_rows import SparseRows, sparse_rows
from tests.kernels.problems import SETTINGS

SPARSE = [
    ("top-p-softmax", {"p": 0.90625}),
    ("sparsemax", {}),
    ("sparsehourglass", {"q": 0.5}),
    ("r-softmax", {"r": 0.8125}),
    ("softpick", {}),
]


def tensors(queries: int, keys: int, batch: int = 2, **like: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Six heads of queries over three of keys."""
    torch.manual_seed(0)
    query = 2 * torch.randn(batch, 6, queries, 8, **like)
    return query, torch.randn(batch, 3, keys, 8, **like), torch.randn(batch, 3, keys, 4, **like)


def assert_equal(found: SparseRows, inputs: AttentionInputs) -> None:
    """The rows are exactly the reference's weights above the threshold, no entry more."""
    weights = reference.exact_weights(replace(inputs, dropout=0.0))
    for (sequence, head), matrix in found.to_scipy().items():
        expected = weights[sequence, head][found.queries]
        expected = expected.where(~(expected <= found.threshold), 0)
        assert (matrix.data != 0).all()
        assert matrix.has_canonical_format
        torch.testing.assert_close(found[sequence, head].to_dense(), expected, equal_nan=True)
        np.testing.assert_array_equal(matrix.toarray(), found[sequence, head].to_dense())


MASKS: dict[str, dict[str, Any]] = {
    "all": {},
    "mask": {"mask": torch.rand(2, 1, 70, 90, generator=torch.Generator().manual_seed(1)) < 0.8},
    "padding": {"mask": (torch.arange(90) < torch.tensor([[90], [40]]))[:, None, None]},
    "mask by head": {
        "mask": torch.rand(6, 70, 90, generator=torch.Generator().manual_seed(2)) < 0.8
    },
    "causal window": {"causal": True, "window": 20},
    "lengths": {"key_lengths": torch.tensor([90, 33])},
    "bias": {"bias": torch.randn(6, 70, 90, generator=torch.Generator().manual_seed(3))},
    "softcap": {"softcap": 2.0},
    "sink": {"sink": torch.linspace(-1, 2, 6)},
    "dropout": {"dropout": 0.5},
}


@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize(("name", "values"), SPARSE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows(name: str, values: Any, masks: str, dtype: torch.dtype) -> None:
    if masks == "sink" and name == "softpick":
        pytest.skip("has no sink")
    given = {n: v.to(dtype) if n == "bias" else v for n, v in MASKS[masks].items()}
    inputs = AttentionInputs(*tensors(70, 90, dtype=dtype), Mapping(name, **values), **given)
    assert_equal(sparse_rows(inputs), inputs)
    few = sparse_rows(inputs, heads=[5, 0, -2], queries=[3, -1, 50, 99, 50])
    assert (few.heads, few.queries) == ([5, 0, 4], [3, 50, 69])
    assert_equal(few, inputs)


@pytest.mark.parametrize(("name", "values"), SETTINGS)
def test_weights_above_a_threshold(name: str, values: Any) -> None:
    inputs = AttentionInputs(*tensors(20, 50), Mapping(name, **values))
    assert_equal(sparse_rows(inputs, threshold=0.03), inputs)


@pytest.mark.parametrize("threads", [pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize(("name", "values"), SPARSE[:3])
def test_long_rows_in_tiles_and_segments(name: str, values: Any, threads: int) -> None:
    """The rows are in order, whichever thread found them."""
    # in float32, an entry at the edge of the support may be rounded to either side
    query, key, value = tensors(1000, 1000, batch=1, dtype=torch.float64)
    inputs = AttentionInputs(query, key, value, Mapping(name, **values), causal=True)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = sparse_rows(inputs)
    finally:
        torch.set_num_threads(before)
    assert_equal(found, inputs)


def test_the_kernels_and_the_reference_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = AttentionInputs(*tensors(60, 80), Mapping("top-p-softmax", p=0.75), causal=True)
    ours = sparse_rows(inputs, heads=[1, 2], queries=range(0, 60, 7))
    assert cpu.unsupported_reason(inputs) is None
    # in several parts
    monkeypatch.setattr(reference, "BLOCK", 2 * 6 * 80 * 2)
    monkeypatch.setattr("sparse_attn.kernels.sparse_rows.MASKED", 2 * 80 * 4)
    parts = sparse_rows(inputs, heads=[1, 2], queries=range(0, 60, 7))
    monkeypatch.setattr(cpu, "unsupported_reason", lambda _: "")
    theirs = sparse_rows(inputs, heads=[1, 2], queries=range(0, 60, 7))
    for other in (parts, theirs):
        assert torch.equal(ours.starts, other.starts)
        assert torch.equal(ours.columns, other.columns)
        torch.testing.assert_close(ours.weights, other.weights)


@pytest.mark.parametrize(("name", "values"), SPARSE[:3])
def test_packed_sequences_are_blocks(name: str, values: Any) -> None:
    query, key, value = tensors(50, 50, batch=1)
    ends = torch.tensor([0, 20, 21, 50])
    inputs = AttentionInputs(query, key, value, Mapping(name, **values), cu_seqlens=ends)
    assert_equal(sparse_rows(inputs), inputs)
    assert_equal(sparse_rows(inputs, heads=[2], queries=[19, 20, 21]), inputs)


@pytest.mark.parametrize("name", ["sparsemax", "top-p-softmax", "sparsehourglass"])
def test_nan_stays_in_its_rows(name: str) -> None:
    query, key, value = tensors(40, 40)
    query[0, 1, 7] = torch.nan
    inputs = AttentionInputs(query, key, value, Mapping(name), causal=True)
    found = sparse_rows(inputs)
    assert int(found.weights.isnan().sum()) == 8
    assert_equal(found, inputs)


def test_half_precision_gives_float32() -> None:
    inputs = AttentionInputs(*tensors(20, 30, dtype=torch.bfloat16), Mapping("sparsemax"))
    found = sparse_rows(inputs)
    assert found.weights.dtype == torch.float32
    assert_equal(found, inputs)


@pytest.mark.parametrize(("queries", "keys"), [(0, 5), (5, 0), (1, 1)])
def test_empty_calls(queries: int, keys: int) -> None:
    inputs = AttentionInputs(*tensors(queries, keys), Mapping("sparsemax"))
    found = sparse_rows(inputs)
    assert found.shape == (2, 6, queries, keys)
    assert len(found.weights) == 2 * 6 * queries * keys
    assert sparse_rows(inputs, queries=[]).shape == (2, 6, 0, keys)


def test_rows_without_keys_are_empty() -> None:
    mask = torch.ones(2, 1, 20, 30, dtype=torch.bool)
    mask[0, 0, 4] = False
    inputs = AttentionInputs(*tensors(20, 30), Mapping("sparsemax"), mask=mask)
    found = sparse_rows(inputs)
    assert int(found.starts[0, 0, 5] - found.starts[0, 0, 4]) == 0
    assert_equal(found, inputs)


def test_files(tmp_path: Path) -> None:
    inputs = AttentionInputs(*tensors(20, 30), Mapping("sparsemax"))
    found = sparse_rows(inputs, heads=[1, 4])
    found.to_npz(tmp_path / "rows.npz")
    with np.load(tmp_path / "rows.npz") as file:
        starts = file["starts"][1, 1]
        own = slice(starts[0], starts[-1])
        parts = (file["weights"][own], file["columns"][own], starts - starts[0])
        matrix = csr_array(parts, (len(file["queries"]), int(file["keys"])))
        assert file["heads"].tolist() == [1, 4]
    np.testing.assert_array_equal(matrix.toarray(), found.to_scipy()[1, 4].toarray())


def test_wrong_heads() -> None:
    inputs = AttentionInputs(*tensors(5, 5), Mapping("sparsemax"))
    with pytest.raises(IndexError, match="heads: there is no head 6; the layer has 6"):
        sparse_rows(inputs, heads=[6])
    with pytest.raises(IndexError, match=r"head 2 was not kept; the heads are \[1\]"):
        sparse_rows(inputs, heads=[1])[0, 2]
