"""Fixtures of the kernel tests."""

import pytest
import torch

from sparse_attn.mappings import registry


@pytest.fixture
def clean_registry(monkeypatch):
    """What a test registers is gone after it."""
    monkeypatch.setattr(registry, "_SPECS", dict(registry._SPECS))


@pytest.fixture
def fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()
