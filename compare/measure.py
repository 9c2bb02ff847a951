"""Outputs and exact zeros of a model under several mappings, and random controls for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from compare.reader import Batch, Reader
from sparse_attn import Mapping, patched
from sparse_attn.commands.syntax import describe
from sparse_attn.inspection import record_attention
from sparse_attn.inspection.record import ZeroCounts

CONTROL = "random-drop-softmax"
SAMPLE = 64  # texts on which the share of a control is found
STEPS = 4


@dataclass
class Outcome:
    """What a model does under one mapping.

    Attributes:
        agreement: (N,), with the first mapping that was measured beside it.
        outputs: (N, D), or none: those for each token are not kept.
    """

    mapping: Mapping
    agreement: np.ndarray
    outputs: Tensor | None = None
    counts: Tensor | None = field(default=None, repr=False)

    @property
    def zeros(self) -> float:
        """Share of exact zeros among the pairs of valid queries and keys of all layers."""
        assert self.counts is not None
        return ZeroCounts(self.counts).mean

    def add(self, places: list[int], outputs: Tensor, agreement: Tensor, counts: Tensor) -> None:
        self.agreement[places] = agreement.double().cpu().numpy()
        self.counts = counts if self.counts is None else self.counts + counts
        if outputs.dim() == 2:
            if self.outputs is None:
                self.outputs = outputs.new_zeros(len(self.agreement), outputs.shape[1]).cpu()
            self.outputs[places] = outputs.cpu()


def measure(
    reader: Reader, batches: Sequence[Batch], mappings: Sequence[Mapping], title: str
) -> list[Outcome]:
    """One outcome for each mapping; agreement is with the first.

    Raises:
        ValueError: the model cannot take a mapping, or its outputs are NaN or infinite.
    """
    count = sum(len(batch.places) for batch in batches)
    outcomes = [Outcome(mapping, np.zeros(count)) for mapping in mappings]
    total = count * len(mappings)
    with tqdm(total=total, desc=title, leave=False, dynamic_ncols=True, disable=None) as bar:
        for batch in batches:
            first: Tensor | None = None
            for outcome in outcomes:
                outputs, counts = _read(reader, batch, outcome.mapping)
                first = outputs if first is None else first
                mask = batch.inputs["attention_mask"].to(outputs.device)
                agreement = reader.agreement.measure(first, outputs, mask)
                if not agreement.isfinite().all():
                    raise ValueError(
                        f"--mappings {describe(outcome.mapping)}: the model's outputs are NaN or "
                        "infinite; leave it out"
                    )
                outcome.add(batch.places, outputs, agreement, counts)
                bar.update(len(batch.places))
    return outcomes


def _read(reader: Reader, batch: Batch, mapping: Mapping) -> tuple[Tensor, Tensor]:
    """The outputs, and the counts of zeros."""
    with (
        patched(reader.model, mapping.name, **mapping.parameter_values()) as model,
        record_attention(model) as record,
    ):
        outputs = reader(batch)
    return outputs, record.zero_counts.counts


def check_mappings(reader: Reader, mappings: Sequence[Mapping]) -> None:
    """Raise ValueError for a mapping that the model cannot take; the first is softmax."""
    for place, mapping in enumerate(mappings):
        try:
            with patched(reader.model, mapping.name, **mapping.parameter_values()):
                pass
        except (ValueError, TypeError, RuntimeError) as error:
            blamed = f"--mappings {describe(mapping)}" if place else "MODEL"
            raise ValueError(f"{blamed}: {error}") from None


def sample(
    reader: Reader, inputs: Sequence[tuple[str, ...]], batches: Sequence[Batch]
) -> list[Batch]:
    """SAMPLE of the inputs, of all lengths."""
    places = [place for batch in batches for place in batch.places]
    return reader.batches([inputs[place] for place in places[:: -(-len(places) // SAMPLE)]])


def control(reader: Reader, batches: Sequence[Batch], zeros: float) -> Mapping:
    """random-drop-softmax with about this share of zeros in these batches.

    Its share is near r + (1 - r) / n in rows of n keys, so r + zeros - share comes nearer by a
    factor of about n.
    """
    r, tried = zeros, []
    for _ in range(STEPS):
        mapping = Mapping(CONTROL, r=r)
        counts = torch.stack([_read(reader, batch, mapping)[1] for batch in batches]).sum(0)
        missing = zeros - ZeroCounts(counts).mean
        tried.append((abs(missing), r))
        r = min(max(r + missing, 1e-6), 1.0)
    # in a few short texts the share has steps, between which r may go back and forth
    return Mapping(CONTROL, r=min(tried)[1])
