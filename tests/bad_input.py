"""Wrong input of every room, a row a case: the error names the argument, what came and the remedy.

A room lists its rows in a module of its tests, `ROWS` of bad_input.py; test_bad_input.py runs them.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple


class Wrong(NamedTuple):
    """A call and what it must raise.

    Attributes:
        name: of the case.
        call: is given an empty folder.
        error: the type of the error.
        says: a regular expression that is found in the message, across its lines.
    """

    name: str
    call: Callable[[Path], Any]
    error: type[BaseException]
    says: str
