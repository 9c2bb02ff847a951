"""A tiny BERT with sharp attention, texts and pairs, and conversions of it."""

import random
from pathlib import Path
from typing import Any

import torch
from transformers import BertConfig, BertModel

from experiments.conversion.config import ConversionRunConfig
from sparse_attn.conversion.converting import LEAST
from tests.letters import letter_tokenizer

PAIRS = 12


def texts(count: int) -> list[str]:
    """Of 3 to 30 letters."""
    rng = random.Random(0)
    return ["".join(rng.choices("abcdefgh ", k=rng.randint(3, 30))) + "x" for _ in range(count)]


def write(folder: Path) -> dict[str, str]:
    """Model, texts and pairs, as the settings that name them."""
    tokenizer = letter_tokenizer()
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = BertConfig(
        **sizes, vocab_size=len(tokenizer), intermediate_size=32, initializer_range=0.6
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        BertModel(config).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    (folder / "texts.txt").write_text("\n".join(texts(LEAST)))
    words = texts(2 * PAIRS)
    rows = [f"{words[2 * i]}\t{words[2 * i + 1]}\t{i % 5}" for i in range(PAIRS)]
    (folder / "pairs.tsv").write_text("\n".join(["sentence1\tsentence2\tscore", *rows]))
    return {name: str(folder / file) for name, file in FILES.items()}


FILES = {"model": "model", "texts": "texts.txt", "pairs": "pairs.tsv"}
BUDGET: dict[str, Any] = {"target_zeros": 0.7, "steps": 3, "batch_size": 8}


def one(**changes: Any) -> ConversionRunConfig:
    """A run; what it reads is among the changes."""
    return ConversionRunConfig(**{"output_dir": "", **BUDGET, **changes})
