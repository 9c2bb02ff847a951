"""The statistics of rows that the CPU kernels count on the way, beside those of the weights."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from sparse_attn import Mapping
from sparse_attn.kernels import cpu, dispatch, reference, statistics
from sparse_attn.kernels.call import Call
from tests.kernels.problems import SETTINGS


def make_call(name: str, dtype: torch.dtype = torch.float64, **options: Any) -> Call:
    """Two sequences of 37 and 20 tokens, one row of which sees nothing."""
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 4, 37, 8, dtype=dtype) for _ in range(3))
    mask = torch.ones(2, 1, 37, 37, dtype=torch.bool)
    mask[1, ..., 20:] = False
    mask[0, :, 5] = False
    return Call(query, key, value, Mapping(name, **options), mask=mask, causal=True)


def special_keys() -> Tensor:
    return (torch.arange(37) % 7 == 0).expand(2, -1)


@pytest.mark.parametrize(("name", "parameters"), SETTINGS, ids=str)
def test_kernel_counts_as_the_weights_say(name: str, parameters: dict[str, Any]) -> None:
    call = make_call(name, **parameters)
    output, rows = cpu.attention_and_statistics(call, special_keys())
    weights = reference.attention_and_weights(call)[1]
    expected = statistics.of_weights(weights, reference.valid(call), special_keys())
    torch.testing.assert_close(rows, expected, atol=1e-12, rtol=1e-12)
    assert torch.equal(output, cpu.attention(call))
    assert rows[0, :, 5].eq(0).all()


def test_what_the_columns_hold() -> None:
    weights = torch.tensor([[[[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]]])
    valid = torch.tensor([[True, True, True], [True, True, False], [False, False, False]])
    special = torch.tensor([[True, False, True]])
    rows = statistics.of_weights(weights, valid, special)[0, 0]
    expected = [[1, 3, 2, 0.5**0.5, 0.5, 1], [1, 2, 1, 0, 1, 1], [0, 0, 0, 0, 0, 0]]
    expected[0][3] = torch.log(torch.tensor(2.0)).item()
    torch.testing.assert_close(rows, torch.tensor(expected))
    assert statistics.of_weights(weights, valid, None)[..., 4:].eq(0).all()


def test_dropout_is_not_measured() -> None:
    call = make_call("r-softmax", r=0.4)
    dropping = Call(
        call.query, call.key, call.value, call.mapping, call.mask, causal=True, dropout=0.5
    )
    torch.manual_seed(1)
    output, rows = cpu.attention_and_statistics(dropping, special_keys())
    torch.manual_seed(1)
    assert torch.equal(output, cpu.attention(dropping))
    assert torch.equal(rows, cpu.attention_and_statistics(call, special_keys())[1])


def test_gradients_are_those_of_the_unmeasured_call() -> None:
    grads = []
    for measured in (True, False):
        call = make_call("entmax", alpha=1.3)
        inputs = [tensor.requires_grad_() for tensor in (call.query, call.key, call.value)]
        run = dispatch.run_measured(call, None)[0] if measured else dispatch.run(call)
        grads.append(torch.autograd.grad(run.square().sum(), inputs))
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


def test_blocks_of_queries_join(monkeypatch: pytest.MonkeyPatch) -> None:
    call = make_call("r-softmax", r=0.4)
    whole = statistics.of_call(call, special_keys())
    monkeypatch.setattr(statistics, "BLOCK", 2 * 4 * 37 * 5)
    blocks = statistics.of_call(call, special_keys())
    torch.testing.assert_close(blocks, whole, atol=1e-12, rtol=1e-12)
    bias = torch.randn(37, 37, dtype=torch.float64)
    bias[:, 3], bias[9] = -torch.inf, -torch.inf
    banded = Call(
        call.query, call.key, call.value, call.mapping, bias=bias, window=6,
        key_lengths=torch.tensor([37, 20]),
    )  # fmt: skip
    expected = cpu.attention_and_statistics(banded, None)[1]
    torch.testing.assert_close(statistics.of_call(banded, None), expected, atol=1e-12, rtol=1e-12)


def test_infinity_in_a_bias_hides_a_key_as_a_mask_does() -> None:
    bias = torch.zeros(1, 1, 37, 37, dtype=torch.float64)
    bias[..., 3] = -torch.inf
    call = replace(make_call("sparsemax"), bias=bias)
    hidden = make_call("sparsemax")
    hidden.mask[..., 3] = False
    for count in (cpu.attention_and_statistics, lambda *given: (None, statistics.of_call(*given))):
        rows, expected = count(call, special_keys())[1], count(hidden, special_keys())[1]
        torch.testing.assert_close(rows, expected, atol=1e-12, rtol=1e-12)


def test_only_a_spoiled_row_is_nan() -> None:
    call = make_call("sparsemax")
    call.query[1, 2, 7, 0] = torch.nan
    for rows in (
        cpu.attention_and_statistics(call, special_keys())[1],
        statistics.of_call(call, special_keys()),
    ):
        spoiled = rows.isnan().any(-1).nonzero().tolist()
        assert spoiled == [[1, 2, 7]]


def test_half_precision_is_measured_before_it_is_rounded() -> None:
    call = make_call("softmax", torch.float16)
    call.query.mul_(8)
    weights = reference.attention_and_weights(call)[1]
    for rows in (
        cpu.attention_and_statistics(call, None)[1],
        statistics.of_call(call, None),
        statistics.of_weights(weights, reference.valid(call), None),
    ):
        assert rows.dtype == torch.float32
        # the smallest p are zeros in float16, which softmax has none of
        assert torch.equal(rows[..., 1], rows[..., 2])
    assert weights.half()[0, :, -1].eq(0).any()


def test_no_keys_and_no_queries() -> None:
    mapping = Mapping("softmax")
    for queries, keys in ((0, 3), (3, 0)):
        query, key = torch.randn(1, 2, queries, 4), torch.randn(1, 2, keys, 4)
        output, rows = dispatch.run_measured(Call(query, key, key, mapping), None)
        assert output.shape == (1, 2, queries, 4)
        assert rows.shape == (1, 2, queries, len(statistics.COLUMNS))
        assert rows.eq(0).all()
