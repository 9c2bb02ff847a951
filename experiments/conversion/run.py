"""One run: convert the model in one way, and compare it with the softmax model."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import DataCollatorWithPadding

from experiments.conversion.config import ConversionRunConfig
from experiments.conversion.ways import WAYS, Setup, check, convert
from sparse_attn.comparison.data import Data, read_pairs, read_texts
from sparse_attn.comparison.reader import Batch, Reader, open_reader
from sparse_attn.conversion.converting import LEAST, sample_of, tokenized
from sparse_attn.conversion.healing import Recipe
from sparse_attn.conversion.states import zeros_of
from sparse_attn.evaluation.metric import METRICS
from sparse_attn.evaluation.predictions import DivergedError
from sparse_attn.hf.checkpoints import logged_losses
from sparse_attn.hf.layers import attention_layers
from sparse_attn.hf.patching import mappings_of
from sparse_attn.hf.refusals import refuse
from sparse_attn.inspection import record_attention
from sparse_attn.inspection.record import ZeroCounts
from sparse_attn.reports.bootstrap import compare
from sparse_attn.system.machine import device_name, versions

POINTS = 100  # points for a correlation of 1


class ConversionRun(NamedTuple):
    """A run, ready to perform."""

    config: ConversionRunConfig
    reader: Reader
    tokens: list[dict[str, Any]]
    pairs: Data

    def perform(self, folder: Path | None) -> dict[str, Any]:
        """Convert, measure and return the content of results.json.

        Args:
            folder: folder of checkpoints; None to keep none.

        Raises:
            DivergedError: attention or an embedding is NaN or infinite.
        """
        config, reader = self.config, self.reader
        batches = reader.batches(self.pairs.inputs)
        softmax, _ = embed(reader, batches)
        started = time.perf_counter()
        collate = DataCollatorWithPadding(reader.tokenizer)
        sample = sample_of(self.tokens, collate, config.batch_size, reader.model.device)
        setup = Setup(reader.model, config.mapping, config.target_zeros, sample)
        recipe = Recipe(config.steps, config.batch_size, config.learning_rate, seed=config.seed)
        with tempfile.TemporaryDirectory() as temporary:
            kept = folder or Path(temporary)
            before = convert(WAYS[config.way], setup, recipe, self.tokens, collate, kept)
            losses = logged_losses(kept)
        seconds = time.perf_counter() - started
        ours, counts = embed(reader, batches)
        if not ours.isfinite().all():
            raise DivergedError("an embedding is not finite; lower learning_rate")
        return {
            **_quality(self.pairs, ours, softmax),
            "agreement": (ours * softmax).sum(-1).double().mean().item(),
            "zeros": counts.mean,
            "layers": counts.per_layer,
            "sample": {"before": before, "after": zeros_of(reader.model, sample)},
            "parameters": [
                mapping.parameter_values()
                for layer in attention_layers(reader.model)
                for mapping in mappings_of(layer)
            ],
            "losses": losses,
            "texts": len(self.tokens),
            "rows": self.pairs.rows,
            "seconds": round(seconds, 1),
            "device": device_name(reader.model.device),
            "versions": versions("torch", "transformers"),
        }


def assemble(config: ConversionRunConfig) -> ConversionRun:
    """Read the data and the model.

    Raises:
        ValueError, OSError: invalid texts, pairs or model.
    """
    texts, pairs = read_texts(Path(config.texts)), read_pairs(Path(config.pairs))
    if len(texts.inputs) < LEAST:
        raise ValueError(
            f"--texts {config.texts}: expected at least {LEAST} texts, got {len(texts.inputs)}; "
            "give texts of the kind that the model will read"
        )
    reader = open_reader(config.model, embed=True)
    if reader.model.config.is_encoder_decoder:
        raise ValueError(
            f"model={config.model!r}: has an encoder and a decoder; name a sentence encoder"
        )
    refuse(reader.model, attention_layers(reader.model))
    check(config.way, reader.model, config.mapping)
    reader.lengths([*texts.inputs, *pairs.inputs])  # raises if the tokenizer does not fit the model
    length = min(config.max_length, reader.limit)
    return ConversionRun(config, reader, tokenized(reader.tokenizer, texts.inputs, length), pairs)


def embed(reader: Reader, batches: list[Batch]) -> tuple[Tensor, ZeroCounts]:
    """Return the normalised embeddings of all inputs (N, D), and counts of zeros in attention."""
    with record_attention(reader.model) as record:
        found = torch.cat([reader(batch).cpu() for batch in batches])
    places = torch.tensor([place for batch in batches for place in batch.places])
    return found[places.argsort()], record.zero_counts


def _quality(pairs: Data, ours: Tensor, softmax: Tensor) -> dict[str, Any]:
    """Return Spearman's correlation x 100, and its difference from softmax (95 % interval)."""
    labels = pairs.labels
    assert labels is not None
    mine, its = labels.predict(ours), labels.predict(softmax)
    difference = compare(labels.metric, labels.values, mine[None], its[None]).scaled(POINTS)
    return {
        "score": POINTS * METRICS[labels.metric](labels.values, mine),
        "softmax": POINTS * METRICS[labels.metric](labels.values, its),
        "difference": {"value": difference.value, "interval": difference.interval},
    }
