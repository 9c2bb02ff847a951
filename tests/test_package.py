"""What the package promises as a package."""

import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

import sparse_attn

ROOT = Path(__file__).parents[1]
HEAVY = ("torch._dynamo", "torch._inductor", "transformers.trainer_callback")


def fresh(program: str) -> str:
    """What a process of its own prints."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_is_light() -> None:
    """Whoever has imported a model of Transformers waits for no other package, nor for Trainer."""
    program = f"""
import sys, torch
from transformers import BertModel
before = set(sys.modules)
import sparse_attn
new = set(sys.modules) - before
packages = {{name.partition(".")[0] for name in new}} - sys.stdlib_module_names
print(sorted(packages - {{"torch", "transformers"}}), sorted(new.intersection({HEAVY})))
"""
    assert fresh(program) == "['sparse_attn'] []"


def test_import_tells_transformers_the_name() -> None:
    program = """
import sparse_attn
from transformers import AttentionInterface
print("sparse_attn" in AttentionInterface())
"""
    assert fresh(program) == "True"


def test_names_come_when_they_are_asked_for() -> None:
    program = """
import sparse_attn
assert set(sparse_attn.__all__) <= set(dir(sparse_attn))
assert sparse_attn.heads.LinearHead and sparse_attn.SparsitySchedule()
assert sparse_attn.schedules.SparsitySchedule is sparse_attn.SparsitySchedule
from sparse_attn import *
from sparse_attn.schedules import SparsityScheduleCallback as callback
assert SparsityScheduleCallback is callback
print(*(name for name in sparse_attn.__all__ if name not in globals()))
"""
    assert fresh(program) == ""
    with pytest.raises(AttributeError, match=r"'sparse_attn' has no attribute 'r_softmax'"):
        sparse_attn.r_softmax  # noqa: B018


@pytest.mark.parametrize(
    ("arguments", "imported"),
    [(["--help"], set()), (["mappings", "--help"], set()), (["mappings"], {"torch"})],
)
def test_commands_import_what_they_use(arguments: list[str], imported: set[str]) -> None:
    command = [sys.executable, "-m", "sparse_attn", *arguments]
    environment = {**os.environ, "PYTHONPROFILEIMPORTTIME": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0
    modules = set(re.findall(r"\| +([\w.]+)$", done.stderr, re.MULTILINE))
    assert "argparse" in modules
    assert modules & {"torch", "torch._dynamo", "transformers", "matplotlib"} == imported


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
