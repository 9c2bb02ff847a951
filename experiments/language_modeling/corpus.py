"""Corpora as streams of token ids: PTB, WikiText-2, text8, One Billion Word.

Every line ends in `<eos>`, except in text8, which is one line of characters. The vocabulary holds
the words of the training split, or the most frequent ones, by descending frequency as
`AdaptiveHead` needs; any other word becomes `<unk>`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

import numpy
import torch
from torch import Tensor

from experiments.language_modeling.sections import CorpusConfig
from sparse_attn.evaluation.text_files import read_lines, read_text
from sparse_attn.system.hub import load_from_hub

EOS, UNK = "<eos>", "<unk>"
SPLITS = ("train", "valid", "test")
# characters of text8 held out for validation, and again for test
TEXT8_HELD_OUT = 5_000_000


@dataclass(frozen=True)
class Corpus:
    """Three streams of token ids, int64 [tokens], and the vocabulary."""

    vocabulary: tuple[str, ...]
    train: Tensor
    valid: Tensor
    test: Tensor

    def counts(self) -> Tensor:
        """Count of each word in the training split, int64 [V]."""
        return torch.bincount(self.train, minlength=len(self.vocabulary))

    def tokens(self) -> dict[str, int]:
        """Length of each split, `<eos>` included."""
        return {split: len(getattr(self, split)) for split in SPLITS}


@dataclass(frozen=True)
class Source:
    """Location of a corpus: its files, or its data set on the hub.

    Attributes:
        files: for each split, the patterns that its files below the folder may match.
        hub: id and configuration of the data set for `datasets.load_dataset`.
        revision: its branch; for scripted data sets, the one that the hub converted to parquet.
        column: the hub's column of text.
        hub_splits: the hub's name for each split.
    """

    files: dict[str, tuple[str, ...]]
    hub: tuple[str, str | None]
    revision: str | None
    column: str
    hub_splits: tuple[str, str, str] = ("train", "validation", "test")


SOURCES = {
    "ptb": Source(
        {split: (f"ptb.{split}.txt",) for split in SPLITS},
        ("ptb-text-only/ptb_text_only", None),
        "refs/convert/parquet",
        "sentence",
    ),
    "wikitext-2": Source(
        {split: (f"wiki.{split}.tokens", f"{split}.txt") for split in SPLITS},
        ("Salesforce/wikitext", "wikitext-2-v1"),
        None,
        "text",
    ),
    "text8": Source({"train": ("text8",)}, ("afmck/text8", None), None, "text"),
    # the literature tests on the first of the fifty held-out shards
    "one-billion-word": Source(
        {
            "train": ("training-monolingual*/news.en-*-of-*",),
            "valid": ("heldout-monolingual*/news.en.heldout-00001-of-*",),
            "test": ("heldout-monolingual*/news.en.heldout-00000-of-*",),
        },
        ("billion-word-benchmark/lm1b", None),
        "refs/convert/parquet",
        "text",
        ("train", "test[2%:4%]", "test[:2%]"),
    ),
}


def load_corpus(config: CorpusConfig) -> Corpus:
    """Load the corpus from its folder or, without one, from the hub.

    Raises:
        FileNotFoundError: a split is missing; names the folder, the expected files and the ones
            found.
        ValueError: a word, or a character of text8, is not in the training split, which has no
            `<unk>`; or text8 is too short for its held-out parts.
        OSError: the hub cannot be reached.
    """
    texts = [_texts(config, split) for split in SPLITS]
    train, valid, test = (_tokens(text, config.name == "text8") for text in texts)
    index: dict[str, int] = {}  # numbers by first appearance
    numbers = _stream(index.setdefault(token, len(index)) for token in train)
    vocabulary, numbers = _by_frequency(list(index), numbers, config.vocabulary_size)
    index = {token: number for number, token in enumerate(vocabulary)}
    return Corpus(vocabulary, numbers, *(_encode(split, index) for split in (valid, test)))


def batchify(stream: Tensor, batch: int) -> Tensor:
    """[batch, steps]: `batch` consecutive pieces of the stream, the remainder trimmed.

    Raises:
        ValueError: the stream is too short for two tokens in each piece.
    """
    steps = len(stream) // batch
    if steps < 2:
        raise ValueError(
            f"batch={batch}: expected at most {len(stream) // 2}, half the {len(stream)} tokens of "
            "the split, so that each row has a token and its successor"
        )
    return stream[: batch * steps].view(batch, steps)


def _tokens(texts: Iterable[str], characters: bool) -> Iterator[str]:
    """The words of each text with `<eos>`, or its characters."""
    for text in texts:
        yield from text if characters else (*text.split(), EOS)


def _texts(config: CorpusConfig, split: str) -> Iterable[str]:
    """The lines of a split, or its part of the text8 file."""
    if config.data_dir is None:
        return _hub_texts(config, split)
    if config.name != "text8":
        return chain.from_iterable(map(_lines, _find(config, split)))
    (path,) = _find(config, "train")
    text, held_out = read_text(path), TEXT8_HELD_OUT
    if not text.isascii():
        raise ValueError(f"{path}: not ASCII; expected text8, which is letters a to z and spaces")
    if len(text) <= 2 * held_out:
        raise ValueError(
            f"{path}: {len(text)} characters, expected more than {2 * held_out}, the number held "
            "out; text8 has 100000000"
        )
    ends = {"train": (0, -2 * held_out), "valid": (-2 * held_out, -held_out)}
    return [text[slice(*ends.get(split, (-held_out, None)))]]


def _lines(path: Path) -> Iterator[str]:
    return (line for _, line in read_lines(path))


def _find(config: CorpusConfig, split: str) -> list[Path]:
    """The files of a split, by the first pattern that matches any."""
    assert config.data_dir is not None
    folder, files = Path(config.data_dir), SOURCES[config.name].files
    for pattern in files[split]:
        found = sorted(path for path in folder.glob(pattern) if path.is_file())
        if found:
            return found
    layout = ", ".join(" or ".join(patterns) for patterns in files.values())
    if not folder.is_dir():
        raise FileNotFoundError(f"corpus.data_dir={folder}: no such folder; expected {layout}")
    held = sorted(entry.name + "/" * entry.is_dir() for entry in islice(folder.iterdir(), 20))
    raise FileNotFoundError(
        f"corpus.data_dir={folder}: no {split} split of {config.name}: expected "
        f"{' or '.join(files[split])}; the folder holds {', '.join(held) or 'nothing'}. "
        f"Expected layout: {layout}"
    )


def _hub_texts(config: CorpusConfig, split: str) -> Iterable[str]:
    """The texts of a split from the hub."""
    source = SOURCES[config.name]
    rows = load_from_hub(
        *source.hub,
        split=source.hub_splits[SPLITS.index(split)],
        revision=source.revision,
        what=f"{split} of {config.name}",
        instead="give --corpus.data_dir",
    )
    texts: Iterable[str] = rows[source.column]
    return texts


def _stream(numbers: Iterable[int]) -> Tensor:
    """Token ids as int64 [tokens], grown at eight bytes each."""
    return torch.from_numpy(numpy.frombuffer(array("q", numbers), dtype=numpy.int64))


def _by_frequency(
    words: list[str], numbers: Tensor, size: int | None
) -> tuple[tuple[str, ...], Tensor]:
    """The vocabulary by descending frequency, and the stream in its ids."""
    ranked = torch.bincount(numbers).argsort(descending=True, stable=True).tolist()
    vocabulary = [words[number] for number in ranked]
    if size is not None and size < len(vocabulary):
        # always keep these two; many words become <unk>, so both are frequent
        kept = [word for word in vocabulary if word not in (EOS, UNK)]
        vocabulary = [EOS, UNK, *kept[: size - 2]]
    index = {word: number for number, word in enumerate(vocabulary)}
    table = torch.tensor([index.get(word, index.get(UNK, 0)) for word in words], dtype=torch.int64)
    return tuple(vocabulary), table[numbers]


def _encode(tokens: Iterable[str], index: dict[str, int]) -> Tensor:
    """Token ids, int64 [tokens]."""
    unknown = index.get(UNK)

    def number(token: str) -> int:
        found = index.get(token, unknown)
        if found is None:
            raise ValueError(
                f"{token!r} is not in the training split, which has no {UNK}; check that "
                "the splits are whole and belong together"
            )
        return found

    return _stream(map(number, tokens))
