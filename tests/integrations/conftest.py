"""Tiny models with sharp attention."""

from tests.compare.conftest import models

__all__ = ["models"]
