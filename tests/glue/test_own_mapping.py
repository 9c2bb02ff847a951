"""The mapping of docs/adding-a-mapping.md in every command, as a user follows that page."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.commands import ROOT, python
from tests.glue.test_sweep import config
from website import code

PAGE = (ROOT / "docs/adding-a-mapping.md").read_text(encoding="utf-8")
# runs each program of a list in turn; prints [exit status, stdout, stderr] of each
IN_TURN = """
import contextlib, io, json, sys
told = []
for program in sys.argv[1:]:
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            exec(program, {})
        except SystemExit as stopped:
            code = stopped.code or 0
    told.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(told))
"""
LOAD = """\
from transformers import AutoModelForSequenceClassification
from sparse_attn import load_pretrained
model = load_pretrained(AutoModelForSequenceClassification, "runs/min-p/model")
print(model.bert.encoder.layer[0].attention.self.sparse_attn)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One with nothing but the page's module."""
    source = next(text for language, text, _ in code.blocks(PAGE) if language == "python")
    (tmp_path / "my_mapping.py").write_text(source)
    return tmp_path


def in_turn(folder: Path, *programs: str) -> list[list[Any]]:
    told = json.loads(python("-c", IN_TURN, *programs, cwd=folder, timeout=300))
    # the first lacks the module, which the others import
    assert [code for code, _, _ in told] == [2, *[0] * (len(programs) - 1)], told
    return told


def calling(module: str, line: str) -> str:
    return f"from {module} import main; main({shlex.split(line)})"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_commands_of_the_page(folder: Path, tiny_model: Path, glue_folder: Path) -> None:
    (shown,) = [text for language, text, _ in code.blocks(PAGE) if language == "console"]
    lines = [line for line in shown.replace("\\\n", " ").split("$ sparse-attn ") if line]
    lines = [line.replace("google-bert/bert-base-uncased", str(tiny_model)) for line in lines]
    mappings, train, inspect = lines
    train += f" --data_dir {glue_folder} --train.max_steps 2 --train.batch_size 8"
    trained = python("-m", "sparse_attn", *shlex.split(train), cwd=folder, timeout=300)
    assert trained.endswith(
        'next: sparse-attn inspect runs/min-p/model "TEXT" --pair "TEXT" --import my_mapping\n'
    )
    results = json.loads((folder / "runs/min-p/results.json").read_text())
    assert results["imports"] == ["my_mapping"]

    unknown = inspect.replace("--import my_mapping", "")
    programs = [calling("sparse_attn.cli", line) for line in (unknown, inspect, mappings)]
    (_, _, refused), _, (_, described, _), (_, loaded, _) = in_turn(folder, *programs, LOAD)
    assert refused.endswith("or add --import my_mapping\n")
    assert refused.count("\n") == 1
    assert "min-p share=0.2" in (folder / "attention.html").read_text()
    assert described.startswith("min-p\n\nsoftmax over the entries with at least a share of")
    assert "my_mapping.min_p" in described
    assert "'min-p', share=0.2" in loaded


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_sweep(folder: Path, tiny_model: Path, glue_folder: Path) -> None:
    given = config(tiny_model, glue_folder, folder / "runs")
    given |= {"tasks": {"RTE": None}, "protocol": "paper", "seeds": 1}
    given["mappings"] = {"softmax": {"name": "softmax"}, "mine": {"name": "min-p"}}
    (folder / "sweep.yaml").write_text(yaml.safe_dump(given))
    line = "glue sweep --config sweep.yaml --import my_mapping"
    out = python("-m", "sparse_attn", *line.split(), cwd=folder, timeout=300)
    assert "RTE mine grid 0: score " in out
    assert out.endswith(f"report {folder}/runs --import my_mapping\n")

    # the last is a script as on the page, which finds all runs done
    (script,) = [text for _, text, _ in code.blocks(PAGE) if "main([" in text]
    (folder / "script.py").write_text(script)
    report = f"report {folder}/runs"
    programs = [
        calling("glue.__main__", line) for line in (report, f"{report} --import my_mapping")
    ]
    programs.append("import runpy; runpy.run_path('script.py', run_name='__main__')")
    (_, _, refused), _, (_, done, _) = in_turn(folder, *programs)
    assert "its runs were given --import my_mapping" in refused
    assert "mine" in (folder / "runs/report.md").read_text()
    assert done.endswith(f"report {folder}/runs --import my_mapping\n")
