"""The report in the docs is that of the committed records, and the README quotes its rows."""

import json
import re
from pathlib import Path

from experiments.multilabel.report import report
from experiments.multilabel.report.results import read_results
from pipeline.config import ReportConfig

ROOT = Path(__file__).parents[3]
RECORDS = ROOT / "results/multilabel/synthetic"
DOCS = ROOT / "docs/multilabel"


def test_report_is_made_from_the_records(tmp_path: Path) -> None:
    page = report(ReportConfig(str(RECORDS), str(tmp_path))).path
    assert page.read_text() == (DOCS / "report.md").read_text()
    for figure in tmp_path.glob("*.png"):
        assert (DOCS / figure.name).stat().st_size > 10_000, figure.name


def test_every_method_has_five_seeds_on_every_data_set() -> None:
    results = read_results(str(RECORDS))
    assert results.faults == []
    for data in results.data:
        for method in results.methods:
            assert sorted(r.index for r in results.counting(data, method)) == list(range(5))
    finished = [record.results for record in results.records if record.results]
    assert len({str(run["versions"]) for run in finished}) == 1
    assert len({run["device"] for run in finished}) == 1


def test_the_readme_quotes_the_report() -> None:
    table = (DOCS / "report.md").read_text().split("Micro-F1 in %: all decisions")[1]
    lines = [re.sub(r"\s+", "", line) for line in table.split("\n\n")[1].splitlines()]
    section = (ROOT / "README.md").read_text().split("## Classification")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (n\d\d-labels\d+) \|(.*)$", section, re.MULTILINE)
    assert len(rows) > 4
    for name, cells in rows:
        found = next(line for line in lines if line.startswith(f"|{name}|"))
        means = [cell.split("±")[0] for cell in found.split("|")[2:-1]]
        quoted = [cell.strip() for cell in cells.split("|")[:-1]]
        assert quoted == [f"{float(mean):.1f}" for mean in means], name


def test_text_classifiers_that_predict_r() -> None:
    for name in ("topics", "sst2"):
        record = json.loads((ROOT / f"results/multilabel/text/{name}.json").read_text())
        assert record["config"]["method"]["sparsity"] == "predicted"
        assert record["measured_on"] == "test"
        quoted = f"{100 * record['f1']['micro']:.1f}"
        page = " ".join((ROOT / "docs/multilabel.md").read_text().split())
        assert quoted in page, (name, quoted)
