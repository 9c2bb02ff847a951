"""Wrong arguments: the message names the argument, what was expected, and what came."""

import pytest
import torch

from sparse_attn import Mapping
from sparse_attn.kernels import attention

SOFTMAX = Mapping("softmax")


def call(impl=None, mapping=SOFTMAX, query=(2, 4, 5, 8), key=(2, 2, 7, 8), value=None, **options):
    """attention of tensors, or of random ones of the shapes given."""
    value = key if value is None else value
    made = [t if torch.is_tensor(t) else torch.randn(t) for t in (query, key, value)]
    return attention(*made, mapping, impl=impl, **options)


WRONG = {
    "query of 3 dimensions": (
        {"query": (4, 5, 8)}, ValueError, r"query: expected 4 dimensions.*\(4, 5, 8\)"),
    "key of 5 dimensions": (
        {"key": (1, 2, 2, 7, 8)}, ValueError, r"key: expected 4 dimensions.*\(1, 2, 2, 7, 8\)"),
    "value of 2 dimensions": (
        {"value": (7, 8)}, ValueError, r"value: expected 4 dimensions.*\(7, 8\)"),
    "integer query": (
        {"query": torch.ones(2, 4, 5, 8, dtype=torch.long)}, TypeError, r"query: .*int64"),
    "complex query": (
        {"query": torch.ones(2, 4, 5, 8, dtype=torch.cfloat)}, TypeError, r"query: .*complex64"),
    "key of another dtype": (
        {"key": torch.ones(2, 2, 7, 8, dtype=torch.float64)}, TypeError,
        r"key: .*float32.*float64.*\.to\("),
    "value of another dtype": (
        {"value": torch.ones(2, 2, 7, 8, dtype=torch.bfloat16)}, TypeError,
        r"value: .*float32.*bfloat16"),
    "key of another batch": (
        {"key": (3, 2, 7, 8)}, ValueError, r"key: expected batch 2 .*\(3, 2, 7, 8\)"),
    "key of another head_dim": (
        {"key": (2, 2, 7, 9)}, ValueError, r"key: .*head_dim 8 .*\(2, 2, 7, 9\)"),
    "heads that do not divide": (
        {"key": (2, 3, 7, 8)}, ValueError, r"key: its heads, 3, must divide .*4"),
    "more key heads than query heads": (
        {"key": (2, 8, 7, 8)}, ValueError, r"key: its heads, 8, must divide .*4"),
    "no key heads": ({"key": (2, 0, 7, 8)}, ValueError, r"key: its heads, 0, must divide .*4"),
    "value of another length": (
        {"value": (2, 2, 6, 8)}, ValueError, r"value: expected .*\(2, 2, 7\).*\(2, 2, 6, 8\)"),
    "value of other heads": (
        {"value": (2, 4, 7, 8)}, ValueError, r"value: expected .*\(2, 2, 7\).*\(2, 4, 7, 8\)"),
    "dropout of 1": ({"dropout": 1.0}, ValueError, r"dropout=1\.0: expected .*\[0, 1\)"),
    "negative dropout": ({"dropout": -0.1}, ValueError, r"dropout=-0\.1: expected"),
    "dropout NaN": ({"dropout": float("nan")}, ValueError, r"dropout=nan: expected"),
    "softcap 0": ({"softcap": 0.0}, ValueError, r"softcap=0\.0: expected .*above 0"),
    "negative softcap": ({"softcap": -3.0}, ValueError, r"softcap=-3\.0: expected"),
    "softcap NaN": ({"softcap": float("nan")}, ValueError, r"softcap=nan: expected"),
    "window 0": ({"window": 0}, ValueError, r"window=0: expected at least 1"),
    "negative window": ({"window": -1}, ValueError, r"window=-1: expected"),
    "scale NaN": ({"scale": float("nan")}, ValueError, r"scale=nan: expected a finite"),
    "scale infinite": ({"scale": float("inf")}, ValueError, r"scale=inf: expected a finite"),
    "additive mask": (
        {"mask": torch.zeros(5, 7)}, TypeError,
        r"mask: expected a boolean.*float32; use `mask.bool\(\)` if 1 = .*, `bias=mask` if it"),
    "integer mask": (
        {"mask": torch.ones(5, 7, dtype=torch.long)}, TypeError,
        r"mask: .*boolean.*int64; use `mask.bool\(\)` if 1 = takes part$"),
    "mask of another length": (
        {"mask": torch.ones(5, 8, dtype=torch.bool)}, ValueError,
        r"mask: shape \(5, 8\) .*\(2, 4, 5, 7\)"),
    "mask of 5 dimensions": (
        {"mask": torch.ones(1, 2, 4, 5, 7, dtype=torch.bool)}, ValueError, r"mask: shape"),
    "mask of (batch, keys)": (
        {"mask": torch.ones(2, 7, dtype=torch.bool)}, ValueError, r"mask: shape \(2, 7\)"),
    "bias of another length": (
        {"bias": torch.zeros(6, 7)}, ValueError, r"bias: shape \(6, 7\) .*\(2, 4, 5, 7\)"),
    "float key_lengths": (
        {"key_lengths": torch.ones(2)}, ValueError, r"key_lengths: expected 2 int.*float32"),
    "key_lengths of another batch": (
        {"key_lengths": torch.ones(3, dtype=torch.long)}, ValueError,
        r"key_lengths: expected 2 int.*\(3,\)"),
    "key_lengths of 2 dimensions": (
        {"key_lengths": torch.ones(2, 1, dtype=torch.long)}, ValueError, r"key_lengths: expected"),
    "boolean key_lengths": (
        {"key_lengths": torch.ones(2, dtype=torch.bool)}, ValueError, r"key_lengths: expected"),
}  # fmt: skip


@pytest.mark.parametrize("impl", [None, "reference", "cpu"])
@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments_are_named(case, impl):
    arguments, error, message = WRONG[case]
    with pytest.raises(error, match=message):
        call(impl, **arguments)


@pytest.mark.parametrize("impl", [None, "reference", "cpu"])
def test_values_per_head_for_other_heads_are_refused(impl):
    with pytest.raises(ValueError, match=r"\br\b|head"):
        call(impl, Mapping("r-softmax", r=[0.1, 0.2, 0.3], num_heads=3))


@pytest.mark.parametrize("impl", [None, "reference", "cpu"])
@pytest.mark.parametrize("shape", [(6,), (3, 7), (2, 2, 4, 5, 7)])
def test_weights_of_another_shape_are_refused(impl, shape):
    with pytest.raises(ValueError, match=r"weights|bias"):
        call(impl, Mapping("weighted-softmax", weights=torch.ones(shape).tolist()))


@pytest.mark.parametrize("impl", ["fast", "", "Triton", "cuda"])
def test_unknown_implementations_are_refused(impl):
    with pytest.raises(ValueError, match=rf"impl='{impl}'.*triton, cpu, flex, reference"):
        call(impl)


def test_softcap_of_infinity_is_no_softcap_or_refused():
    """inf * tanh(x / inf) is NaN."""
    try:
        output = call("reference", softcap=float("inf"))
    except ValueError as error:
        assert "softcap" in str(error)  # noqa: PT017
        return
    assert output.isfinite().all()
