"""`python -m benchmarks.recording`: what is measured and written."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks import recording as command

RealEffort = command.Effort


def test_end_to_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "QUICK", [(2, 8)])
    monkeypatch.setattr(command, "MAPPINGS", (command.PLAIN, "r-softmax"))
    monkeypatch.setattr(command, "Effort", lambda seconds, least: RealEffort(0, 2))
    command.main(["--quick", "--out", str(tmp_path)])
    record = json.loads((tmp_path / "recording-cpu.json").read_text())
    assert [case["mapping"] for case in record["cases"]] == [command.PLAIN, "r-softmax"]
    for case in record["cases"]:
        assert (case["sentences"], case["tokens"]) == (2, 8)
        assert case["ms"]["median"] > 0
        assert set(case["ratio"]) == {command.STATISTICS, command.WEIGHTS}
        assert all(ratio["n"] == 2 for ratio in case["ratio"].values())
    assert record["environment"]["versions"]["torch"] == torch.__version__
    table = (tmp_path / "recording-cpu.md").read_text()
    assert table == command.markdown(record)
    assert "| r-softmax | 2 x 8 |" in table
    assert str(tmp_path) not in json.dumps(record) + table
    assert "2 sentences of 8 tokens" in capsys.readouterr().out
