"""What is said of a pretrained model: nothing of its new head, everything of its body."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from transformers import AutoModel

from glue.model import load_model
from sparse_attn.evaluation.tasks import TASKS


class Said(logging.Handler):
    """What Transformers tells."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


@pytest.fixture
def said() -> Iterator[list[str]]:
    handler, logger = Said(), logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.WARNING)  # other tests may have silenced it
    logger.addHandler(handler)
    yield handler.texts
    logger.removeHandler(handler)
    logger.setLevel(level)


@pytest.fixture
def body(tiny_model: Path, tmp_path: Path) -> Path:
    """A model without a head."""
    AutoModel.from_pretrained(tiny_model, add_pooling_layer=True).save_pretrained(tmp_path / "body")
    return tmp_path / "body"


def test_a_new_head_is_no_news(body: Path, tiny_model: Path, said: list[str]) -> None:
    said.clear()
    load_model(str(body), TASKS["RTE"])
    assert said == []
    # of another size
    load_model(str(tiny_model), TASKS["MNLI"])
    assert said == []


def test_what_is_missing_of_the_body_is_told(body: Path, said: list[str]) -> None:
    weights = load_file(body / "model.safetensors")
    del weights["encoder.layer.1.attention.self.query.weight"]
    save_file(weights, body / "model.safetensors", {"format": "pt"})
    said.clear()
    load_model(str(body), TASKS["RTE"])
    assert "layer.1.attention.self.query.weight" in "".join(said)
