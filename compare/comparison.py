"""The record of a comparison: measurements, and what can be said of their differences."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from compare.command import Options
from compare.data import Data, read_data, short
from compare.measure import Outcome, check_mappings, control, measure, sample
from compare.reader import Reader, open_reader
from glue.metric import METRICS
from glue.report.statistics import RESAMPLES, Difference, compare_means
from glue.report.statistics import compare as compare_metrics
from pipeline.machine import device_name, versions
from sparse_attn import Mapping
from sparse_attn.commands.syntax import parse_mappings

LEAST = 6  # rows; of fewer, chance gives all differences one sign in more than 5 % of cases
NEAR = 0.1  # how far the zeros of a control may be from a mapping's, of these


def compare(options: Options) -> dict[str, Any]:
    """Check the options, measure, and return the record.

    Raises:
        ValueError, TypeError, OSError: what is wrong with the mappings, the data or the model.
    """
    started = time.perf_counter()
    mappings = _mappings(options.mappings)
    data = read_data(options)
    reader = open_reader(
        options.model,
        embed=options.pairs is not None,
        task=data.task,
        trust_remote_code=options.trust_remote_code,
    )
    outcomes, controls = _measure(reader, data, [Mapping("softmax"), *mappings.values()])
    labels = data.labels
    record = {
        "command": _command(options),
        "model": _model(options),
        "source": data.source,
        "rows": data.rows,
        "texts": len(data.inputs),
        "cut": sum(length > reader.limit for length in reader.lengths(data.inputs)),
        "limit": reader.limit,
        "agreement": reader.agreement.name,
        "metric": labels and labels.metric,
        "softmax": labels and _quality(outcomes[0], data),
        "resamples": RESAMPLES,
        "mappings": _rows(list(mappings), outcomes, controls, data),
    }
    return record | {
        "seconds": time.perf_counter() - started,
        "device": device_name(reader.model.device),
        "versions": versions("torch", "transformers"),
    }


def _model(options: Options) -> str:
    path = Path(options.model)
    return short(path) if path.is_dir() else options.model


def _command(options: Options) -> str:
    """What gives this record again from the same folder."""
    words = ["sparse-attn", "compare", _shared(options.model)]
    for option in ("texts", "pairs", "task", "data_dir"):
        if (value := getattr(options, option)) is not None:
            words += [f"--{option}", _shared(str(value))]
    if options.trust_remote_code:
        words.append("--trust-remote-code")
    return shlex.join([*words, "--mappings", options.mappings])


def _shared(name: str) -> str:
    """A path from here; of one that leads elsewhere its end, since a record is shared."""
    if not Path(name).exists():
        return name
    path = os.path.relpath(name)
    return f"FOLDER/{short(Path(name))}" if path.startswith(os.pardir) else path


def _mappings(text: str) -> dict[str, Mapping]:
    """Those of the option, by label.

    Raises:
        ValueError: one is unknown, or is softmax.
    """
    mappings = parse_mappings(text, "--mappings")
    if "softmax" in mappings:
        raise ValueError("--mappings: softmax is what the others are compared with; leave it out")
    return mappings


def _measure(
    reader: Reader, data: Data, mappings: Sequence[Mapping]
) -> tuple[list[Outcome], list[Outcome | None]]:
    """Of every mapping, softmax first, and of the others' controls.

    None without zeros (a weight that underflows is none), or with fewer than the control can drop.
    """
    check_mappings(reader, mappings)
    batches = reader.batches(data.inputs)
    outcomes = measure(reader, batches, mappings, "Mappings")
    few = sample(reader, data.inputs, batches)
    shares = [outcome.zeros if outcome.mapping.spec.zeros else 0.0 for outcome in outcomes[1:]]
    chosen = [control(reader, few, share) for share in shares if share > 0]
    found = iter(measure(reader, batches, [mappings[0], *chosen], "Controls")[1:] if chosen else ())
    controls = [next(found) if share > 0 else None for share in shares]
    return outcomes, [
        random if random and abs(random.zeros - share) <= NEAR * share else None
        for random, share in zip(controls, shares, strict=True)
    ]


def _rows(
    labels: Sequence[str],
    outcomes: Sequence[Outcome],
    controls: Sequence[Outcome | None],
    data: Data,
) -> list[dict[str, Any]]:
    """An entry for each mapping but softmax, the first."""
    softmax, *others = outcomes
    rows = []
    found = list(zip(labels, others, controls, strict=True))
    for label, ours, random in tqdm(
        found, "Bootstrap", leave=False, dynamic_ncols=True, disable=None
    ):
        row = {"mapping": label, **_shown(ours, data)}
        if data.labels is not None:
            row["against_softmax"] = _difference(ours, softmax, data)
        if random is not None:
            row["random"] = {"r": random.mapping.value("r"), **_shown(random, data)}
            row["against_random"] = _difference(ours, random, data)
        rows.append(row)
    return rows


def _shown(outcome: Outcome, data: Data) -> dict[str, Any]:
    found = {"zeros": outcome.zeros, "agreement": float(outcome.agreement.mean())}
    return found if data.labels is None else {**found, "quality": _quality(outcome, data)}


def _quality(outcome: Outcome, data: Data) -> float:
    assert data.labels is not None
    return METRICS[data.labels.metric](data.labels.values, _predicted(outcome, data))


def _predicted(outcome: Outcome, data: Data) -> np.ndarray:
    assert data.labels is not None
    assert outcome.outputs is not None
    return data.labels.predict(outcome.outputs)


def _difference(ours: Outcome, theirs: Outcome, data: Data) -> dict[str, Any]:
    """Of the quality, or without labels of the agreement; its 95 % interval where it has one."""
    found: Difference
    if data.labels is None:
        found = compare_means(ours.agreement[None], theirs.agreement[None])
    else:
        found = compare_metrics(
            data.labels.metric,
            data.labels.values,
            _predicted(ours, data)[None],
            _predicted(theirs, data)[None],
        )
    known = data.rows >= LEAST and found.high - found.low > 1e-12
    return {"value": found.value, "interval": [found.low, found.high] if known else None}
