"""What a model does with a text under two mappings, side by side."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging

from sparse_attn.commands.reading import Reading, read
from sparse_attn.inspection import AttentionRecord, attention_page, record_attention
from sparse_attn.layers import attention_layers
from sparse_attn.mappings import Mapping, get_spec
from sparse_attn.patching import is_patched, mappings_of, patched


def look(options: argparse.Namespace) -> tuple[dict[str, AttentionRecord], str, str]:
    """The records of the two sides by name, their page, and notes for the reader.

    Raises:
        ValueError: what is wrong with the mappings, the model or the text.
    """
    mappings = [_mapping_of(text) for text in options.mapping]
    with _quiet_transformers():
        reading = read(options)
        sides = _sides(reading, mappings)
    # a page is shared: it does not tell where the model lies on this machine
    path = Path(options.model)
    name = path.resolve().name if path.is_dir() else options.model
    title = f"Attention in {type(reading.model).__name__} ({name})"
    page = attention_page(sides, reading.tokens, title=title, special_mask=reading.special_mask)
    return sides, page, reading.note


def _mapping_of(text: str) -> Mapping:
    """The mapping that `NAME` or `NAME:parameter=value,...` describes.

    Raises:
        ValueError: a malformed description, an unknown name or parameter, a value out of range.
    """
    name, _, rest = text.partition(":")
    try:
        known = [p.name for p in (*get_spec(name).parameters, *get_spec(name).options)]
        values = [_value(part, known) for part in rest.split(",")] if rest else []
        if twice := [name for name, count in Counter(n for n, _ in values).items() if count > 1]:
            raise ValueError(f"{twice[0]} is given twice")
        return Mapping(name, **dict[str, Any](values))
    except (ValueError, RuntimeError) as error:  # no memory holds 10^12 knots
        raise ValueError(f"--mapping {text}: {error}") from None


def _value(text: str, known: list[str]) -> tuple[str, float]:
    """The name and number of `parameter=value`."""
    name, _, value = (piece.strip() for piece in text.partition("="))
    if name not in known:
        takes = ", ".join(known) or "none"
        raise ValueError(f"{name!r} is not a parameter of this mapping, which takes {takes}")
    try:
        number = float(value)
    except ValueError:
        raise ValueError(f"expected {name}=NUMBER, got {text!r}") from None
    # knots and units are counts
    return name, int(number) if number.is_integer() else number


def _sides(reading: Reading, mappings: list[Mapping]) -> dict[str, AttentionRecord]:
    """The records of the two sides, by name."""
    own = _own_mappings(reading)
    chosen = mappings or [Mapping("r-softmax" if own == "softmax" else "softmax")]
    pair = chosen if len(chosen) == 2 else [None, *chosen]
    names = [own if mapping is None else _shown(mapping) for mapping in pair]
    if names[0] == names[1]:
        raise ValueError(f"--mapping: both sides would be {names[0]}; choose another")
    if pair[0] is None and is_patched(reading.model):
        names[0] = f"saved: {own}"
    return {name: _record(reading, mapping) for name, mapping in zip(names, pair, strict=True)}


def _own_mappings(reading: Reading) -> str:
    """The mappings that the model has; softmax where it is not patched."""
    layers = attention_layers(reading.model)
    found = (_shown(mapping) for layer in layers for mapping in mappings_of(layer))
    return ", ".join(dict.fromkeys(found)) or "softmax"


def _shown(mapping: Mapping) -> str:
    """`r-softmax r=0.15`; without values of learned parameters, which differ between layers."""
    texts = [mapping.name]
    for name, value in mapping.parameter_values().items():
        if name in mapping.learned:
            texts.append(f"{name} learned")
        else:
            texts.append(f"{name} per head" if isinstance(value, list) else f"{name}={value:.12g}")
    return " ".join(texts)


def _record(reading: Reading, mapping: Mapping | None) -> AttentionRecord:
    """One forward pass, with this mapping in all layers; None for the model's own."""
    model, special = reading.model, reading.tokenizer.all_special_ids
    other = patched(model, mapping.name, **mapping.parameter_values()) if mapping else nullcontext()
    recording = record_attention(model, special_ids=special, weights=True)
    with other, recording as record, torch.no_grad():
        reading.run()
    return record


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """No progress bars, and no reports of heads omitted on purpose."""
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
