"""Options of a conversion; imports nothing heavy, so that --help is fast."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from sparse_attn.comparison.options import Given

LEAST = 64  # texts to learn from


@dataclass(frozen=True)
class Options(Given):
    """Options of the command line."""

    mapping: str
    out: Path
    target_zeros: float | None = None
    choose_layers: bool = False
    steps: int = 300
    batch_size: int = 32
    learning_rate: float = 1e-4
    ramp: float = 0.5
    max_length: int = 128
    seed: int = 0

    def content(self) -> dict[str, Any]:
        """Return the options that the result depends on."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        del found["out"], found["trust_remote_code"]
        return {
            name: str(value.resolve()) if isinstance(value, Path) else value
            for name, value in found.items()
        }
