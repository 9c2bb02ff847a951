"""`--import MODULE` in every command: what it finds, and its errors."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from glue.__main__ import main as glue
from sparse_attn.cli import main
from sparse_attn.mappings import registry
from sparse_attn.system import imports
from tests.commands import refusal

MODULE = """\
from sparse_attn import register_mapping

@register_mapping("{name}")
def function(scores):
    \"\"\"softmax(2 z).\"\"\"
    return (2 * scores).softmax(-1)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory; modules, paths and mappings are forgotten after the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_SPECS", dict(registry._SPECS))
    monkeypatch.setattr(imports, "_names", [])
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


def test_by_name_from_the_working_directory(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "one.py").write_text(MODULE.format(name="one"))
    (folder / "two.py").write_text(MODULE.format(name="two"))
    main(["mappings", "--import", "one", "two", "--import=two"])
    told = capsys.readouterr().out
    assert told.startswith("two\n\nsoftmax(2 z).\n")
    assert "function    two.function\n" in told
    assert imports.imported() == ("one", "two")
    assert imports.import_options(["one"]) == ["--import", "one"]


def test_a_file_in_another_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "inner").mkdir()
    (folder / "inner/three.py").write_text("import beside\n" + MODULE.format(name="three"))
    (folder / "inner/beside.py").touch()
    main(["mappings", "three", "--import", "inner/three.py"])
    assert capsys.readouterr().out.startswith("three\n")


def test_a_command_with_files_imports_before_it_checks(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Though --import comes last; and a file of options cannot import."""
    (folder / "four.py").write_text(MODULE.format(name="four"))
    arguments = ["sweep", "--model", "m", "--output_dir", "out", "--tasks", "{RTE: null}"]
    arguments += ["--learning_rates", "[1e-3]"]
    arguments += ["--mappings", "{softmax: {name: softmax}, x: {name: four}}"]
    unknown = refusal(glue, capsys, *arguments)
    assert "mappings.x: mapping='four' is unknown" in unknown
    assert "import the module of yours first (--import MODULE)" in unknown
    known = refusal(glue, capsys, *arguments, "--import", "four")
    assert "mappings.x: the fair protocol ramps every mapping" in known
    (folder / "options.yaml").write_text("import: five\n")
    assert "import: unknown" in refusal(glue, capsys, *arguments, "--config", "options.yaml")


@pytest.mark.parametrize("command", [main, glue], ids=["sparse-attn", "glue"])
@pytest.mark.parametrize(
    ("name", "source", "says"),
    [
        (
            "mising",
            None,
            "there is no such module; expected mising.py in {folder}, or an installed",
        ),
        ("mising.py", None, "there is no such file"),
        ("broken", "import torch\nraise KeyError(3)", "KeyError: 3 (broken.py, line 2)"),
        ("needs", "import not_installed", "No module named 'not_installed' (needs.py, line 1)"),
        ("wrong", "def", "SyntaxError: invalid syntax (wrong.py, line 1)"),
        (
            "sums",
            "from sparse_attn import register_mapping\n\n"
            "register_mapping('sums')(lambda z: z.sigmoid())",
            "mapping='sums': has rows that sum to ",
        ),
        ("json.py", "", "json is also the name of "),
        ("json", "", "json is also the name of "),
    ],
)
def test_a_module_that_cannot_be_imported(
    command, name: str, source: str | None, says: str, folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    if source is not None:
        (folder / f"{name.removesuffix('.py')}.py").write_text(source)
    words = {main: ["mappings"], glue: ["train", "--task", "RTE"]}[command]
    said = refusal(command, capsys, *words, "--import", name)
    assert said.startswith(f"error: --import {name}: ")
    assert says.format(folder=folder) in said


@pytest.mark.parametrize("command", [main, glue])
def test_no_module(command, capsys: pytest.CaptureFixture[str]) -> None:
    word = {main: "mappings", glue: "train"}[command]
    said = refusal(command, capsys, word, "--import")
    assert "argument --import: expected one argument; see " in said
