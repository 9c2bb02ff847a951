"""Run a model on one long text, and make a page to read it with the attention."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from typing import Any

import torch
from transformers import GenerationConfig

from sparse_attn.cli.inspect_run import Reading, own_mappings, read, texts_of, title_of
from sparse_attn.hf.layers import attention_layers
from sparse_attn.hf.opening import quiet_transformers
from sparse_attn.hf.patching import patched
from sparse_attn.inspection import AttentionRecord, record_attention
from sparse_attn.inspection.long_text import most_selective, text_page
from sparse_attn.inspection.long_text.summing import sum_attention
from sparse_attn.mappings.syntax import describe, parse_mapping

THRESHOLD = 1e-4  # of mappings without exact zeros


def look_at_text(options: argparse.Namespace) -> tuple[dict[str, AttentionRecord], str, str]:
    """Return the record by its name, the page, and notes for the reader.

    Raises:
        ValueError: what is wrong with the mapping, the heads, the model or the text.
    """
    mappings = [parse_mapping(text, "--mapping") for text in options.mapping]
    with quiet_transformers():
        reading = read(options, generates=options.generate is not None)
        layers = [layer.name for layer in attention_layers(reading.model)]
        heads = _heads(options.heads, len(layers), reading.model.config.get_text_config())
        name, swap = own_mappings(reading), ExitStack()
        for mapping in mappings:
            name = describe(mapping)
            swap.enter_context(patched(reading.model, mapping.name, **mapping.parameter_values()))
        with swap:
            own = [_has_zeros(layer) for layer in attention_layers(reading.model)]
            threshold = 0.0 if all(own) else THRESHOLD
            if not heads and not threshold:
                with record_attention(reading.model) as record:
                    ids = _read(reading, options.generate)
                heads = most_selective(record, len(ids))
            length = len(reading.tokens) + (options.generate or 0)
            with sum_attention(reading.model, length, heads, threshold) as found:
                ids = _read(reading, options.generate)
    if missing := set(heads) - set(found.heads):
        layer, head = min(missing)
        raise ValueError(f"--heads {options.heads}: layer {layer} has no head {head}")
    tokens = texts_of(reading.tokenizer, ids)
    page = text_page(
        found.cut(len(tokens)),  # it may have ended early
        tokens,
        title=title_of(options, reading),
        mapping=name,
        generated=len(tokens) - len(reading.tokens),
        threshold=threshold,
    )
    return {name: found.record}, page, reading.note


def _has_zeros(layer: Any) -> bool:
    mapping = getattr(layer.module, "sparse_attn", None)
    return mapping is not None and mapping.spec.zeros is True


@torch.inference_mode()
def _read(reading: Reading, generate: int | None) -> list[int]:
    """Read the text, and write more if asked for; return the ids of all tokens."""
    if generate is None:
        reading.run()
        return reading.batch["input_ids"][0].tolist()
    settings = GenerationConfig(max_new_tokens=generate, do_sample=False, num_beams=1)
    model: Any = reading.model
    given = {name: reading.batch[name] for name in ("input_ids", "attention_mask")}
    return model.generate(**given, generation_config=settings)[0].tolist()


def _heads(text: str | None, layers: int, config: Any) -> list[tuple[int, int]]:
    """Parse `3:0,3:1,5` to pairs of layer and head."""
    found = []
    for part in text.split(",") if text else []:
        layer, colon, head = part.strip().partition(":")
        if not layer.isdigit() or (colon and not head.isdigit()):
            raise ValueError(
                f"--heads {text}: expected LAYER:HEAD, or LAYER for all of its heads, got {part!r}"
            )
        if int(layer) >= layers:
            raise ValueError(f"--heads {text}: there is no layer {layer}; the model has {layers}")
        count = getattr(config, "num_attention_heads", 1)
        found += [(int(layer), int(head))] if head else [(int(layer), h) for h in range(count)]
    return list(dict.fromkeys(found))
