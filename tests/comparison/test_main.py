"""The command: what it prints and writes, and wrong input in one line."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from sparse_attn.cli.compare import main
from sparse_attn.comparison.page import findings, make_page, table
from sparse_attn.reports import bootstrap
from tests.commands import refusal
from tests.comparison.running import Models, pair_file, text_file, texts


def test_texts(
    models: Models,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(bootstrap, "RESAMPLES", 99)
    out = tmp_path / "out"
    lines = text_file(tmp_path, texts(30))
    main([str(models.causal), "--texts", str(lines), "--out", str(out)])
    told = capsys.readouterr().out
    record = json.loads((out / "record.json").read_text())
    assert len(record["mappings"]) == 8
    folder = "/".join(models.causal.parts[-2:])
    assert (record["model"], record["source"]) == (folder, f"{tmp_path.name}/texts.txt")
    for row in table(record).rows:
        assert all(cell in told for cell in row)
    assert "KL, nats" in told
    assert told.splitlines()[-1] == f"report: {out}/report.html"
    # the page tells no folder of this machine
    assert str(tmp_path) not in (out / "report.md").read_text()
    assert {path.name for path in out.iterdir()} == {
        *("record.json", "report.html", "report.md", "zeros.png", "differences.png")
    }


def test_pairs(models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "RESAMPLES", 99)
    rows = [(text, text[::-1] + "a", number % 7) for number, text in enumerate(texts(30))]
    path, out = pair_file(tmp_path, rows), tmp_path / "out"
    main([str(models.encoder), "--pairs", str(path), "--mappings", "sparsemax", "--out", str(out)])
    record = json.loads((out / "record.json").read_text())
    page = make_page(record)
    (out / "differences.png").unlink()
    page.write(out)
    assert (out / "differences.png").exists()
    ours, sparse = table(record).rows
    assert ours[0] == "softmax"
    assert re.fullmatch(r"[+-]\d+\.\d\d \[[+-]\d+\.\d\d, [+-]\d+\.\d\d\]", sparse[4])
    assert "Intervals: 2, not corrected for their number." in (out / "report.md").read_text()


def row(name: str, value: float, *interval: float) -> dict[str, Any]:
    difference = {"value": value, "interval": interval or None}
    return {"mapping": name, "random": {}, "against_random": difference}


@pytest.mark.parametrize(
    ("agreement", "says"),
    [("cosine", "1 of 3 is nearer to softmax than"), ("KL, nats", "2 of 3 are nearer to softmax")],
)
def test_findings_know_what_is_near(agreement: str, says: str) -> None:
    rows = [row("a", -0.2, -0.3, -0.1), row("b", -0.1, -0.2, -0.01), row("c", 0.1, 0.05, 0.2)]
    record = {"metric": None, "agreement": agreement, "mappings": rows}
    (said,) = findings(record)
    assert said.startswith(says)
    record["mappings"] = [row("a", 0.1, -0.1, 0.3)]
    assert findings(record) == [
        "None is nearer to softmax, by its interval, than as many zeros at random."
    ]


def test_a_lower_perplexity_is_better() -> None:
    rows = [row("a", -2.0, -3.0, -1.0), row("b", 1.0, -1.0, 3.0), row("c", 2.0, 1.0, 3.0)]
    rows = [{**each, "against_softmax": each["against_random"]} for each in rows]
    record = {"metric": "perplexity", "agreement": "KL, nats", "mappings": rows}
    said = findings(record)
    assert said[0] == (
        "By uncorrected intervals, better than softmax: a; not told apart: b; worse: c. Half of "
        "one is 1.00 wide in the median: a true difference of that size is told apart in half of "
        "such studies."
    )
    assert said[1].startswith("1 of 3 is better than as many zeros at random")


def test_findings_where_there_is_no_interval() -> None:
    record = {"metric": None, "agreement": "cosine", "rows": 1, "texts": 1, "mappings": []}
    assert findings(record) == [
        "Nothing can be said: there are no labels, and no control has as many zeros."
    ]
    record["mappings"] = [row("a", 0.1), row("b", 0.1)]
    why = "against as many zeros at random: 1 text, too few or all with the same difference."
    assert findings(record) == [f"Nothing can be said of a and b {why}"]
    record["mappings"] = [row("a", 0.1), row("b", 0.1, 0.05, 0.2)]
    said = findings(record)
    assert said[0].startswith("1 of 1 is nearer to softmax than")
    assert said[1] == f"Nothing can be said of a {why}"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--texts", "a"], "the following arguments are required: MODEL"),
        (["bert", "gpt2", "--texts", "a"], "gpt2: one too many; see sparse-attn compare --help"),
        (["bert"], "one of the arguments --texts --pairs --task is required"),
        (["bert", "--texts", "a", "--pairs", "b"], "argument --pairs: not allowed with .*--texts"),
        (["bert", "--text", "a"], "--text: unknown; did you mean --texts?"),
        (["bert", "--texts", "a", "--map", "b"], "--map: unknown; did you mean --mappings?"),
        (
            ["bert", "--texts", "a", "--data_dir", "b"],
            "--data_dir b: only for --task; leave it out",
        ),
        (["bert", "--texts", "a", "--out", __file__], "--out .*: is a file; name a folder"),
        (["bert", "--task", "MRPCC", "--data_dir", "b"], "task 'MRPCC'; the nearest: MRPC"),
        (["./nowhere", "--texts", __file__], "expected a file .txt"),
    ],
)
def test_wrong_input(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    message = refusal(main, capsys, *arguments)
    assert re.search(says, message), message


@pytest.mark.parametrize("model", ["./nowhere", "no/such-model", "pkg://nothing/model"])
def test_models_that_are_not_there(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # the variable was read at the import, before which nothing sets it
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    lines = text_file(tmp_path, ["abc"])
    message = refusal(main, capsys, model, "--texts", lines)
    assert re.match(f"error: MODEL='{model}'", message), message
