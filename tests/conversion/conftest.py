"""Tiny models with sharp attention and texts for them."""

from tests.comparison.conftest import models

__all__ = ["models"]
