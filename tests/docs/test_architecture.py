"""docs/architecture.md: the picture shows the floors of import-linter, the list every module."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_DRAWN = re.compile(r'<g data-room="([^"]+)" transform="translate\(\d+,(\d+)\)">')


def test_rooms_are_drawn_on_their_floors() -> None:
    linted = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    contracts = linted["importlinter"]["contracts"]
    floors = [
        re.split(r" [|:] ", floor) for contract in contracts for floor in contract.get("layers", [])
    ]
    # the library is the frame around its own rooms, and __main__ the door of commands
    floors = [floor for floor in floors if floor not in (["sparse_attn"], ["__main__"])]
    picture = (ROOT / "docs/house.svg").read_text(encoding="utf-8")
    depths = {
        room: int(depth) for rooms, depth in _DRAWN.findall(picture) for room in rooms.split()
    }
    assert sorted(depths) == sorted(room for floor in floors for room in floor)
    # a box may stand for several floors
    drawn = [{depths[room] for room in floor} for floor in floors]
    assert all(len(floor) == 1 for floor in drawn)
    assert [min(floor) for floor in drawn] == sorted(min(floor) for floor in drawn)


@pytest.mark.parametrize(
    "package", ["compare", "convert", "glue", "pipeline", "release", "sparse_attn"]
)
def test_modules_are_listed(package: str) -> None:
    listed = (ROOT / "docs/architecture.md").read_text(encoding="utf-8").split("```")[1]
    words = {*re.findall(r"\w+", listed), "__init__", "__main__"}
    missing = {path.stem for path in (ROOT / package).rglob("*.py")} - words
    assert not missing
    sources = {path.name for path in ROOT.glob("*/**/*.py")}
    assert not set(re.findall(r"\w+\.py\b", listed)) - sources
