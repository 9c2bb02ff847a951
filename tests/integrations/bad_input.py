"""What the integrations refuse; rows of a library that is not installed are left out."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import torch
from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel

from sparse_attn import AttentionStatistics, patch_model
from tests.bad_input import Wrong
from tests.letters import letter_tokenizer

SIZES = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}


def saved(folder: Path, model: Any, mapping: str | None = None) -> str:
    tokenizer = letter_tokenizer()
    tokenizer.eos_token = "[SEP]"
    tokenizer.save_pretrained(folder)
    (patch_model(model, mapping) if mapping else model).save_pretrained(folder)
    return str(folder)


def bert(folder: Path, mapping: str | None = "sparsemax") -> str:
    config = BertConfig(vocab_size=88, intermediate_size=8, **SIZES)
    return saved(folder, BertModel(config), mapping)


def gpt2(folder: Path, mapping: str | None = None) -> str:
    config = GPT2Config(
        vocab_size=88, n_embd=8, n_layer=1, n_head=1, bos_token_id=1, eos_token_id=2
    )
    return saved(folder, GPT2LMHeadModel(config), mapping)


def evaluated(pretrained: Any, **options: Any) -> None:
    from sparse_attn.integrations.lm_eval import PatchedLM

    PatchedLM(pretrained, device="cpu", **options)


def refused(
    name: str, says: str, call: Callable[[Path], Any], error: type[Exception] = ValueError
) -> Wrong:
    return Wrong(name, call, error, says)


OF_LM_EVAL = [
    refused("lm-eval: mapping", "entmaxx", lambda at: evaluated(str(at), mapping="entmaxx")),
    refused("lm-eval: value", "alpha=3", lambda at: evaluated(str(at), mapping="entmax", alpha=3)),
    refused(
        "lm-eval: pretrained",
        "pretrained: .*BertModel",
        lambda _: evaluated(BertModel(BertConfig(**SIZES)), mapping="entmax"),
        TypeError,
    ),
    refused(
        "lm-eval: a mapping for a patched model",
        "leave mapping out",
        lambda at: evaluated(gpt2(at, "sparsemax"), mapping="entmax:alpha=1.5"),
    ),
    refused("lm-eval: none for a plain model", "needed", lambda at: evaluated(gpt2(at))),
]


def statistics(name: str, says: str, batch: Any, **options: Any) -> Wrong:
    error = ValueError if options else TypeError
    make = lambda _: AttentionStatistics(cast(Any, None), batch, **options)  # noqa: E731
    return refused(f"AttentionStatistics: {name}", says, make, error)


IDS = torch.zeros(1, 3, dtype=torch.long)
ROWS = [
    *(OF_LM_EVAL if find_spec("lm_eval") else []),
    statistics("no tensors", "batch is a dict.*tokenizer", {"input_ids": [[1]]}),
    statistics("no names", "batch is a Tensor.*expected tensors by name", IDS),
    statistics("no Trainer", "trainer is a NoneType: expected a Trainer", {"input_ids": IDS}),
    statistics("steps", "every_steps=0: expected a whole", {"input_ids": IDS}, every_steps=0),
]
