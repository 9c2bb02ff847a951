"""Tiny models with sharp attention, and few resamples."""

import pytest

from glue.report import statistics
from tests.comparison.conftest import models

__all__ = ["models"]


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "RESAMPLES", 99)
