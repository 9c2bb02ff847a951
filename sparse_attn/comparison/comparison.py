"""Record of a comparison: measurements and their differences with intervals."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from sparse_attn.comparison.data import Data, Labels, read_data, short, with_next_words
from sparse_attn.comparison.measure import (
    Outcome,
    Variant,
    check_mappings,
    control,
    measure,
    sample,
)
from sparse_attn.comparison.options import Given, Options, named_as_options, option_of
from sparse_attn.comparison.reader import Reader, open_reader
from sparse_attn.mappings import Mapping
from sparse_attn.mappings.syntax import parse_mappings
from sparse_attn.reports import bootstrap
from sparse_attn.reports.bootstrap import compare as compare_metrics
from sparse_attn.reports.bootstrap import compare_means
from sparse_attn.reports.seed_statistics import Difference
from sparse_attn.system.machine import device_name, versions

LEAST = 6  # rows; with fewer, all differences have one sign by chance in more than 5 % of cases
NEAR = 0.1  # relative difference allowed between the zeros of a control and of its mapping


@named_as_options(Options)
def compare(options: Options) -> dict[str, Any]:
    """Check the options, measure, and return the record.

    Raises:
        ValueError, TypeError, OSError: what is wrong with the mappings, the data or the model.
    """
    started = time.perf_counter()
    mappings = {"softmax": Mapping("softmax"), **_mappings(options.mappings)}
    data = read_data(options)
    reader = open_reader(
        options.model,
        embed=options.pairs is not None,
        task=data.task,
        trust_remote_code=options.trust_remote_code,
    )
    variants = [Variant(label, reader, mapping) for label, mapping in mappings.items()]
    check_mappings(variants)
    record = {"command": command_of(options, "compare", "out"), "model": model_of(options)}
    record |= measured(variants, data)[0]
    return record | {"seconds": time.perf_counter() - started, **origin(reader)}


def origin(reader: Reader) -> dict[str, Any]:
    """Return the device and the versions that a record was made with."""
    return {
        "device": device_name(reader.model.device),
        "versions": versions("torch", "transformers"),
    }


def model_of(options: Given) -> str:
    """Return the name of the model in the record; folders are shortened."""
    path = Path(options.model)
    return short(path) if path.is_dir() else options.model


def command_of(options: Given, program: str, *left_out: str) -> str:
    """Return the command that reproduces this record from the same folder.

    Args:
        left_out: options to omit besides those with their default.
    """
    words = ["sparse-attn", program, _shareable_path(options.model)]
    for field in fields(options):
        value = getattr(options, field.name)
        default = None if field.default is MISSING else field.default
        if field.name in ("model", *left_out) or value in (default, False):
            continue
        words += [option_of(field.name)]
        words += [] if value is True else [_shareable_path(str(value))]
    return shlex.join(words)


def _shareable_path(name: str) -> str:
    """Make a path relative; only the end of one outside this folder, because records are shared."""
    if not Path(name).exists():
        return name
    path = os.path.relpath(name)
    return f"FOLDER/{short(Path(name))}" if path.startswith(os.pardir) else path


def _mappings(text: str) -> dict[str, Mapping]:
    """Parse the mappings of the option, by label.

    Raises:
        ValueError: a mapping is unknown or softmax.
    """
    mappings = parse_mappings(text, "--mappings")
    if "softmax" in mappings:
        raise ValueError("--mappings: softmax is what the others are compared with; leave it out")
    return mappings


def measured(variants: Sequence[Variant], data: Data) -> tuple[dict[str, Any], list[Outcome]]:
    """Measure the variants, softmax first; return the fields of a record, and the outcomes.

    For a causal model, unlabelled texts are labelled by their next words.
    """
    reader = variants[0].reader
    lengths = reader.lengths(data.inputs)
    if reader.causal and data.labels is None:
        data = with_next_words(data, [min(length, reader.limit) for length in lengths])
    outcomes, controls = _measure(variants, data)
    labels = data.labels
    return {
        "source": data.source,
        "rows": data.rows,
        "texts": len(data.inputs),
        "cut": sum(length > reader.limit for length in lengths),
        "limit": reader.limit,
        "agreement": reader.agreement.name,
        "metric": labels and labels.metric,
        "softmax": labels and _quality(outcomes[0], labels),
        "resamples": bootstrap.RESAMPLES,
        "mappings": _rows(outcomes, controls, data),
    }, outcomes


def _measure(variants: Sequence[Variant], data: Data) -> tuple[list[Outcome], list[Outcome | None]]:
    """Measure every variant, and the controls of all but the first.

    A control is None without zeros (underflow does not count) or if it cannot drop as few.
    """
    reader = variants[0].reader
    batches = reader.batches(data.inputs)
    outcomes = measure(batches, variants, "Mappings")
    few = sample(reader, data.inputs, batches)
    shares = [o.zeros if o.variant.mapping.spec.zeros else 0.0 for o in outcomes[1:]]
    pairs = zip(variants[1:], shares, strict=True)
    chosen = [control(variant.reader, few, share) for variant, share in pairs if share > 0]
    found = iter(measure(batches, [variants[0], *chosen], "Controls")[1:] if chosen else ())
    controls = [next(found) if share > 0 else None for share in shares]
    return outcomes, [
        random if random and abs(random.zeros - share) <= NEAR * share else None
        for random, share in zip(controls, shares, strict=True)
    ]


def _rows(
    outcomes: Sequence[Outcome], controls: Sequence[Outcome | None], data: Data
) -> list[dict[str, Any]]:
    """Return an entry for each mapping except softmax, the first."""
    softmax, *others = outcomes
    rows = []
    found = list(zip(others, controls, strict=True))
    for ours, random in tqdm(found, "Bootstrap", leave=False, dynamic_ncols=True, disable=None):
        row = {"mapping": ours.variant.label, **_shown(ours, data)}
        if data.labels is not None:
            row["against_softmax"] = _difference(ours, softmax, data)
        if random is not None:
            row["random"] = {"r": random.variant.mapping.value("r"), **_shown(random, data)}
            row["against_random"] = _difference(ours, random, data)
        rows.append(row)
    return rows


def _shown(outcome: Outcome, data: Data) -> dict[str, Any]:
    found = {"zeros": outcome.zeros, "agreement": float(outcome.agreement.mean())}
    return found if data.labels is None else {**found, "quality": _quality(outcome, data.labels)}


def _quality(outcome: Outcome, labels: Labels) -> float:
    assert outcome.outputs is not None
    return labels.score(outcome.outputs)


def _predicted(outcome: Outcome, labels: Labels) -> np.ndarray:
    assert outcome.outputs is not None
    return labels.predict(outcome.outputs)


def _difference(ours: Outcome, theirs: Outcome, data: Data) -> dict[str, Any]:
    """Compare the quality, or without labels the agreement; with a 95 % interval if known."""
    found: Difference
    labels = data.labels
    if labels is None:
        found = compare_means(ours.agreement[None], theirs.agreement[None])
    else:
        found = compare_metrics(
            labels.function or labels.metric,
            labels.values,
            _predicted(ours, labels)[None],
            _predicted(theirs, labels)[None],
        )
    known = data.rows >= LEAST and found.high - found.low > 1e-12
    return {"value": found.value, "interval": found.interval if known else None}
