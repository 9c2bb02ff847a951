"""Command line of the library.

Run as:
    python -m sparse_attn mappings
    python -m sparse_attn inspect MODEL "text"
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NoReturn

from sparse_attn.commands import inspect, mappings


class Parser(argparse.ArgumentParser):
    """Says what is wrong with the arguments in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}; see {self.prog} --help\n")


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse and run one subcommand; wrong input is one line on stderr and exit code 2."""
    parser = Parser(
        prog="python -m sparse_attn",
        description="Other probability mappings than softmax in Transformers: list them, see them.",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in (mappings, inspect):
        command.add_to(commands)
    options = parser.parse_args(arguments)
    options.run(options)
