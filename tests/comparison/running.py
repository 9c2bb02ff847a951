"""What the tests of comparisons share."""

import random
from pathlib import Path
from typing import Any, NamedTuple

from sparse_attn import cli
from sparse_attn.cli.compare import options_of
from sparse_attn.comparison.comparison import compare
from sparse_attn.comparison.options import Options


class Models(NamedTuple):
    """Folders of saved models."""

    encoder: Path
    causal: Path
    classifier: Path
    regression: Path


def texts(count: int) -> list[str]:
    """Of 3 to 40 letters."""
    rng = random.Random(0)
    return ["".join(rng.choices("abcdefgh ", k=rng.randint(3, 40))) + "x" for _ in range(count)]


def text_file(folder: Path, lines: list[str]) -> Path:
    path = folder / "texts.txt"
    path.write_text("\n".join(lines) + "\n\n")
    return path


def pair_file(folder: Path, rows: list[tuple[str, str, Any]]) -> Path:
    path = folder / "pairs.tsv"
    lines = ["\t".join(map(str, row)) for row in [("sentence1", "sentence2", "score"), *rows]]
    path.write_text("\n".join(lines) + "\n")
    return path


def parse(words: list[str]) -> Options:
    """The options of a command line."""
    return options_of(cli.parse(["compare", *words]), Options)


def compared(model: Path | str, *arguments: Any) -> dict[str, Any]:
    """The record of a command line."""
    return compare(parse([str(model), *map(str, arguments)]))
