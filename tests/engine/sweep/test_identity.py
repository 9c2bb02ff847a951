"""A run is known by its settings, and by the source of a user's mapping."""

import sys
from pathlib import Path
from typing import Any

import pytest

from glue.config import MappingConfig, RunConfig
from sparse_attn.engine.sweep.records import identity
from sparse_attn.evaluation.labelled_files import digest
from sparse_attn.mappings import registry
from sparse_attn.system.imports import import_module
from tests.conversion.command.running import parse

SOURCE = """\
from sparse_attn import register_mapping

@register_mapping("edited")
def edited(scores):
    return (2 * scores).softmax(-1)
"""


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a mapping `edited`, imported."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr("sparse_attn.system.imports._names", [])
    monkeypatch.setattr(registry, "_SPECS", {**registry._SPECS})
    monkeypatch.delitem(sys.modules, "edited_mapping", raising=False)
    path = tmp_path / "edited_mapping.py"
    path.write_text(SOURCE)
    import_module(str(path))
    return path


def of_run(name: str) -> dict[str, Any]:
    mapping = MappingConfig(name)
    return identity(RunConfig(task="RTE", model="m", output_dir="o", mapping=mapping))


def of_conversion(name: str) -> dict[str, Any]:
    return parse(["m", "--texts", "t", "--mapping", f"{name}:mix=1", "--out", "o"]).content()


@pytest.mark.parametrize("name", ["edited", "mixed-edited", "scaled-edited"])
@pytest.mark.parametrize("found", [of_run, of_conversion])
def test_an_edited_mapping_is_another_run(found: Any, name: str, source: Path) -> None:
    before = found(name)
    assert "mapping_sha256" in before
    source.write_text(SOURCE.replace("2 *", "3 *"))
    digest.cache_clear()
    assert found(name) != before
    source.write_text(SOURCE)
    digest.cache_clear()
    assert found(name) == before


@pytest.mark.parametrize("name", ["softmax", "mixed-sparsemax", "saved", "unknown", "mixed-"])
def test_other_mappings_keep_their_hashes(name: str, source: Path) -> None:
    config = RunConfig(task="RTE", model="m", output_dir="o", mapping=MappingConfig(name))
    assert identity(config) == config.comparable()
    assert "mapping_sha256" not in of_conversion(name)
