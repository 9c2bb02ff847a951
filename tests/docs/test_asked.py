"""The lines of docs/asked.md run one after another, as the page says."""

import re
import shlex

from sparse_attn import cli
from tests.commands import ROOT, python
from website import code


def test_every_line_runs() -> None:
    page = (ROOT / "docs/asked.md").read_text(encoding="utf-8")
    cells = [line.split(" | ")[-1] for line in page.splitlines() if "](https://" in line]
    lines = [re.search(r"`(.+?)`", cell)[1] for cell in cells]
    commands = [line for line in lines if line.startswith("sparse-attn ")]
    assert (len(lines), len(commands)) == (13, 1)
    for command in commands:
        cli.parse(shlex.split(command)[1:])
    checks = ["assert record.special.shape == (6, 12)", "assert record.zeros.shape == (6, 12)"]
    program = [line for line in lines if line not in commands]
    python("-c", "\n".join([code.python(page), *program, *checks]), env={"HF_HUB_OFFLINE": "1"})
