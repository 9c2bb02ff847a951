"""`inspect`: show what a model's heads keep and drop in one text, under two mappings."""

from __future__ import annotations

import argparse
import itertools
import os
from pathlib import Path
from typing import Any

from sparse_attn.cli.errors import input_errors, interruption

EXAMPLES = """\
examples:
  sparse-attn inspect google-bert/bert-base-uncased "The trophy does not fit in the case."
  sparse-attn inspect runs/sst2/model "A gem." --mapping entmax:alpha=1.5
  sparse-attn inspect gpt2 "It was" --mapping sparsemax --mapping r-softmax:r=0.3
  sparse-attn inspect runs/mrpc/model "He left." --pair "He went away." --output mrpc.html

The two sides are softmax and r-softmax; --mapping replaces the second, given twice both. Of a model
that was saved with mappings they are its own mappings and softmax. The mappings and their
parameters: sparse-attn mappings.
"""
MAX_TOKENS = 128
PAGE = "attention.html"


def add_to(commands: Any) -> None:
    """Add the subcommand to the parser's."""
    parser = commands.add_parser(
        "inspect",
        help="see what each head keeps and drops in a text",
        description="Print a table of a model's attention layers and write one HTML page: point "
        "at a token and see what each head keeps and drops, two mappings side by side. The page "
        "is self-contained and works offline.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "model", metavar="MODEL", help="a folder, a hub id, or pkg://package/folder of a package"
    )
    parser.add_argument("text", metavar="TEXT", help="the text to look at, in quotes")
    parser.add_argument("--pair", metavar="TEXT", help="the second text of a sentence pair")
    parser.add_argument(
        "--mapping",
        action="append",
        default=[],
        metavar="NAME[:PARAMETER=VALUE,...]",
        help="a mapping to compare, such as r-softmax:r=0.3; at most twice",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE.html",
        help=f"output file (default: {PAGE}, or attention-2.html, ... if that exists)",
    )
    parser.add_argument(
        "--force", action="store_true", help=f"overwrite an existing file, by default {PAGE}"
    )
    parser.add_argument(
        "--max-tokens",
        type=int,
        default=MAX_TOKENS,
        metavar="N",
        help="refuse longer texts, which make large pages (%(default)s)",
    )
    parser.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="run Python code that comes with the model; read it first",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Check, read, record, and only then write."""
    with interruption("the same command starts over"), input_errors(NotImplementedError):
        options.output = options.output or (Path(PAGE) if options.force else _unused_page())
        _check(options)
        # imports Transformers, which --help must not wait for
        from sparse_attn.cli.inspect_run import look
        from sparse_attn.inspection.page import write_page

        sides, page, note = look(options)
        write_page(options.output, page, overwrite=options.force)
    for name, record in sides.items():
        print(f"{name}\n{record.table()}\n")
    if note:
        print(note)
    print(f"page: {options.output} ({len(page) / 1e3:,.0f} kB); open it in a browser")


def _unused_page() -> Path:
    """Return the first of attention.html, attention-2.html, ... that does not exist."""
    first = Path(PAGE)
    numbered = (first.with_stem(f"{first.stem}-{number}") for number in itertools.count(2))
    return next(path for path in itertools.chain([first], numbered) if not os.path.lexists(path))


def _check(options: argparse.Namespace) -> None:
    """Raise ValueError for wrong options before anything is loaded."""
    for name, text in (("TEXT", options.text), ("--pair", options.pair)):
        if text is not None and not text.strip():
            raise ValueError(f"{name} is empty; give a text, in quotes")
        # Python turns bytes of an argument that are not UTF-8 into lone surrogates
        if text is not None and any("\ud800" <= char <= "\udfff" for char in text):
            raise ValueError(f"{name} contains bytes that are not UTF-8; convert it first")
    if len(options.mapping) > 2:
        raise ValueError(
            f"--mapping is given {len(options.mapping)} times: expected at most two, one per side"
        )
    if options.max_tokens < 1:
        raise ValueError(f"--max-tokens {options.max_tokens}: expected at least 1")
    output: Path = options.output
    if output.suffix not in (".html", ".htm"):
        raise ValueError(f"--output {output}: expected a file name ending in .html")
    if not output.parent.is_dir():
        raise ValueError(f"--output {output}: there is no folder {output.parent}; create it first")
    if output.is_dir():
        raise ValueError(f"--output {output}: is a folder; name a file in it")
    if os.path.lexists(output) and not options.force:
        raise ValueError(
            f"--output {output}: exists; add --force to replace it, or name another file"
        )
