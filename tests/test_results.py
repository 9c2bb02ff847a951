"""The tables in the README and the report in the docs are those of the committed records."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from experiments.bottleneck import report as bottleneck
from experiments.images import report as images
from experiments.language_modeling.report import report as language_model_report
from experiments.multilabel import report as multilabel
from glue.report import report
from glue.report.plots import make_plots
from glue.report.runs import read_sweep
from pipeline.config import ReportConfig
from pipeline.report import canvas
from pipeline.sweep.records import read_records
from tests.figures import blank_panels

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "results/glue/minilm"
REPORT = ROOT / "docs/glue-minilm"


def test_report_is_made_from_the_records(tmp_path: Path) -> None:
    report(str(RECORDS), str(tmp_path))
    for name in ("report.md", "report.csv"):
        assert (tmp_path / name).read_text() == (REPORT / name).read_text(), name
    assert (REPORT / "report.html").stat().st_size > 100_000


def _glue_figures(given: str, made: str) -> None:
    sweep = read_sweep(Path(given))  # the report itself takes a minute, of resampling
    for task in sweep.tasks:
        for plot in make_plots(sweep, task):
            canvas.save(plot.figure, Path(made))


@pytest.mark.parametrize(
    ("records", "make"),
    [
        ("glue/minilm", _glue_figures),
        ("language_modeling", lambda given, made: language_model_report(given, f"{made}/page.md")),
        ("images/mnist-small", lambda *folders: images.report(ReportConfig(*folders))),
        ("multilabel/synthetic", lambda *folders: multilabel.report(ReportConfig(*folders))),
        ("bottleneck/small", lambda *folders: bottleneck.report(bottleneck.ReportConfig(*folders))),
    ],
)
def test_no_figure_is_blank(
    records: str,
    make: Callable[[str, str], Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    figures: list[Figure] = []
    monkeypatch.setattr(canvas, "save", lambda figure, path: figures.append(figure))
    make(str(ROOT / "results" / records), str(tmp_path))
    assert figures
    assert [blank_panels(figure) for figure in figures] == [[]] * len(figures)


def test_records_are_whole_and_of_one_kind() -> None:
    sweep = json.loads((RECORDS / "sweep.json").read_text())
    records = read_records(RECORDS)
    assert records.faults == []
    cells = len(sweep["tasks"]) * len(sweep["mappings"])
    assert len(records.by_hash) == cells * (sweep["trials"] + sweep["seeds"])
    finished = [record for record in records.by_hash.values() if record.results]
    assert len({json.dumps(record.results["versions"]) for record in finished}) == 1
    assert len({record.results["device"] for record in finished}) == 1


def rows() -> list[dict[str, str]]:
    with (REPORT / "report.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("mapping", sorted({row["mapping"] for row in rows()}))
def test_table_of_the_readme(mapping: str) -> None:
    cells = []
    for row in rows():
        if row["mapping"] == mapping:
            cells.append(f"{100 * float(row['mean']):.1f} ± {100 * float(row['sd']):.1f}")
            if mapping != "softmax":
                low, high = (f"{100 * float(row[end]):+.1f}" for end in ("low", "high"))
                cells.append(f"{100 * float(row['difference']):+.1f} [{low}, {high}]")
            else:
                cells.append("")
            cells.append(f"{100 * float(row['sparsity']):.0f} %")
    line = f"| {mapping} | {' | '.join(cells)} |".replace("|  |", "| |")
    assert line in (ROOT / "README.md").read_text(), line


def test_throughput_of_the_readme() -> None:
    record = json.loads((ROOT / "results/benchmarks/glue-throughput.json").read_text())
    ratios = {r["name"]: r["to_recipe"]["median"] for r in record["throughput"]["rows"]}
    text = " ".join((ROOT / "README.md").read_text().split())
    assert f"{ratios['ours softmax']:.1f} times as many MRPC examples a second" in text
    assert f"and {ratios['ours r-softmax']:.1f} times with r-softmax" in text


LANGUAGE_MODELS = ROOT / "results/language_modeling"


def test_language_model_report_is_made_from_the_records(tmp_path: Path) -> None:
    language_model_report(LANGUAGE_MODELS, tmp_path / "report.md")
    written = (ROOT / "docs/language-models/report.md").read_text()
    assert (tmp_path / "report.md").read_text() == written


@pytest.mark.parametrize(
    "path", sorted(LANGUAGE_MODELS.glob("ptb-small/*.json")), ids=lambda p: p.stem
)
def test_table_of_language_models(path: Path) -> None:
    record = json.loads(path.read_text())
    rank = record["rank"]
    cells = [
        record["head"],
        f"{record['valid_perplexity']:.1f}",
        f"{record['test_perplexity']:.1f}",
    ]
    cells += [f"{rank['rank']:,}", f"{rank['float64']['rank']:,}"]
    cells += [f"{100 * record['top_10_error']:.1f} %", f"{record['seconds'] / 60:.0f}"]
    page = (ROOT / "docs/language-models.md").read_text()
    assert f"| {' | '.join(cells)} |" in page


def test_rank_of_softmax_is_the_bottleneck() -> None:
    ranks = {}
    for path in LANGUAGE_MODELS.glob("ptb-small/*.json"):
        record = json.loads(path.read_text())
        ranks[record["head"]] = record["rank"]
    d = ranks["softmax"]["d"]
    assert ranks["softmax"]["float64"]["rank"] == d + 2
    assert ranks["softmax"]["rank"] <= d + 2
    others = [rank for head, rank in ranks.items() if head != "softmax"]
    assert all(rank["float64"]["rank"] > d + 2 for rank in others)


def test_the_start_explains_softmax_abs() -> None:
    path = LANGUAGE_MODELS / "ptb-small-prior/softmax-0.json"
    record = json.loads(path.read_text())
    page = " ".join((ROOT / "docs/language-models.md").read_text().split())
    valid, test = record["valid_perplexity"], record["test_perplexity"]
    assert f"softmax with it reaches {valid:.1f} and {test:.1f}" in page
