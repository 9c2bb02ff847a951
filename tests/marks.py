"""Parameters of a test that take too long for `make test`."""

from typing import Any

import pytest


def slow(*values: Any) -> list[Any]:
    """Parameters that `make slow` runs; a tuple is a value of each name."""
    return _marked(pytest.mark.slow, values)


def soak(*values: Any) -> list[Any]:
    """Parameters that `make soak` runs."""
    return _marked(pytest.mark.soak, values)


def _marked(marks: Any, values: tuple[Any, ...]) -> list[Any]:
    return [pytest.param(*v if isinstance(v, tuple) else (v,), marks=marks) for v in values]
