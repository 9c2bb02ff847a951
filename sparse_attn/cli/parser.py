"""Parser of every command line without YAML files."""

from __future__ import annotations

import argparse
import difflib
import itertools
import sys
from collections.abc import Container, Iterable, Sequence
from typing import Any, NoReturn

from sparse_attn.cli.errors import refuse
from sparse_attn.system.imports import OPTION, import_module

IMPORT_HELP = (
    "import a module first, which registers a mapping of yours: by its name, also from the working "
    "directory, or by its file; repeatable"
)


class _Import(argparse.Action):
    """Import the module of `--import` when it is read, before a mapping is looked up."""

    def __call__(
        self, parser: object, namespace: object, values: object, option: str | None = None
    ) -> None:
        try:
            import_module(str(values))
        except ValueError as error:
            refuse(str(error))


def add_import(parser: argparse.ArgumentParser) -> None:
    """Add `--import` to the options of a command."""
    parser.add_argument(
        OPTION, action=_Import, dest=argparse.SUPPRESS, metavar="MODULE", help=IMPORT_HELP
    )


def take_imports(words: Sequence[str], prog: str) -> list[str]:
    """Import what `--import` names in a command line, and return its other words."""
    parser = LineParser(prog=prog, add_help=False)
    add_import(parser)
    return parser.parse_known_args(words)[1]


def with_underscores(word: str, known: Container[str]) -> str:
    """Return an option as we spell it, `--max_length=9` for `--max-length=9`, if it is known."""
    name, equals, value = word.partition("=")
    option = f"--{name[2:].replace('-', '_')}"
    return f"{option}{equals}{value}" if name[:2] == "--" and option in known else word


class LineParser(argparse.ArgumentParser):
    """Parser with one-line errors that name the closest match, and no abbreviated options."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}; see {self.prog} --help\n")

    def parse_all(self, arguments: Sequence[str] | None = None) -> argparse.Namespace:
        """Parse options and words in any order; without arguments those of the process."""
        words = sys.argv[1:] if arguments is None else arguments
        # before argparse complains of a missing option that was misspelled
        options, rest = self.parse_known_intermixed_args(self.check_options(words))
        self.refuse_rest(rest)
        return options

    def refuse_rest(self, rest: Sequence[str]) -> None:
        """Refuse words that no argument has taken, if there are any."""
        if rest and rest[0].startswith("-") and not rest[0].startswith("--"):
            self.refuse(rest[0].partition("=")[0], self._option_string_actions)
        if rest:
            self.error(f"{rest[0]}: one too many")

    def check_options(self, words: Iterable[str]) -> list[str]:
        """Return the words with underscores in options; refuse an unknown option."""
        # private: argparse does not list its options
        known, spelled = self._option_string_actions, list(words)
        for place, word in enumerate(itertools.takewhile("--".__ne__, words)):
            spelled[place] = with_underscores(word, known)
            option = spelled[place].partition("=")[0]
            # argparse treats an argument with a space as a text
            if option.startswith("--") and option not in known and " " not in word:
                self.refuse(option, known)
        return spelled

    def refuse(self, word: str, known: Iterable[str], before: str = "") -> NoReturn:
        """Refuse an unknown word, with the nearest known one."""
        near = difflib.get_close_matches(word, list(known), 1)
        hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(known)}"
        self.exit(2, f"error: {before}{word}: unknown; {hint}\n")
