"""The programs of a clone, by `sparse-attn NAME`."""

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from sparse_attn.cli import main, programs
from sparse_attn.cli.errors import input_errors
from sparse_attn.system import paths
from tests.commands import ROOT, refusal, run


@pytest.mark.parametrize("name", programs.PROGRAMS)
def test_a_program_is_run_as_its_module(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Replaced(BaseException):
        """`execve` does not return."""

    def execve(program: str, arguments: list[str], environment: dict[str, str]) -> Any:
        raise Replaced(program, arguments, environment["PYTHONPATH"].split(os.pathsep)[0])

    monkeypatch.setattr(os, "execve", execve)
    with pytest.raises(Replaced) as replaced:
        main([name, "train", "--help"])
    module = programs.PROGRAMS[name]
    command = [sys.executable, "-P", "-m", module, "train", "--help"]
    assert replaced.value.args == (sys.executable, command, str(ROOT))
    assert (ROOT / module.replace(".", "/") / "__main__.py").exists()


def test_modules_of_the_working_directory_are_not_run(tmp_path: Path) -> None:
    for name in ("glue", "yaml"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('another program')")
    path = {"PYTHONPATH": str(ROOT)}
    done = run("-P", "-m", "sparse_attn", "glue", "trian", cwd=tmp_path, env=path)
    assert done.stderr.startswith("error: argument subcommand: invalid choice: 'trian'")


WITHOUT_EXTRAS = """
import runpy, sys

class Missing:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in ("jsonargparse", "matplotlib"):
            raise ModuleNotFoundError(name=name)

sys.meta_path.insert(0, Missing)
for name in sys.argv[1:]:
    sys.argv = [name]
    try:
        runpy.run_module(name, run_name="__main__")
    except SystemExit as stopped:
        assert stopped.code == 2, stopped.code
"""


def test_extras_that_are_missing() -> None:
    modules = [name for name in programs.PROGRAMS.values() if name != "benchmarks"]
    told = run("-c", WITHOUT_EXTRAS, *modules).stderr
    line = r"error: (jsonargparse|matplotlib) is not installed; pip install -e '\.\[demo\]'\n"
    assert re.fullmatch(f"({line}){{{len(modules)}}}", told), told


def test_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    assert "images: only in a clone" in refusal(main, capsys, "images", "train")
    assert "did you mean glue?" in refusal(main, capsys, "gleu")
    with pytest.raises(SystemExit), input_errors():
        raise ModuleNotFoundError(name="jinja2")
    assert "jinja2 is not installed; pip install 'sparse-attn[report]'" in capsys.readouterr().err
