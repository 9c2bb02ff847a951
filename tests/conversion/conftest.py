"""Tiny models with sharp attention and texts for them."""

from tests.compare.conftest import models

__all__ = ["models"]
