"""Corpora as streams of token numbers: PTB, WikiText-2, text8, One Billion Word.

Every line ends in `<eos>`; text8 is one line of characters, without it. The vocabulary is that of
the training split, or its most frequent words, the most frequent first, as `AdaptiveHead` wants it;
any other word reads as `<unk>`.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor

from experiments.language_modeling.config import CorpusConfig

EOS, UNK = "<eos>", "<unk>"
SPLITS = ("train", "valid", "test")
# characters of text8 that are held out for validation, and as many for test
TEXT8_HELD_OUT = 5_000_000


@dataclass(frozen=True)
class Corpus:
    """Three streams of token numbers, int64 [tokens], and the words that they stand for."""

    vocabulary: tuple[str, ...]
    train: Tensor
    valid: Tensor
    test: Tensor

    def counts(self) -> Tensor:
        """How often each word of the vocabulary stands in the training split, int64 [V]."""
        return torch.bincount(self.train, minlength=len(self.vocabulary))

    def tokens(self) -> dict[str, int]:
        """Length of each split, `<eos>` included."""
        return {split: len(getattr(self, split)) for split in SPLITS}


@dataclass(frozen=True)
class Source:
    """Where a corpus lies.

    Attributes:
        files: for each split the patterns, below the folder, that its files may go by.
        hub: id and configuration of the data set for `datasets.load_dataset`.
        revision: its branch; that of scripted data sets which the hub has made into parquet.
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
    """The corpus that `config` names, from its folder or, without one, from the hub.

    Raises:
        FileNotFoundError: a split is missing: names the folder, the files that were expected and
            what is there.
        ValueError: a word, or a character of text8, is not in the training split, which has no
            `<unk>`; or the file of text8 is too short for its held-out parts.
        OSError: the hub does not answer.
    """
    if config.name == "text8":
        return _characters(_text8(config))
    train, valid, test = (_Lines(config, split) for split in SPLITS)
    vocabulary = _vocabulary(train, config.vocabulary_size)
    index = {word: number for number, word in enumerate(vocabulary)}
    return Corpus(vocabulary, *(_encode(lines, index) for lines in (train, valid, test)))


def batchify(stream: Tensor, batch: int) -> Tensor:
    """[batch, steps]: `batch` consecutive pieces of the stream, the remainder trimmed.

    Raises:
        ValueError: the stream is too short for two tokens in each of them.
    """
    steps = len(stream) // batch
    if steps < 2:
        raise ValueError(
            f"batch={batch}: expected at most {len(stream) // 2}, half the {len(stream)} tokens of "
            "the split, so that each row has a token and its successor"
        )
    return stream[: batch * steps].view(batch, steps)


class _Lines:
    """The lines of a split, each as its words and `<eos>`; read again on every iteration."""

    def __init__(self, config: CorpusConfig, split: str) -> None:
        self.source = SOURCES[config.name]
        self.paths = _find(config, split) if config.data_dir is not None else []
        self.rows = _hub_rows(config, split) if config.data_dir is None else None

    def __iter__(self) -> Iterator[list[str]]:
        texts = self._file_lines() if self.rows is None else iter(self.rows[self.source.column])
        for text in texts:
            yield [*text.split(), EOS]

    def _file_lines(self) -> Iterator[str]:
        for path in self.paths:
            with path.open(encoding="utf-8", newline="\n") as file:
                yield from file


def _find(config: CorpusConfig, split: str) -> list[Path]:
    """The files of a split: those of the first pattern that matches any."""
    assert config.data_dir is not None
    folder, files = Path(config.data_dir), SOURCES[config.name].files
    for pattern in files[split]:
        found = sorted(path for path in folder.glob(pattern) if path.is_file())
        if found:
            return found
    if not folder.is_dir():
        raise FileNotFoundError(f"corpus.data_dir={folder}: there is no such folder")
    held = sorted(entry.name + "/" * entry.is_dir() for entry in islice(folder.iterdir(), 20))
    layout = ", ".join(" or ".join(patterns) for patterns in files.values())
    raise FileNotFoundError(
        f"corpus.data_dir={folder}: no {split} split of {config.name}: expected "
        f"{' or '.join(files[split])}; the folder holds {', '.join(held) or 'nothing'}. "
        f"Expected layout: {layout}"
    )


def _hub_rows(config: CorpusConfig, split: str) -> Any:
    """A split of the hub's data set."""
    import datasets

    source = SOURCES[config.name]
    name, part = source.hub
    hub_split = source.hub_splits[SPLITS.index(split)]
    try:
        return datasets.load_dataset(name, part, split=hub_split, revision=source.revision)
    except Exception as error:  # the hub's HTTP library, and so its errors, change by release
        raise OSError(
            f"could not get {split} of {config.name} from the hub's data set {name} "
            f"({type(error).__name__}: {error}); --corpus.data_dir reads it from a folder"
        ) from error


def _vocabulary(lines: _Lines, size: int | None) -> tuple[str, ...]:
    counts = Counter(word for words in lines for word in words)
    ranked = [word for word, _ in counts.most_common()]
    if size is None or size >= len(ranked):
        return tuple(ranked)
    # these two are kept, and are among the most frequent of what is left
    return (EOS, UNK, *[word for word in ranked if word not in (EOS, UNK)][: size - 2])


def _encode(lines: _Lines, index: dict[str, int]) -> Tensor:
    """Token numbers of all lines, int64 [tokens]."""
    numbers = array("q")
    unknown = index.get(UNK)
    for words in lines:
        for word in words:
            number = index.get(word, unknown)
            if number is None:
                raise ValueError(
                    f"the word {word!r} is not in the training split, which has no {UNK} for such; "
                    "check that the splits belong together"
                )
            numbers.append(number)
    return torch.from_numpy(numpy.frombuffer(numbers, dtype=numpy.int64))


def _text8(config: CorpusConfig) -> tuple[str, str, str]:
    """Training, validation and test characters."""
    if config.data_dir is None:
        column = SOURCES["text8"].column
        train, valid, test = ("".join(_hub_rows(config, split)[column]) for split in SPLITS)
        return train, valid, test
    (path,) = _find(config, "train")
    text, held_out = path.read_text(encoding="ascii"), TEXT8_HELD_OUT
    if len(text) <= 2 * held_out:
        raise ValueError(
            f"{path}: {len(text)} characters, expected more than {2 * held_out}, which are held "
            "out; text8 has 100000000"
        )
    return text[: -2 * held_out], text[-2 * held_out : -held_out], text[-held_out:]


def _characters(texts: tuple[str, str, str]) -> Corpus:
    vocabulary = tuple(character for character, _ in Counter(texts[0]).most_common())
    unknown = set().union(*texts[1:]) - set(vocabulary)
    if unknown:
        raise ValueError(
            f"text8: {sorted(unknown)} are not among the characters of the training split; check "
            "that the file is whole"
        )
    # the characters of text8 are ASCII: one byte, and one row of the table, each
    table = torch.zeros(128, dtype=torch.int64)
    for number, character in enumerate(vocabulary):
        table[ord(character)] = number
    streams = (torch.frombuffer(bytearray(text, "ascii"), dtype=torch.uint8) for text in texts)
    return Corpus(vocabulary, *(table[stream.long()] for stream in streams))
