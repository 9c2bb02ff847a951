"""The statistics of rows that the CPU kernels count on the way, beside those of the weights."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from sparse_attn import Mapping
from sparse_attn.kernels import reference, statistics
from sparse_attn.kernels.dispatch import run
from sparse_attn.kernels.inputs import AttentionInputs
from tests.kernels.problems import SETTINGS, SOLVERS


def make_inputs(name: str, dtype: torch.dtype = torch.float64, **options: Any) -> AttentionInputs:
    """Two sequences of 37 and 20 tokens, one row of which sees nothing."""
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 4, 37, 8, dtype=dtype) for _ in range(3))
    mask = torch.ones(2, 1, 37, 37, dtype=torch.bool)
    mask[1, ..., 20:] = False
    mask[0, :, 5] = False
    return AttentionInputs(
        query, key, value, Mapping(name, **options), mask=mask, causal=True, need_statistics=True,
        special_keys=(torch.arange(37) % 7 == 0).expand(2, -1),
    )  # fmt: skip


def counts(inputs: AttentionInputs) -> list[Tensor]:
    """The statistics by each who counts: the kernels, the reference, and this block by block."""
    found = [run(inputs, impl).statistics for impl in ("cpu", "reference")]
    return [*(rows for rows in found if rows is not None), reference.row_statistics(inputs)]


def assert_equal(inputs: AttentionInputs, expected: Tensor | None = None) -> None:
    rows, *others = counts(inputs)
    for other in others if expected is None else (rows, *others):
        torch.testing.assert_close(
            other, rows if expected is None else expected, atol=1e-12, rtol=1e-12
        )


SINKS = [(name, {**parameters, "sink": 0.5}) for name, parameters in SOLVERS]


@pytest.mark.parametrize(("name", "parameters"), [*SETTINGS, *SINKS], ids=str)
def test_all_count_alike(name: str, parameters: dict[str, Any]) -> None:
    inputs = make_inputs(name, **parameters)
    assert_equal(inputs)
    output, _, rows = run(inputs, "cpu")
    assert torch.equal(output, run(replace(inputs, need_statistics=False), "cpu").output)
    assert rows is not None
    assert rows[0, :, 5].eq(0).all()


def test_what_the_columns_hold() -> None:
    """Entropy is that of the row divided by its mass."""
    rows = [[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.25, 0.25, 0.0]]
    weights = torch.tensor([[rows]])
    valid = torch.tensor([[True] * 3, [True, True, False], [False] * 3, [True] * 3])
    special = torch.tensor([[True, False, True]])
    found = statistics.of_weights(weights, valid, special)[0, 0]
    bit = math.log(2)
    expected = [
        [1, 3, 2, bit, 0.5, 1, 1],
        [1, 2, 1, 0, 1, 1, 1],
        [0, 0, 0, 0, 0, 0, 0],
        [1, 3, 2, bit, 0.25, 1, 0.5],
    ]
    torch.testing.assert_close(found, torch.tensor(expected))
    assert statistics.of_weights(weights, valid, None)[..., 4:6].eq(0).all()


def test_dropout_is_not_measured() -> None:
    inputs = make_inputs("r-softmax", r=0.4)
    dropping = replace(inputs, dropout=0.5)
    torch.manual_seed(1)
    output = run(dropping).output
    torch.manual_seed(1)
    assert torch.equal(output, run(replace(dropping, need_statistics=False)).output)
    assert_equal(dropping, run(inputs).statistics)


def test_blocks_of_queries_join(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = make_inputs("r-softmax", r=0.4)
    monkeypatch.setattr(reference, "BLOCK", 2 * 4 * 37 * 5)
    assert_equal(inputs)
    bias = torch.randn(37, 37, dtype=torch.float64)
    bias[:, 3], bias[9] = -torch.inf, -torch.inf
    lengths = torch.tensor([37, 20])
    assert_equal(replace(inputs, mask=None, causal=False, bias=bias, window=6, key_lengths=lengths))


@pytest.mark.parametrize("name", ["sparsemax", "plif"])
def test_infinity_in_a_bias_hides_a_key_as_a_mask_does(name: str) -> None:
    bias = torch.zeros(1, 1, 37, 37, dtype=torch.float64)
    bias[..., 3] = -torch.inf
    hidden = make_inputs(name)
    biased = replace(hidden, bias=bias, mask=hidden.mask.clone())
    hidden.mask[..., 3] = False
    if name == "sparsemax":
        assert_equal(biased, run(hidden).statistics)
    torch.testing.assert_close(run(biased).statistics, run(hidden).statistics)


def test_only_a_spoiled_row_is_nan() -> None:
    inputs = make_inputs("sparsemax")
    inputs.query[1, 2, 7, 0] = torch.nan
    for rows in counts(inputs):
        assert rows.isnan().any(-1).nonzero().tolist() == [[1, 2, 7]]


def test_half_precision_is_measured_before_it_is_rounded() -> None:
    inputs = make_inputs("softmax", torch.float16)
    inputs.query.mul_(8)
    for rows in counts(inputs):
        assert rows.dtype == torch.float32
        # the smallest p are zeros in float16, which softmax has none of
        assert torch.equal(rows[..., 1], rows[..., 2])
    assert reference.exact_weights(inputs).half()[0, :, -1].eq(0).any()


def test_no_keys_and_no_queries() -> None:
    for queries, keys in ((0, 3), (3, 0)):
        query, key = torch.randn(1, 2, queries, 4), torch.randn(1, 2, keys, 4)
        inputs = AttentionInputs(query, key, key, Mapping("softmax"), need_statistics=True)
        assert run(inputs).output.shape == (1, 2, queries, 4)
        for rows in counts(inputs):
            assert rows.shape == (1, 2, queries, len(statistics.COLUMNS))
            assert rows.eq(0).all()


@pytest.mark.parametrize("name", ["sparsemax", "top-p-softmax", "entmax"])
def test_counting_changes_no_gradient(name: str) -> None:
    """Not even that of a sink, which is no key that is counted."""
    inputs = make_inputs(name)
    sink = torch.full((inputs.query.shape[1],), 1.5, dtype=torch.float64)
    inputs = replace(inputs, sink=sink)
    leaves = [t.requires_grad_() for t in (inputs.query, inputs.key, inputs.value, sink)]
    found = [
        torch.autograd.grad(
            run(replace(inputs, need_statistics=counted), "cpu").output.square().sum(), leaves
        )
        for counted in (False, True)
    ]
    assert found[0][3].any()
    assert all(map(torch.equal, *found))
