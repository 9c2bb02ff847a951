"""The parser of every command line that has no YAML files."""

from __future__ import annotations

import argparse
import difflib
import itertools
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn


class LineParser(argparse.ArgumentParser):
    """Its errors are one line, with the closest match; options have no abbreviations."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}; see {self.prog} --help\n")

    def parse_all(self, arguments: Sequence[str] | None = None) -> argparse.Namespace:
        """Options and other words, in any order; without arguments those of the process."""
        words = sys.argv[1:] if arguments is None else list(arguments)
        # before argparse misses what a misspelled one should have given
        self.check_options(words)
        options, rest = self.parse_known_intermixed_args(words)
        if rest:
            self.error(f"{rest[0]}: one too many")
        return options

    def check_options(self, words: Iterable[str]) -> None:
        """Refuse an unknown option."""
        # private: argparse does not list its options
        known = self._option_string_actions
        for word in itertools.takewhile("--".__ne__, words):
            option = word.partition("=")[0]
            # argparse takes what holds a space for a text
            if option.startswith("--") and option not in known and " " not in word:
                self.refuse(option, known)

    def refuse(self, word: str, known: Iterable[str], before: str = "") -> NoReturn:
        """Refuse an unknown word, with the nearest known one."""
        near = difflib.get_close_matches(word, list(known), 1)
        if near:
            self.exit(2, f"error: {before}{word}: unknown; did you mean {near[0]}?\n")
        self.error(f"{before}{word}: unknown")
