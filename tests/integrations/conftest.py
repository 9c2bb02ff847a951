"""Tiny models with sharp attention."""

from tests.comparison.conftest import models

__all__ = ["models"]
