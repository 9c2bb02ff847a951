"""Tiny models with sharp attention, and few resamples."""

import pytest

from sparse_attn.reports import bootstrap
from tests.comparison.conftest import models

__all__ = ["models"]


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "RESAMPLES", 99)
