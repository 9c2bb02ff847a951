"""Cases of a test for `make test`, `make slow` and `make soak`; conftest.py chooses among many."""

from typing import Any

import pytest


def first(*values: Any) -> list[Any]:
    """The first case in `make test`, the others in `make slow`; a tuple is a value of each name."""
    return [_param(values[0]), *slow(*values[1:])]


def slow(*values: Any) -> list[Any]:
    """Cases that `make slow` runs."""
    return [_param(value, pytest.mark.slow) for value in values]


def soak(*values: Any) -> list[Any]:
    """Cases that `make soak` runs."""
    return [_param(value, pytest.mark.soak) for value in values]


def _param(value: Any, *marks: Any) -> Any:
    return pytest.param(*value if isinstance(value, tuple) else (value,), marks=marks)
