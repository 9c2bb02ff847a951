"""Inputs of a conversion: texts to train and to measure on, and the model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sparse_attn.comparison.data import Data, read_data, read_texts
from sparse_attn.comparison.reader import LONGEST, Reader, open_reader
from sparse_attn.conversion.converting import unpatch_plain_softmax
from sparse_attn.conversion.options import LEAST, Options
from sparse_attn.hf.patching import is_patched

HELD_OUT, MOST_HELD_OUT = 0.1, 1000  # share and largest number of texts
Texts = tuple[str, ...]  # one or two


class Inputs(NamedTuple):
    """Texts that the model learns from, and the data that it is measured on."""

    texts: Sequence[Texts]
    data: Data


def read_inputs(options: Options) -> Inputs:
    """Read the texts to learn from, and the data to measure on: pairs, a task, or held-out texts.

    Measured texts are left out of the training texts.

    Raises:
        ValueError, OSError: what is wrong with the files, or that there are too few texts.
    """
    assert options.texts is not None
    # the columns of --pairs are sides of a pair, which is not what the model reads at once
    found = read_texts(options.texts, () if options.pairs else options.columns)
    texts = found.inputs
    if options.pairs is not None or options.task is not None:
        data = read_data(options)
        read = len(data.inputs[0])
        if len(texts[0]) != read:
            raise ValueError(
                f"--texts {options.texts}: holds {_sized(len(texts[0]))}, but the model reads "
                f"{_sized(read)} of {data.source}; give texts of that kind"
            )
    else:
        order = np.random.default_rng(options.seed).permutation(len(texts))
        count = min(MOST_HELD_OUT, int(HELD_OUT * len(texts)))
        held = sorted(order[:count])
        data = Data([texts[i] for i in held], f"{found.source}, held out")
    texts = unmeasured(texts, data.inputs)
    if len(texts) < LEAST:
        raise ValueError(
            f"--texts {options.texts}: leaves {len(texts)} texts to learn from, expected at least "
            f"{LEAST}; give more of the kind that the model will read"
        )
    return Inputs(texts, data)


def unmeasured(texts: Sequence[Texts], measured: Sequence[Texts]) -> list[Texts]:
    """Return the texts without those of `measured`, whatever their case, spaces and punctuation."""
    keys = set(map(_key, measured))
    return [text for text in texts if _key(text) not in keys]


def _key(texts: Texts) -> Texts:
    """Return one key for texts that differ only in case, spaces or punctuation."""
    return tuple("".join(filter(str.isalnum, text.casefold())) or text for text in texts)


def _sized(texts: int) -> str:
    return "pairs of texts" if texts == 2 else "single texts"


def read_model(options: Options, data: Data, folder: Path | None = None) -> Reader:
    """Read the model of the options, or the one in `folder` instead.

    It reads texts of up to LONGEST tokens, or as long as those that it learns from.
    """
    reader = open_reader(
        options.model if folder is None else str(folder),
        embed=options.pairs is not None,
        task=data.task,
        max_length=options.max_length if options.max_length > LONGEST else None,
        trust_remote_code=options.trust_remote_code,
    )
    unpatch_plain_softmax(reader.model)
    if folder is None and is_patched(reader.model):
        raise ValueError(
            f"MODEL={options.model!r}: is patched already; name the model that it was made of"
        )
    return reader
