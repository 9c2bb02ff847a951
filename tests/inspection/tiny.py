"""A small BERT, and what it does to two rows, of which one is padded."""

from typing import Any

import torch
from transformers import BertConfig, BertModel

from sparse_attn import patch_model
from sparse_attn.inspection import AttentionRecord, record_attention
from tests.hf.families import BERT

IDS = torch.tensor([[5, 6, 7, 8, 9, 10, 11], [5, 6, 7, 8, 0, 0, 0]])
MASK = (IDS != 0).long()
TOKENS = ["$a$", "x_1", r"$\frac", "\n", "_", "100 %", "$"]


def bert(**changes: Any) -> BertModel:
    torch.manual_seed(0)
    return BertModel(BertConfig(**{**BERT, **changes})).eval()


def sharp_bert(mapping: str = "", **arguments: Any) -> BertModel:
    """Three layers whose attention is far from uniform, patched if a mapping is named."""
    model = bert(num_hidden_layers=3, initializer_range=0.5)
    return patch_model(model, mapping, **arguments) if mapping else model


def recorded(model: BertModel, **arguments: bool) -> AttentionRecord:
    with record_attention(model, **arguments) as record, torch.no_grad():
        model(IDS, attention_mask=MASK)
    return record
