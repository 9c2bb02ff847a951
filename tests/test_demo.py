"""The commands of `make demo` in the Makefile, and their data."""

import shlex
import subprocess
from collections import Counter

import pytest

from sparse_attn import cli
from sparse_attn.comparison.data import read_long_text
from sparse_attn.evaluation.data import read_split
from sparse_attn.evaluation.tasks import get_task
from tests.commands import ROOT
from tests.glue.running import parsed


def test_commands_of_the_makefile_parse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    asked = ["make", "--dry-run", "--no-print-directory", "demo", "INSTALLED="]
    printed = subprocess.check_output(asked, cwd=ROOT, text=True)
    lines = [shlex.split(line) for line in printed.replace("\\\n", "").splitlines()]
    said = " ".join(words[1] for words in lines if words[0] == "echo")
    assert "3 minutes" in said
    assert "is of one run" in said
    _, comparing, training, inspecting = (words[1:] for words in lines if words[0] != "echo")
    compared, inspected = cli.parse(comparing), cli.parse(inspecting)
    assert training[0] == "glue"
    trained = parsed(training[1:])
    assert read_long_text(compared.texts)
    assert trained.mapping.name == "r-softmax"
    assert inspected.model == f"{trained.output_dir}/model"


@pytest.mark.parametrize("split", ["train", "dev"])
def test_both_labels_have_the_same_words(split: str) -> None:
    rows = read_split(get_task(ROOT / "configs/glue/demo/order.yaml"), None, split)
    words: dict[int, Counter[str]] = {0: Counter(), 1: Counter()}
    for text, label in zip(rows["text_a"], rows["label"], strict=True):
        words[label].update(text[:-1].split())
    assert words[0] == words[1]
