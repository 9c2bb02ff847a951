"""What the package promises as a package."""

import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import sparse_attn

ROOT = Path(__file__).parents[1]
HEAVY = ("datasets", "evaluate", "ray", "matplotlib", "triton")


def test_import_is_light() -> None:
    # a CUDA build of torch imports triton itself
    program = (
        "import sys, torch, transformers.modeling_utils, transformers.trainer_callback\n"
        "before = set(sys.modules)\n"
        "import sparse_attn\n"
        f"print([m for m in {HEAVY} if m in sys.modules and m not in before])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_mathematics_imports_torch_only() -> None:
    for path in (ROOT / "sparse_attn/mappings").glob("*.py"):
        assert "transformers" not in path.read_text(), path


def test_public_names_exist_and_are_typed() -> None:
    assert all(hasattr(sparse_attn, name) for name in sparse_attn.__all__)
    assert (ROOT / "sparse_attn/py.typed").exists()


def test_one_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert version("sparse-attn") == project["version"]
    assert f"## {project['version']}" in (ROOT / "CHANGELOG.md").read_text()
