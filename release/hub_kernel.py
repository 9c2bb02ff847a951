"""The kernels as a package that Hugging Face's `kernels` loads: `make hub-kernel`, into build/.

It holds release/kernel and copies of every module of the library that this imports, with relative
imports and operators under a name of its own, so that both can be in one process.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import shutil
from pathlib import Path

ROOT = Path(__file__).parents[1]
KERNEL = Path(__file__).with_name("kernel")
LIBRARY = "sparse_attn"
NAME = "sparse-attention"
VERSION = 1  # of the interface: Transformers asks for the first unless told otherwise
BACKENDS = ("cpu", "cuda")
# in place of the library's, which imports the C++
REPLACED = {"kernels/implementations.py": KERNEL / "implementations.py"}


def main() -> None:
    folder = ROOT / "build" / "hub-kernel"
    write(folder)
    print(f"{folder.relative_to(ROOT)}: for `kernels.get_local_kernel`, or to upload")


def write(folder: Path) -> None:
    """The repository, in `folder`, which is emptied; a variant for each backend."""
    shutil.rmtree(folder, ignore_errors=True)
    files = sources()
    digest = hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()
    for backend in BACKENDS:
        variant = folder / "build" / f"torch-{backend}"
        unique = f"_{NAME.replace('-', '_')}_{backend}_{digest[:7]}"
        for place, text in files.items():
            (variant / place).parent.mkdir(parents=True, exist_ok=True)
            (variant / place).write_text(relocated(text, place, unique), encoding="utf-8")
        metadata = {
            **{"id": unique, "name": NAME, "version": VERSION, "license": "apache-2.0"},
            **{"python-depends": [], "backend": {"type": backend}},
        }
        (variant / "metadata.json").write_text(json.dumps(metadata, indent=2) + "\n")
    for path in (KERNEL / "README.md", ROOT / "LICENSE"):
        shutil.copy(path, folder)


def sources() -> dict[str, str]:
    """The text of each file by its place in the package: the entry, and all that it imports."""
    files = {"__init__.py": (KERNEL / "__init__.py").read_text(encoding="utf-8")}
    queue = list(files.values())
    while queue:
        for place in imported(queue.pop()):
            if place not in files:
                path = REPLACED.get(place, ROOT / LIBRARY / place)
                files[place] = path.read_text(encoding="utf-8")
                queue.append(files[place])
    return files


def imported(text: str) -> set[str]:
    """Places of the modules of the library that a source imports, and of their packages."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith(LIBRARY):
            continue
        package, *parts = str(node.module).split(".")
        for names in (parts, *([*parts, alias.name] for alias in node.names)):
            for length in range(1, len(names) + 1):
                stem = "/".join(names[:length])
                for place in (f"{stem}.py", f"{stem}/__init__.py"):
                    if (ROOT / package / place).exists():
                        found.add(place)
    return found


def relocated(text: str, place: str, unique: str) -> str:
    """A source with relative imports, and operators in the namespace `unique`."""
    up = "." * (place.count("/") + 1)
    text = re.sub(rf"\bfrom {LIBRARY}\.([\w.]+) import", rf"from {up}\1 import", text)
    text = text.replace(f'"{LIBRARY}::', f'"{unique}::')
    return text.replace(f"torch.ops.{LIBRARY}", f"torch.ops.{unique}")


if __name__ == "__main__":
    main()
