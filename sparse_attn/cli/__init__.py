"""Command line: `sparse-attn`, or `python -m sparse_attn`.

sparse-attn mappings
sparse-attn inspect MODEL "text"
sparse-attn compare MODEL --texts FILE
sparse-attn convert MODEL --mapping entmax --texts FILE --out FOLDER
sparse-attn glue train --config FILE
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from sparse_attn.cli import compare, convert, inspect, mappings
from sparse_attn.cli.parser import LineParser, add_import
from sparse_attn.cli.programs import PROGRAMS, run_program
from sparse_attn.system.paths import own_version


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse and run one subcommand; wrong input is one line on stderr and exit code 2."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    if words and words[0] in PROGRAMS:
        run_program(*words)
    given = parse(words)
    given.run(given)


class _Version(argparse.Action):
    """Look the version up only if it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(f"sparse-attn {own_version()}")
        parser.exit()


def parse(words: list[str]) -> argparse.Namespace:
    """The options of a subcommand, and its `run`, which takes them."""
    parser = LineParser(
        prog="sparse-attn",
        description="Replace softmax in Transformers by other probability mappings.",
        epilog="Also glue and, in a clone, "
        f"{', '.join(name for name in PROGRAMS if name != 'glue')}; see sparse-attn glue --help.",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in (mappings, inspect, compare, convert):
        command.add_to(commands)
    for made in commands.choices.values():
        add_import(made)
    chosen = parser
    if words and not words[0].startswith("-"):
        if words[0] not in commands.choices:
            parser.refuse(words[0], [*commands.choices, *PROGRAMS])
        chosen = commands.choices[words[0]]
    options, rest = parser.parse_known_args(chosen.check_options(words))
    chosen.refuse_rest(rest)
    return options
