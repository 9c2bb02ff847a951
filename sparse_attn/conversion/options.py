"""Options of a conversion; imports nothing heavy, so that --help is fast."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from sparse_attn.comparison.options import Given
from sparse_attn.evaluation.labelled_files import digest

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
        """Return the options that the result depends on, and the SHA-256 of a user's mapping."""
        from sparse_attn.mappings.registry import file_of

        found = {field.name: getattr(self, field.name) for field in fields(self)}
        del found["out"], found["trust_remote_code"]
        if file := file_of(self.mapping.partition(":")[0].strip()):
            found["mapping_sha256"] = digest(file)
        return {
            name: str(value.resolve()) if isinstance(value, Path) else value
            for name, value in found.items()
        }
