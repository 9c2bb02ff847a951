"""Command line: `sparse-attn`, or `python -m sparse_attn`.

sparse-attn mappings
sparse-attn inspect MODEL "text"
sparse-attn compare MODEL --texts FILE                    # in a clone
sparse-attn convert MODEL --mapping entmax --texts FILE --out FOLDER
sparse-attn glue train --config configs/glue/mrpc.yaml
"""

from __future__ import annotations

import argparse
import difflib
import itertools
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from sparse_attn.cli import inspect, mappings
from sparse_attn.cli.programs import PROGRAMS, run_program


class Parser(argparse.ArgumentParser):
    """Says what is wrong with the arguments in one line."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}; see {self.prog} --help\n")

    def unknown(self, word: str, known: Iterable[str]) -> NoReturn:
        """Refuse a word, with the nearest known one."""
        near = difflib.get_close_matches(word, list(known), n=1)
        if near:
            self.exit(2, f"error: {word}: unknown; did you mean {near[0]}?\n")
        self.error(f"{word}: unknown")

    def check_options(self, words: Iterable[str]) -> None:
        """Refuse an unknown option."""
        known = self._option_string_actions
        for word in itertools.takewhile("--".__ne__, words):
            option = word.partition("=")[0]
            # argparse takes what holds a space for a text
            if option.startswith("--") and option not in known and " " not in word:
                self.unknown(option, known)


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse and run one subcommand; wrong input is one line on stderr and exit code 2."""
    parser = Parser(
        prog="sparse-attn",
        description="Replace softmax in Transformers by other probability mappings.",
        epilog="In a clone also: convert, which makes a model sparse, compare, which shows what it "
        f"loses untrained, {', '.join(list(PROGRAMS)[2:])}; see sparse-attn convert --help etc.",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in (mappings, inspect):
        command.add_to(commands)
    words = sys.argv[1:] if arguments is None else arguments
    chosen = parser
    if words and words[0] in PROGRAMS:
        run_program(*words)
    if words and not words[0].startswith("-"):
        if words[0] not in commands.choices:
            parser.unknown(words[0], [*commands.choices, *PROGRAMS])
        chosen = commands.choices[words[0]]
    chosen.check_options(words)
    options = parser.parse_args(words)
    options.run(options)
