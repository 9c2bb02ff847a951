"""Counting exact zeros."""

import pytest
import torch
from transformers import BertConfig, BertModel

from sparse_attn import patch_model
from sparse_attn.inspection import SparsityRecord, record_sparsity


def test_padding_counts_on_neither_side() -> None:
    weights = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]).view(1, 1, 3, 3)
    mask = torch.tensor([True, True, False]).view(1, 1, 1, 3).expand(1, 1, 3, 3)
    record = SparsityRecord(1)
    record.add(0, weights, mask)
    assert record.counts.flatten().tolist() == [1, 4]
    assert record.mean == 0.25
    record.add(0, weights, None)
    assert record.counts.flatten().tolist() == [1 + 6, 4 + 9]


def test_causal_mask_counts_every_allowed_pair() -> None:
    mask = torch.ones(4, 4).tril().bool().view(1, 1, 4, 4)
    record = SparsityRecord(1)
    record.add(0, mask / mask.sum(-1, keepdim=True), mask)
    assert record.counts.flatten().tolist() == [0, 10]


def test_layers_and_padding_of_a_model() -> None:
    config = BertConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8
    )
    model = BertModel(config).eval()
    patch_model(model, "r-softmax", r=0.5, layers=[1])
    ids = torch.randint(5, 99, (2, 9))
    attended = torch.tensor([[1] * 9, [1] * 5 + [0] * 4])
    with record_sparsity(model) as record, torch.no_grad():
        model(ids, attention_mask=attended)
    # floor(r (n - 1)) + 1 of n: 5 of 9 and 3 of 5
    assert record.per_layer == [0.0, pytest.approx((9 * 5 + 5 * 3) / (81 + 25))]
    assert record.mean == pytest.approx(record.per_layer[1] / 2)
    before = record.counts.clone()
    with torch.no_grad():
        model(ids)
    assert torch.equal(record.counts, before)


def test_unpatched_model() -> None:
    config = BertConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    with (
        pytest.raises(ValueError, match="BertModel is not patched"),
        record_sparsity(BertModel(config)),
    ):
        pass
