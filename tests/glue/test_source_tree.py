"""A copy of the sources runs where this project is not installed."""

import json
import shutil
import site
import tomllib
from pathlib import Path

import pytest

from tests.commands import ROOT, python, run
from tests.glue.running import Asked

SOURCES = ("glue", "sparse_attn")


def without_this_project(folder: Path) -> Path:
    """The packages of this interpreter without this project's metadata and editable install."""
    folder.mkdir()
    for packages in site.getsitepackages():
        for path in Path(packages).iterdir():
            if "sparse_attn" not in path.name and not (folder / path.name).exists():
                (folder / path.name).symlink_to(path)
    return folder


@pytest.mark.soak
def test_it_trains_and_names_its_version(asked: Asked, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for name in SOURCES:
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tree)
    packages = {"PYTHONPATH": str(without_this_project(tmp_path / "site-packages"))}
    program = "from importlib.metadata import version; version('sparse-attn')"
    assert "PackageNotFoundError" in run("-S", "-c", program, cwd=tree, env=packages).stderr
    given = asked(tmp_path / "run", "--train.max_steps", "1", "--keep_model", "false")
    # -S: no .pth file adds the editable install
    python("-S", "-m", "glue", *given, cwd=tree, env=packages)
    results = json.loads((tmp_path / "run/results.json").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert results["versions"]["sparse-attn"] == project["version"]
