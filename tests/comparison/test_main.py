"""The command: what it prints and writes, and wrong input in one line."""

import json
import re
from pathlib import Path

import pytest

from sparse_attn import cli
from sparse_attn.comparison.page import make_page, measure_of, table
from sparse_attn.reports import bootstrap
from tests.commands import refusal
from tests.comparison.running import Models, pair_file, text_file, texts


def main(words: list[str]) -> None:
    cli.main(["compare", *words])


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
    assert len(record["mappings"]) == 9
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


@pytest.mark.parametrize(
    ("metric", "agreement", "verdicts"),
    [
        (None, "cosine", ["worse", "not significant", "better"]),
        (None, "KL, nats", ["better", "not significant", "worse"]),
        ("perplexity", "KL, nats", ["better", "not significant", "worse"]),
        ("accuracy", "KL, nats", ["worse", "not significant", "better"]),
    ],
)
def test_verdicts_know_what_is_better(
    metric: str | None, agreement: str, verdicts: list[str]
) -> None:
    """And an interval that is missing is no verdict."""
    measure = measure_of({"metric": metric, "agreement": agreement})
    intervals = [-0.3, -0.1], [-0.1, 0.1], [0.1, 0.3]
    found = [measure.judged({"value": sum(ends) / 2, "interval": ends})[1] for ends in intervals]
    assert found == verdicts
    assert measure.judged({"value": 0.1, "interval": None})[1] == "not judged"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["bert"], "one of the arguments --texts --pairs --task is required"),
        (["bert", "--texts", "a", "--pairs", "b"], "argument --pairs: not allowed with .*--texts"),
        (["bert", "--texts", "a", "--map", "b"], "--map: unknown; did you mean --mappings?"),
        (["bert", "--texts", "a", "--data_dir", "b"], "--data_dir b: only for --task"),
        (["bert", "--texts", "a", "--out", __file__], "--out .*: is a file; name a folder"),
        (["bert", "--task", "MRPCC", "--data_dir", "b"], "task 'MRPCC'; the nearest: MRPC"),
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
