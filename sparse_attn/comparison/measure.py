"""Outputs and exact zeros of a model under several mappings, and random controls for them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from sparse_attn.comparison.reader import Batch, Inputs, Reader
from sparse_attn.hf.patching import patched
from sparse_attn.inspection import record_attention
from sparse_attn.inspection.record import ZeroCounts
from sparse_attn.mappings import Mapping

CONTROL = "random-drop-softmax"
SAMPLE = 64  # most texts to measure on before a choice
MOST = 2048  # tokens of these
STEPS = 4
CLOSE = 0.001  # relative difference at which the search for a control's share ends


class Variant(NamedTuple):
    """A model with a mapping in its attention.

    Attributes:
        label: name for the reader.
        own: whether the model already has the mapping, with parameters by layer; otherwise it is
            patched in for each batch.
    """

    label: str
    reader: Reader
    mapping: Mapping
    own: bool = False

    def read(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the outputs and the counts of zeros."""
        model, mapping = self.reader.model, self.mapping
        values = mapping.parameter_values()
        swap = nullcontext() if self.own else patched(model, mapping.name, **values)
        with swap, record_attention(model) as record:
            outputs = self.reader(batch)
        return outputs, record.zero_counts.counts


@dataclass
class Outcome:
    """Measurements of a model under one mapping.

    Attributes:
        agreement: agreement with the first variant of the same measurement, (N,).
        outputs: (N, D); None for outputs by token, which are not kept.
    """

    variant: Variant
    agreement: np.ndarray
    outputs: Tensor | None = None
    counts: Tensor | None = field(default=None, repr=False)

    @property
    def zeros(self) -> float:
        """Share of exact zeros among the pairs of valid queries and keys of all layers."""
        return self.zero_counts.mean

    @property
    def zero_counts(self) -> ZeroCounts:
        """Counts by layer and head."""
        assert self.counts is not None
        return ZeroCounts(self.counts)

    def add(
        self, places: list[int], outputs: Tensor | None, agreement: Tensor, counts: Tensor
    ) -> None:
        self.agreement[places] = agreement.double().cpu().numpy()
        self.counts = counts if self.counts is None else self.counts + counts
        if outputs is not None:
            if self.outputs is None:
                self.outputs = outputs.new_zeros(len(self.agreement), outputs.shape[1]).cpu()
            self.outputs[places] = outputs.cpu()


def measure(batches: Sequence[Batch], variants: Sequence[Variant], title: str) -> list[Outcome]:
    """Return one outcome per variant; agreement is with the first.

    Raises:
        ValueError: a model cannot take a mapping, or its outputs are NaN or infinite.
    """
    count = sum(len(batch.places) for batch in batches)
    outcomes = [Outcome(variant, np.zeros(count)) for variant in variants]
    total = count * len(variants)
    with tqdm(total=total, desc=title, leave=False, dynamic_ncols=True, disable=None) as bar:
        for batch in batches:
            first: Tensor | None = None
            for outcome in outcomes:
                reader = outcome.variant.reader
                outputs, counts = outcome.variant.read(batch)
                first = outputs if first is None else first
                counted = batch.counted.to(outputs.device)
                agreement = reader.agreement.measure(first, outputs, counted)
                if not agreement.isfinite().all():
                    raise ValueError(
                        f"{outcome.variant.label}: the model's outputs are NaN or infinite; choose "
                        "another mapping or model"
                    )
                scores = reader.scores(batch, outputs)
                outcome.add(batch.places, scores, agreement, counts)
                bar.update(len(batch.places))
    return outcomes


def check_mappings(variants: Sequence[Variant]) -> None:
    """Raise ValueError for a mapping that the model cannot take; the first is softmax."""
    for place, (label, reader, mapping, _) in enumerate(variants):
        try:
            with patched(reader.model, mapping.name, **mapping.parameter_values()):
                pass
        except (ValueError, TypeError, RuntimeError) as error:
            blamed = f"--mappings {label}" if place else "MODEL"
            raise ValueError(f"{blamed}: {error}") from None


def sample(reader: Reader, inputs: Inputs, batches: Sequence[Batch]) -> list[Batch]:
    """Return SAMPLE of the inputs, spread over all lengths; of long ones only MOST tokens."""
    places = [place for batch in batches for place in batch.places]
    length = sum(batch.inputs["input_ids"].numel() for batch in batches) / len(places)
    count = sample_size(length, MOST)
    return reader.batches([inputs[place] for place in places[:: -(-len(places) // count)]])


def sample_size(length: float, most: int) -> int:
    """Return how many texts of this mean length to sample: SAMPLE, or with about `most` tokens."""
    return max(1, min(SAMPLE, int(most / length)))


def control(reader: Reader, batches: Sequence[Batch], zeros: float) -> Variant:
    """Return random-drop-softmax with about this share of zeros in these batches.

    The share is about r + (1 - r) / n in rows of n keys, so r + zeros - share reduces the error by
    a factor of about n.
    """
    r, tried = zeros, []
    for _ in range(STEPS):
        variant = Variant(CONTROL, reader, Mapping(CONTROL, r=r))
        counts = torch.stack([variant.read(batch)[1] for batch in batches]).sum(0)
        missing = zeros - ZeroCounts(counts).mean
        tried.append((abs(missing), r))
        if abs(missing) < CLOSE * zeros:
            break
        r = min(max(r + missing, 1e-6), 1.0)
    # with few short texts the share is a step function, between whose steps r may alternate
    return Variant(CONTROL, reader, Mapping(CONTROL, r=min(tried)[1]))
