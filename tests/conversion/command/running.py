"""What the tests of conversions share."""

from pathlib import Path
from typing import Any

from sparse_attn import cli
from sparse_attn.cli.compare import options_of
from sparse_attn.conversion.options import Options
from sparse_attn.conversion.stages import perform
from tests.comparison.running import text_file, texts

TEXTS = texts(90)
QUICK = ["--steps", "8", "--batch_size", "8", "--learning_rate", "3e-3"]
SPARSE = ["--mapping", "entmax", "--target_zeros", "0.6", *QUICK]


def parse(words: list[str]) -> Options:
    """The options of a command line."""
    return options_of(cli.parse(["convert", *words]), Options)


def converted(model: Path, out: Path, *arguments: Any, lines: list[str] = TEXTS) -> dict[str, Any]:
    """The record of a command line on TEXTS."""
    if not any(path.name == "texts.txt" for path in out.parent.iterdir()):
        text_file(out.parent, lines)
    given = ["--texts", out.parent / "texts.txt", "--out", out, *(arguments or SPARSE)]
    record = perform(parse([str(model), *map(str, given)]))
    assert record is not None
    return record
