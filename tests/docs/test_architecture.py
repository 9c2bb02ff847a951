"""docs/architecture.md lists every module, and the layers of import-linter."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8").split("```")


def test_layers_are_those_of_import_linter() -> None:
    linted = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    contracts = linted["importlinter"]["contracts"]
    layers = [layer for contract in contracts for layer in contract.get("layers", [])]
    assert [line.strip() for line in PAGE[3].strip().splitlines()] == layers


@pytest.mark.parametrize("package", ["engine", "glue", "release", "sparse_attn"])
def test_modules_are_listed(package: str) -> None:
    words = {*re.findall(r"\w+", PAGE[1]), "__init__", "__main__"}
    missing = {path.stem for path in (ROOT / package).rglob("*.py")} - words
    assert not missing
    sources = {path.name for path in ROOT.glob("*/**/*.py")}
    assert not set(re.findall(r"\w+\.py\b", PAGE[1])) - sources
