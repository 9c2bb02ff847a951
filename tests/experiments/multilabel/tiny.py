"""Models of a moment: a BERT that reads letters, a ResNet with two stages."""

from pathlib import Path

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertTokenizerFast,
    ResNetConfig,
    ResNetForImageClassification,
)


def tiny_bert(folder: Path) -> Path:
    """Weights and tokenizer in a folder; 64 positions."""
    letters = "abcdefghijklmnopqrstuvwxyz0123456789.,!?'\""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{c}" for c in letters)]
    BertTokenizerFast(vocab={word: i for i, word in enumerate(words)}).save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
        initializer_range=0.3,  # for hidden states that tell texts apart
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        BertForSequenceClassification(config).save_pretrained(folder)
    return folder


def tiny_resnet(folder: Path) -> Path:
    """Weights in a folder, for hidden states of 16."""
    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        ResNetForImageClassification(config).save_pretrained(folder)
    return folder
