"""Hooks that do not follow copies of a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Hook:
    """A forward hook that does nothing in a copied or pickled module."""

    def __init__(self, function: Callable[..., None] | None = None) -> None:
        self.function = function

    def __call__(self, *args: Any) -> None:
        if self.function is not None:
            self.function(*args)

    def __reduce__(self) -> tuple[type[Hook], tuple[()]]:
        return Hook, ()
