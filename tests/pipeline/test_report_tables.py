"""`report` prints its main table and where the page is; numbers are those of committed pages."""

import importlib
import re
from pathlib import Path

import pytest

from pipeline.report.table import Table, markdown
from pipeline.report.text import unbroken

ROOT = Path(__file__).parents[2]


def test_numbers_are_aligned_right() -> None:
    rows = [["1", "75.1 ± 0.9", "[-1.00, +2.00]", "lr 0.1", "-"], ["2", "n/a", "-", "-", "< 0.001"]]
    table = Table("", ["row", "score", "interval", "setting", "p"], rows)
    assert table.numeric == [False, True, True, False, True]
    assert markdown(table)[1] == "| --- | ---: | ---: | --- | ---: |"


def test_numbers_stay_on_one_line() -> None:
    words = "a, b: 75.1 ± 0.9, by -1.00 [-2.00, +0.50], 3 seeds"
    kept = "a, b: 75.1_±_0.9, by -1.00 [-2.00,_+0.50], 3 seeds"
    assert unbroken(words) == kept.replace("_", "\N{NO-BREAK SPACE}")


@pytest.mark.parametrize(
    ("program", "records", "rows"),
    [
        ("glue", "glue/minilm", r"^r-softmax +\d\d\.\d\d \([+-]\d\.\d\d\*?\)"),
        (
            "experiments.images",
            "images/mnist-small",
            r"^taylor +0\.0418 ± 0\.0080 +1\.10 ± 0\.20 +0\.785 \(0\.097\) +10$",
        ),
        ("experiments.multilabel", "multilabel/synthetic", r"^data +softmax"),
        (
            "experiments.language_modeling",
            "language_modeling",
            r"^softmax-abs +1 +0 +0 +138\.97 +132\.47 +-51\.98$",
        ),
        (
            "experiments.bottleneck",
            "bottleneck/small",
            r"^100 +2 +1\.700 ± 0\.006 +1\.703 ± 0\.006",
        ),
    ],
)
def test_report_of_a_sweep(
    program: str, records: str, rows: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main = importlib.import_module(f"{program}.__main__").main
    main(["report", str(ROOT / "results" / records), "--output_dir", str(tmp_path)])
    out = capsys.readouterr().out
    assert re.search(rows, out, re.MULTILINE), out
    assert out.endswith(f"\n\nreport: {tmp_path / 'report.html'}\n")
    assert max(map(len, out.splitlines())) < 200
