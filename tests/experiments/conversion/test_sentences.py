"""The sentences of GLUE that a conversion learns from."""

from pathlib import Path

import pytest

from experiments.conversion import sentences
from tests.glue.make_glue import COLUMNS

ROWS = {
    "MRPC/train": [["1", "1", "2", 'He "went .', "She went ."], ["0", "3", "4", "It is .", "No !"]],
    "SST-2/train": [
        ["a film ", "1"],
        ["a film . ", "1"],
        ["It is .", "0"],
        ["the man left .", "0"],
    ],
    "STS-B/dev": [[*map(str, range(7)), "The man left", "A dog barks.", "2.5"]],
}


def test_sentences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place, rows in ROWS.items():
        task, _, split = place.partition("/")
        (tmp_path / task).mkdir()
        lines = ["\t".join(row) for row in [COLUMNS[task][split], *rows]]
        (tmp_path / f"{place}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["sentences", str(tmp_path), str(tmp_path / "texts.txt")])
    sentences.main()
    expected = ['He "went .', "It is .", "She went .", "No !", "a film ."]
    assert (tmp_path / "texts.txt").read_text(encoding="utf-8").splitlines() == expected
