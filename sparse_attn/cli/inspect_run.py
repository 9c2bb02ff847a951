"""Run a model on one text under two mappings, side by side."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from sparse_attn.comparison.reader import class_with_head
from sparse_attn.hf.layers import attention_layers, mappings_of
from sparse_attn.hf.opening import (
    check_vocabulary,
    load_model,
    load_tokenizer,
    quiet_transformers,
    resolve_model,
)
from sparse_attn.hf.patching import is_patched, patched
from sparse_attn.inspection import AttentionRecord, attention_page, record_attention
from sparse_attn.inspection.tokens import longest
from sparse_attn.mappings import Mapping
from sparse_attn.mappings.syntax import describe, parse_mapping


def look(options: argparse.Namespace) -> tuple[dict[str, AttentionRecord], str, str]:
    """Return the records of the two sides by name, their page, and notes for the reader.

    Raises:
        ValueError: what is wrong with the mappings, the model or the text.
    """
    mappings = [parse_mapping(text, "--mapping") for text in options.mapping]
    with quiet_transformers():
        reading = read(options)
        sides = _sides(reading, mappings)
    page = attention_page(
        sides, reading.tokens, title=title_of(options, reading), special_mask=reading.special_mask
    )
    return sides, page, reading.note


def title_of(options: argparse.Namespace, reading: Reading) -> str:
    """Return the title of a page, without the model's path on this machine."""
    path = Path(options.model)
    name = path.resolve().name if path.exists() else options.model
    return f"Attention in {type(reading.model).__name__} ({name})"


def _sides(reading: Reading, mappings: list[Mapping]) -> dict[str, AttentionRecord]:
    """Record the two sides, by name."""
    own = own_mappings(reading)
    chosen = mappings or [Mapping("r-softmax" if own == "softmax" else "softmax")]
    pair = chosen if len(chosen) == 2 else [None, *chosen]
    names = [own if mapping is None else describe(mapping) for mapping in pair]
    if names[0] == names[1]:
        raise ValueError(f"--mapping: both sides would be {names[0]}; choose another")
    if pair[0] is None and is_patched(reading.model):
        names[0] = f"saved: {own}"
    return {name: _record(reading, mapping) for name, mapping in zip(names, pair, strict=True)}


def own_mappings(reading: Reading) -> str:
    """Name the model's mappings; softmax if it is not patched."""
    layers = attention_layers(reading.model)
    found = (describe(mapping) for layer in layers for mapping in mappings_of(layer))
    return ", ".join(dict.fromkeys(found)) or "softmax"


def _record(reading: Reading, mapping: Mapping | None) -> AttentionRecord:
    """Record one forward pass with this mapping in all layers; None for the model's mappings."""
    model, special = reading.model, reading.tokenizer.all_special_ids
    other = patched(model, mapping.name, **mapping.parameter_values()) if mapping else nullcontext()
    recording = record_attention(model, special_ids=special, weights=True)
    with other, recording as record, torch.no_grad():
        reading.run()
    return record


@dataclass
class Reading:
    """Model and inputs for a forward pass of one text, and the tokens to show.

    Attributes:
        forward: the model, or the part of it that reads text.
        note: tells the reader about that part; empty for a whole model.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    forward: Callable[..., Any]
    batch: dict[str, Tensor]
    tokens: list[str]
    special_mask: list[int]
    note: str

    def run(self) -> None:
        """Run one forward pass.

        Raises:
            ValueError: the model needs images or sound besides the text.
        """
        try:
            self.forward(**self.batch)
        except Exception as error:
            reads: Any = self.model.input_modalities
            if reads == "text":
                raise
            raise ValueError(
                f"{type(self.model).__name__} reads {' and '.join(reads)}, not text alone "
                f"({type(error).__name__}: {error}); name a model of text"
            ) from error


def read(options: argparse.Namespace, generates: bool = False) -> Reading:
    """Load the model of the options and tokenize their text.

    Args:
        generates: whether it has to write text.

    Raises:
        ValueError: what is wrong with the model or the text.
    """
    path, trusted = resolve_model(options.model, "MODEL", gguf=True), options.trust_remote_code
    config, tokenizer = load_tokenizer(path, trusted)
    batch = _encode(options, config, tokenizer)
    cls = AutoModelForCausalLM if generates else AutoModel
    if generates and class_with_head(config) is not AutoModelForCausalLM:
        raise ValueError(f"--generate: {options.model} is no causal language model; leave it out")
    model = load_model(path, cls, trust_remote_code=trusted)
    forward, note = model, ""
    if getattr(config, "is_encoder_decoder", False):
        forward = model.get_encoder()
        note = f"{type(model).__name__}: its encoder reads the text; the decoder does not run"
    ids = batch["input_ids"][0].tolist()
    return Reading(
        model,
        tokenizer,
        forward,
        batch,
        [shown(tokenizer, i) for i in ids],
        tokenizer.get_special_tokens_mask(ids, already_has_special_tokens=True),
        note,
    )


def _encode(options: argparse.Namespace, config: Any, tokenizer: Any) -> dict[str, Tensor]:
    with quiet_transformers():  # no warning about long texts
        encoded = tokenizer(options.text, options.pair, return_tensors="pt")
    count = encoded["input_ids"].shape[1] + (options.generate or 0)
    name = "TEXT" if options.file is None else f"--file {options.file}"
    if options.generate is not None:
        name += f" with --generate {options.generate}"
    ids = encoded["input_ids"][0].tolist()
    if {tokenizer.unk_token_id, *tokenizer("")["input_ids"]}.issuperset(ids):
        raise ValueError("TEXT has no token that the model's tokenizer knows; give another text")
    check_vocabulary(ids, config)
    if count > options.max_tokens:
        longer = "" if options.is_long else ", or give it as --file for a page of a long text"
        raise ValueError(
            f"{name} has {count} tokens, but --max_tokens allows {options.max_tokens}; shorten it"
            f"{', raise --max_tokens' * (not options.is_long)}{longer}"
        )
    limit = longest(config, tokenizer)
    if count > limit:
        raise ValueError(
            f"{name} has {count} tokens, but the model reads at most {limit}; shorten it"
        )
    return dict(encoded)


def texts_of(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> list[str]:
    """Return the tokens as text that reads as a whole, with the spaces between them."""
    found = []
    for place, token in enumerate(ids):
        # with some tokens before it, because many tokenizers drop the space of a first one
        start = max(0, place - 4)
        context = tokenizer.decode(ids[start:place], clean_up_tokenization_spaces=False)
        whole = tokenizer.decode(ids[start : place + 1], clean_up_tokenization_spaces=False)
        text = whole[len(context) :] if whole.startswith(context) else ""
        found.append(text if text and "\ufffd" not in text else shown(tokenizer, token))
    return found


def shown(tokenizer: Any, token: int) -> str:
    """Return a token as text, or as in the vocabulary if its bytes are not valid text."""
    text: str = tokenizer.decode([token], clean_up_tokenization_spaces=False)
    return text if text and "\ufffd" not in text else tokenizer.convert_ids_to_tokens(token)
