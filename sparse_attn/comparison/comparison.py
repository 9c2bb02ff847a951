"""Record of a comparison: measurements and their differences with intervals."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Sequence
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from sparse_attn.comparison.data import (
    FOUND,
    LEAST,
    Data,
    Labels,
    read_data,
    read_long_text,
    short,
    with_answers,
    with_next_words,
)
from sparse_attn.comparison.measure import (
    Outcome,
    Variant,
    check_mappings,
    control,
    measure,
    sample,
)
from sparse_attn.comparison.options import Given, Options
from sparse_attn.comparison.reader import LONGEST, Reader, open_reader
from sparse_attn.comparison.windows import cut_windows, hide_numbers
from sparse_attn.hf.opening import check_vocabulary, quiet_transformers
from sparse_attn.mappings import Mapping
from sparse_attn.mappings.syntax import parse_mappings
from sparse_attn.reports import bootstrap
from sparse_attn.reports.bootstrap import compare as compare_metrics
from sparse_attn.reports.bootstrap import compare_means
from sparse_attn.reports.seed_statistics import Difference
from sparse_attn.system.imports import import_options, imported
from sparse_attn.system.machine import device_name, versions

NEAR = 0.1  # relative difference allowed between the zeros of a control and of its mapping


def compare(options: Options) -> dict[str, Any]:
    """Check the options, measure, and return the record.

    Raises:
        ValueError, TypeError, OSError: what is wrong with the mappings, the data or the model.
    """
    started = time.perf_counter()
    mappings = {"softmax": Mapping("softmax"), **_mappings(options.mappings)}
    data = None if options.in_windows else read_data(options)
    text = None
    if options.in_windows and options.texts:
        text = read_long_text(options.texts, options.columns)
    reader = open_reader(
        options.model,
        embed=options.pairs is not None,
        task=data and data.task,
        max_length=options.max_length,
        trust_remote_code=options.trust_remote_code,
    )
    if text is not None:
        data = _windows(*text, reader, options)
    assert data is not None
    variants = [Variant(label, reader, mapping) for label, mapping in mappings.items()]
    check_mappings(variants)
    record = {"command": command_of(options, "compare", "out"), "model": model_of(options)}
    record |= measured(variants, data).record
    return record | {"seconds": time.perf_counter() - started, **origin(reader)}


def _windows(text: str, source: str, reader: Reader, options: Options) -> Data:
    """Cut the text into windows, with numbers hidden in them if asked for.

    Raises:
        ValueError: the model is not causal, the text is shorter than a window, or a window than
            what is hidden in it.
    """
    if not reader.causal:
        raise ValueError(
            f"MODEL={options.model!r}: is no causal language model, which --stride, --windows and "
            "--needles need; leave them out to compare its outputs for each line"
        )
    tokenizer = reader.tokenizer
    with quiet_transformers():  # no warning about long texts
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        first = [token for token in tokenizer("")["input_ids"] if token == tokenizer.bos_token_id]
    check_vocabulary(ids, reader.model.config)
    length = reader.limit
    room = length - len(first)
    stride = options.stride or room
    if stride > room:
        after = f" after {tokenizer.bos_token}" if first else ""
        raise ValueError(
            f"--stride {stride}: a window holds {room} tokens of the text{after}, so that those up "
            f"to the next window would not be read; give at most {room}, or --windows alone"
        )
    windows = cut_windows(ids, first, length, stride, options.windows)
    if not windows:
        raise ValueError(
            f"--texts {options.texts}: has {len(ids)} tokens, fewer than a window of {length}; "
            "give a longer text, or a smaller --max_length"
        )
    data = Data(windows, source, windows={"tokens": length, "stride": stride, "of": len(ids)})
    if options.needles is not None:
        hidden = hide_numbers(windows, first, tokenizer, options.needles)
        return with_answers(data._replace(inputs=hidden))
    return data


def origin(reader: Reader) -> dict[str, Any]:
    """Return the device and the versions that a record was made with."""
    return {
        "device": device_name(reader.model.device),
        "versions": versions("torch", "transformers"),
    }


def model_of(options: Given) -> str:
    """Return the name of the model in the record; folders are shortened."""
    path = Path(options.model)
    return short(path) if path.exists() else options.model


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
        words += [f"--{field.name}"]
        words += [] if value is True else [_shareable_path(str(value))]
    words += import_options(map(_shareable_path, imported()))
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


class Measured(NamedTuple):
    """Fields of a record, what they were computed from, and the data with its labels."""

    record: dict[str, Any]
    outcomes: list[Outcome]
    data: Data


def measured(variants: Sequence[Variant], data: Data) -> Measured:
    """Measure the variants, softmax first.

    For a causal model, unlabelled texts are labelled by their next words.
    """
    reader = variants[0].reader
    lengths = reader.lengths(data.inputs)
    data = _labelled(data, reader)
    outcomes = measure(reader.batches(data.inputs), variants, "Mappings")
    controls = _controlled(outcomes, data)
    softmax = _shown(outcomes[0], data)
    record = {
        "source": data.source,
        "rows": data.rows,
        "texts": len(data.inputs),
        "cut": sum(length > reader.limit for length in lengths),
        "limit": reader.limit,
        "agreement": reader.agreement.name,
        "metric": data.labels and data.labels.metric,
        "softmax": softmax.get("quality", softmax["agreement"]),
        "resamples": bootstrap.RESAMPLES,
        **({"windows": data.windows} if data.windows else {}),
        **({"controlled": LONGEST} if any(_is_shorter(c, data) for c in controls) else {}),
        "mappings": _rows(outcomes, controls, data),
    }
    return Measured(record, outcomes, data)


def _labelled(data: Data, reader: Reader) -> Data:
    """Label the unlabelled texts of a causal model by their next words."""
    is_free = data.labels is None or data.labels.metric == "perplexity"
    if not reader.causal or not is_free:
        return data
    return with_next_words(data, reader.predicted(data.inputs))


class _Controlled(NamedTuple):
    """A mapping and its control on the same data."""

    ours: Outcome
    random: Outcome
    data: Data


def _controlled(outcomes: Sequence[Outcome], data: Data) -> list[_Controlled | None]:
    """Measure the controls of all outcomes but the first, which is softmax.

    They read texts of at most LONGEST tokens, because the control has no fast kernel; of longer
    ones the start, which the mappings then read as well. There is no control without zeros
    (underflow does not count), if it cannot drop as few, or for numbers hidden in longer texts.
    """
    variants = [_shortened(outcome.variant) for outcome in outcomes]
    reader = variants[0].reader
    longer = reader.limit < outcomes[0].variant.reader.limit
    can = [bool(outcome.variant.mapping.spec.zeros) for outcome in outcomes]
    sparse = [i for i, outcome in enumerate(outcomes) if i and can[i] and outcome.zeros > 0]
    found: list[_Controlled | None] = [None] * (len(outcomes) - 1)
    answers = data.labels is not None and data.labels.metric == FOUND
    if not sparse or (longer and answers):
        return found
    if longer:
        data = _labelled(data, reader)
    batches = reader.batches(data.inputs)
    ours = [outcomes[i] for i in sparse]
    if longer:
        some = [variants[0], *(variants[i] for i in sparse)]
        ours = measure(batches, some, f"Mappings, {LONGEST} tokens")[1:]
    few = sample(reader, data.inputs, batches)
    chosen = [control(variants[i].reader, few, o.zeros) for i, o in zip(sparse, ours, strict=True)]
    randoms = measure(batches, [variants[0], *chosen], "Controls")[1:]
    for i, own, random in zip(sparse, ours, randoms, strict=True):
        if own.zeros > 0 and abs(random.zeros - own.zeros) <= NEAR * own.zeros:
            found[i - 1] = _Controlled(own, random, data)
    return found


def _is_shorter(controlled: _Controlled | None, data: Data) -> bool:
    """Whether a control has read only the start of the texts."""
    return controlled is not None and controlled.data is not data


def _shortened(variant: Variant) -> Variant:
    reader = variant.reader
    return variant._replace(reader=replace(reader, limit=min(reader.limit, LONGEST)))


def _rows(
    outcomes: Sequence[Outcome], controls: Sequence[_Controlled | None], data: Data
) -> list[dict[str, Any]]:
    """Return an entry for each mapping except softmax, the first."""
    softmax, *others = outcomes
    rows = []
    found = list(zip(others, controls, strict=True))
    for ours, controlled in tqdm(found, "Bootstrap", leave=False, dynamic_ncols=True, disable=None):
        row = {"mapping": ours.variant.label, **_shown(ours, data)}
        row["against_softmax"] = difference(ours, softmax, data)
        if controlled is not None:
            own, random, same = controlled
            row["random"] = {"r": random.variant.mapping.value("r"), **_shown(random, same)}
            if _is_shorter(controlled, data):
                row["random"]["ours"] = _shown(own, same)
            row["against_random"] = difference(own, random, same)
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


def difference(ours: Outcome, theirs: Outcome, data: Data) -> dict[str, Any]:
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
