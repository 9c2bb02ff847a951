"""The report in the docs is that of the committed records, and README and page quote its rows."""

import re
from pathlib import Path

from experiments.images.report import report
from experiments.images.results import read_results
from pipeline.config import ReportConfig

ROOT = Path(__file__).parents[3]
RECORDS = ROOT / "results/images/mnist-small"
DOCS = ROOT / "docs/images"


def test_report_is_made_from_the_records(tmp_path: Path) -> None:
    page = report(ReportConfig(str(RECORDS), str(tmp_path))).path
    assert page.read_text() == (DOCS / "report.md").read_text()
    for figure in tmp_path.glob("*.png"):
        assert (DOCS / figure.name).stat().st_size > 10_000, figure.name


def test_every_loss_has_ten_runs_and_the_same_budget() -> None:
    results = read_results(RECORDS)
    assert results.faults == []
    assert len(results.records) == 5
    for label, records in results.records.items():
        stages = sorted((record.stage, record.index) for record in records)
        expected = [("final", k) for k in range(10)] + [("trial", k) for k in range(3)]
        assert stages == expected, label
    finished = [r.results for records in results.records.values() for r in records if r.results]
    assert len({str(run["versions"]) for run in finished}) == 1
    assert len({run["device"] for run in finished}) == 1


def test_the_readme_quotes_the_report() -> None:
    lines = (DOCS / "report.md").read_text().splitlines()
    found = (re.match(r"\| ([\w-]+) \| (negll|mse) ", line) for line in lines)
    cells = {match[1]: match.string for match in found if match}
    section = (ROOT / "README.md").read_text().split("## Classification")[1].split("\n## ")[0]
    rows = re.findall(r"^\| ([\w-]+) \| ([\d.]+ ± [\d.]+) \| ([\d.]+) \(", section, re.MULTILINE)
    assert len(rows) == 5
    for label, error, published in rows:
        assert f"| {error} |" in cells[label], label
        assert published in cells[label], label
