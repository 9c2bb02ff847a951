"""The report in the docs is that of the committed records, and the page quotes its rows."""

import re
from pathlib import Path

from experiments.bottleneck.config import ReportConfig
from experiments.bottleneck.records import read_records
from experiments.bottleneck.report import report

ROOT = Path(__file__).parents[3]
RECORDS = ROOT / "results/bottleneck/small"
DOCS = ROOT / "docs/bottleneck"


def test_report_is_made_from_the_records(tmp_path: Path) -> None:
    page = report(ReportConfig(str(RECORDS), str(tmp_path))).path
    assert page.read_text() == (DOCS / "report.md").read_text()
    for figure in tmp_path.glob("*.png"):
        assert (DOCS / figure.name).stat().st_size > 10_000, figure.name


def test_every_head_has_the_same_budget() -> None:
    results = read_records(str(RECORDS))
    budgets = {}
    for head in results.heads:
        mine = [r["config"] for r in results.records if r["config"]["head"] == head]
        budgets[head] = sorted(
            (c["vocabulary"], c["dimension"], c["steps"], c["batch"], c["seed"])
            + ((c["learning_rate"],) if c["seed"] == 1_000 else ())
            for c in mine
        )
    assert len(budgets) == 5
    assert all(budget == budgets["softmax"] for budget in budgets.values())
    assert len({str(record["versions"]) for record in results.records}) == 1


def test_the_page_quotes_the_report() -> None:
    rows = re.findall(r"^\| [\d,]+ \|.*$", (ROOT / "docs/bottleneck.md").read_text(), re.MULTILINE)
    lines = (DOCS / "report.md").read_text().splitlines()
    assert len(rows) > 10
    assert [row for row in rows if row not in lines] == []


def test_no_softmax_is_below_the_floor() -> None:
    for record in read_records(str(RECORDS)).records:
        if record["config"]["head"] == "softmax":
            assert record["log_error"] > record["floor"] > 0
