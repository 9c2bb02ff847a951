"""The mapping of docs/adding-a-mapping.md in every command, as a user follows that page."""

import json
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests import commands
from tests.commands import ROOT, python
from tests.glue.test_sweep import config
from website import code

PAGE = (ROOT / "docs/adding-a-mapping.md").read_text(encoding="utf-8")
Command = Callable[[str], subprocess.CompletedProcess[str]]
LOAD = """\
from transformers import AutoModelForSequenceClassification
from sparse_attn import load_pretrained
model = load_pretrained(AutoModelForSequenceClassification, "runs/min-p/model")
print(model.bert.encoder.layer[0].attention.self.sparse_attn)
"""


@pytest.fixture
def sparse_attn(tmp_path: Path) -> Command:
    """The command, in a folder with nothing but the page's module."""
    source = next(text for language, text, _ in code.blocks(PAGE) if language == "python")
    (tmp_path / "my_mapping.py").write_text(source)

    def run(line: str) -> subprocess.CompletedProcess[str]:
        return commands.run("-m", "sparse_attn", *shlex.split(line), cwd=tmp_path, timeout=300)

    return run


def told(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_commands_of_the_page(
    sparse_attn: Command, tiny_model: Path, glue_folder: Path, tmp_path: Path
) -> None:
    (shown,) = [text for language, text, _ in code.blocks(PAGE) if language == "console"]
    lines = [line for line in shown.replace("\\\n", " ").split("$ sparse-attn ") if line]
    lines = [line.replace("google-bert/bert-base-uncased", str(tiny_model)) for line in lines]
    mappings, train, inspect = lines
    described = told(sparse_attn(mappings))
    assert described.startswith("min-p\n\nsoftmax over the entries with at least a share of")
    assert "my_mapping.min_p" in described

    options = f" --data_dir {glue_folder} --train.max_steps 2 --train.batch_size 8"
    trained = told(sparse_attn(train + options))
    assert trained.endswith(
        'next: sparse-attn inspect runs/min-p/model "TEXT" --pair "TEXT" --import my_mapping\n'
    )
    results = json.loads((tmp_path / "runs/min-p/results.json").read_text())
    assert results["imports"] == ["my_mapping"]

    told(sparse_attn(inspect))
    assert "min-p share=0.2" in (tmp_path / "attention.html").read_text()
    refused = sparse_attn(inspect.replace("--import my_mapping", ""))
    assert refused.returncode == 2
    assert refused.stderr.endswith("or add --import my_mapping\n")
    assert refused.stderr.count("\n") == 1

    shown = python("-c", f"import my_mapping\n{LOAD}", cwd=tmp_path)
    assert "'min-p', share=0.2" in shown


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_sweep(sparse_attn: Command, tiny_model: Path, glue_folder: Path, tmp_path: Path) -> None:
    given = config(tiny_model, glue_folder, tmp_path / "runs")
    given |= {"tasks": {"RTE": None}, "protocol": "paper", "seeds": 1}
    given["mappings"] = {"softmax": {"name": "softmax"}, "mine": {"name": "min-p"}}
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(given))
    out = told(sparse_attn("glue sweep --config sweep.yaml --import my_mapping"))
    assert "2 finished" in out
    assert out.endswith(f"report {tmp_path}/runs --import my_mapping\n")
    told(sparse_attn(f"glue report {tmp_path}/runs --import my_mapping"))
    assert "mine" in (tmp_path / "runs/report.md").read_text()
    refused = sparse_attn(f"glue report {tmp_path}/runs")
    assert refused.returncode == 2
    assert "its runs were given --import my_mapping" in refused.stderr

    # a script as on the page, which finds all runs done
    (script,) = [text for _, text, _ in code.blocks(PAGE) if "if __name__" in text]
    (tmp_path / "script.py").write_text(script)
    assert "2 finished" in python("script.py", cwd=tmp_path)
