"""What a model does with a text under two mappings, side by side."""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from pathlib import Path

import torch

from sparse_attn.hf.opening import Reading, quiet_transformers, read
from sparse_attn.mappings.syntax import describe, parse_mapping
from sparse_attn.hf.descriptions import mappings_of
from sparse_attn.inspection import AttentionRecord, attention_page, record_attention
from sparse_attn.hf.layers import attention_layers
from sparse_attn.mappings import Mapping
from sparse_attn.hf.patching import is_patched, patched


def look(options: argparse.Namespace) -> tuple[dict[str, AttentionRecord], str, str]:
    """The records of the two sides by name, their page, and notes for the reader.

    Raises:
        ValueError: what is wrong with the mappings, the model or the text.
    """
    mappings = [parse_mapping(text, "--mapping") for text in options.mapping]
    with quiet_transformers():
        reading = read(options)
        sides = _sides(reading, mappings)
    # a page is shared: it does not tell where the model lies on this machine
    path = Path(options.model)
    name = path.resolve().name if path.is_dir() else options.model
    title = f"Attention in {type(reading.model).__name__} ({name})"
    page = attention_page(sides, reading.tokens, title=title, special_mask=reading.special_mask)
    return sides, page, reading.note


def _sides(reading: Reading, mappings: list[Mapping]) -> dict[str, AttentionRecord]:
    """The records of the two sides, by name."""
    own = _own_mappings(reading)
    chosen = mappings or [Mapping("r-softmax" if own == "softmax" else "softmax")]
    pair = chosen if len(chosen) == 2 else [None, *chosen]
    names = [own if mapping is None else describe(mapping) for mapping in pair]
    if names[0] == names[1]:
        raise ValueError(f"--mapping: both sides would be {names[0]}; choose another")
    if pair[0] is None and is_patched(reading.model):
        names[0] = f"saved: {own}"
    return {name: _record(reading, mapping) for name, mapping in zip(names, pair, strict=True)}


def _own_mappings(reading: Reading) -> str:
    """The mappings that the model has; softmax where it is not patched."""
    layers = attention_layers(reading.model)
    found = (describe(mapping) for layer in layers for mapping in mappings_of(layer))
    return ", ".join(dict.fromkeys(found)) or "softmax"


def _record(reading: Reading, mapping: Mapping | None) -> AttentionRecord:
    """One forward pass, with this mapping in all layers; None for the model's own."""
    model, special = reading.model, reading.tokenizer.all_special_ids
    other = patched(model, mapping.name, **mapping.parameter_values()) if mapping else nullcontext()
    recording = record_attention(model, special_ids=special, weights=True)
    with other, recording as record, torch.no_grad():
        reading.run()
    return record
