"""Fixtures of the kernel tests."""

import pytest
import torch

from sparse_attn.mappings import registry


class Poison:
    """torch.empty and its kin give NaN, and integers their largest value, until the end."""

    def __init__(self) -> None:
        torch.use_deterministic_algorithms(True)
        for empty in (torch.empty(3), torch.empty_like(torch.ones(3)), torch.ones(3).new_empty(3)):
            assert empty.isnan().all()

    def end(self) -> None:
        torch.use_deterministic_algorithms(False)


@pytest.fixture
def poisoned():
    poison = Poison()
    yield poison
    poison.end()


@pytest.fixture
def clean_registry(monkeypatch):
    """What a test registers is gone after it."""
    monkeypatch.setattr(registry, "_SPECS", dict(registry._SPECS))


@pytest.fixture
def fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()
