"""Imports go the way that the picture of the house says."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIBRARY = "sparse_attn"
_DRAWN = re.compile(r'<g data-room="([^"]+)" transform="translate\(\d+,(\d+)\)">')
# of every package, and of what the library is made of: its room, and how far down that is drawn
ROOMS = {
    name: (names, int(depth))
    for names, depth in _DRAWN.findall((ROOT / "docs/house.svg").read_text(encoding="utf-8"))
    for name in names.split()
}
PACKAGES = {path.parent.name for path in ROOT.glob("*/__init__.py")}


def modules() -> Iterator[tuple[str, ast.Module]]:
    for package in sorted(PACKAGES):
        for path in sorted((ROOT / package).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            yield name.removesuffix(".__init__"), ast.parse(path.read_text(encoding="utf-8"))


def imported(tree: ast.Module) -> Iterator[str]:
    """Names with dots; of `from a import b` a.b, which is a module or something in one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def part(name: str) -> str:
    """Of a name with dots: the package, of the library's what comes next."""
    package, _, inside = name.partition(".")
    return inside.split(".")[0] if package == LIBRARY else package


def test_every_part_has_a_room() -> None:
    inside = {path.stem for path in (ROOT / LIBRARY).iterdir() if not path.stem.startswith("__")}
    assert (PACKAGES | inside) - {LIBRARY, "py"} == set(ROOMS)


def test_imports_go_down() -> None:
    pairs = set()
    for module, tree in modules():
        if module in (LIBRARY, f"{LIBRARY}.__main__"):  # the doors
            continue
        for name in imported(tree):
            if name.split(".")[0] not in PACKAGES:
                continue
            if part(name) not in ROOMS:
                assert not module.startswith(LIBRARY), f"{module} imports {name} through the door"
                continue
            (here, above), (there, below) = ROOMS[part(module)], ROOMS[part(name)]
            assert here == there or above < below, f"{module} imports {name}"
            pairs.add((here, there))
    assert len(pairs) > 30


def test_the_mathematics_knows_no_transformers() -> None:
    for module, tree in modules():
        if module.startswith(LIBRARY) and part(module) in ("mappings", "losses", "kernels"):
            outside = {name.split(".")[0] for name in imported(tree)}
            assert not outside & {"transformers", "accelerate"}, module
