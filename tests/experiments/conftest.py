"""Sweeps without the seconds that their processes take to start."""

import pytest

from tests.engine.sweep.inline import Inline


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sweeps of the test do their runs one after the other, where they are."""
    monkeypatch.setattr("sparse_attn.engine.sweep.run.make_pool", Inline)
