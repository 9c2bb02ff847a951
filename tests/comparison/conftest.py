"""Tiny models with sharp attention, saved with their tokenizer."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
)

from tests.comparison.running import Models
from tests.letters import letter_tokenizer


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """Folders: an encoder, a causal model, a classifier of two labels, and a regression."""
    tokenizer = letter_tokenizer()
    common = {"vocab_size": len(tokenizer), "initializer_range": 0.6}
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    bert = {**common, **sizes, "intermediate_size": 32, "max_position_embeddings": 64}
    labels = {"id2label": {0: "0", 1: "1"}, "label2id": {"0": 0, "1": 1}}

    def save(name: str, cls: Any, config: Any) -> Path:
        folder = tmp_path_factory.mktemp(name)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            cls(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return folder

    gpt2 = GPT2Config(**common, n_embd=16, n_layer=2, n_head=2, n_positions=64)
    return Models(
        save("encoder", BertModel, BertConfig(**bert)),
        save("causal", GPT2LMHeadModel, gpt2),
        save("classifier", BertForSequenceClassification, BertConfig(**bert, **labels)),
        save("regression", BertForSequenceClassification, BertConfig(**bert, num_labels=1)),
    )
