"""--help imports nothing heavy, so that it is there at once."""

import pytest

from tests.commands import python

HEAVY = {
    "accelerate",
    "datasets",
    "matplotlib",
    "numpy",
    "ray",
    "torch",
    "transformers",
}
CODE = """
import sys
from {program}.__main__ import main
for command in {commands}:
    try:
        main([*command, "--help"])
    except SystemExit as stop:
        assert stop.code == 0
print("heavy:", *sorted({heavy} & set(sys.modules)))
"""


@pytest.mark.parametrize(
    ("program", "commands"),
    [
        ("glue", ("train", "sweep", "report", "check")),
        ("experiments.images", ("train", "sweep", "report")),
        ("experiments.multilabel", ("train", "sweep", "report")),
        ("experiments.language_modeling", ("train", "sweep", "report")),
        ("experiments.bottleneck", ("train", "sweep", "report")),
        ("experiments.length", ("train", "sweep", "report")),
        ("benchmarks", ()),
    ],
)
def test_help_imports_nothing_heavy(program: str, commands: tuple[str, ...]) -> None:
    given = [[], *([command] for command in commands)]
    code = CODE.format(program=program, commands=given, heavy=HEAVY)
    out = python("-c", code)
    assert all(command in out for command in commands)
    assert out.endswith("heavy:\n"), out[-200:]
