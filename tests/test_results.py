"""What is made from results/ is made again from the committed records, byte for byte."""

import csv
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from importlib.metadata import version
from itertools import compress
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from engine.experiment import Experiment
from engine.sweep.plan import Cell
from engine.sweep.records import hash_of, read_records
from experiments.bottleneck.__main__ import EXPERIMENT as BOTTLENECK
from experiments.bottleneck.report import MEASURES
from experiments.language_modeling.__main__ import EXPERIMENT as LANGUAGE_MODELING
from experiments.multilabel.__main__ import EXPERIMENT as MULTILABEL
from experiments.multilabel.measures import AVERAGES, f1
from glue.__main__ import EXPERIMENT as GLUE
from sparse_attn.reports import canvas
from sparse_attn.reports.seed_statistics import settled
from tests.figures import blank_panels
from tests.test_quoted import rows as quoted_rows
from website import records
from website.records import DIGEST, REPORTS, digest, pages_with_tables
from website.results import RESULTS, TABLES, every_record

ROOT = Path(__file__).parents[1]
PINNED = re.search(r"^matplotlib==(.*)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
# a line of the table that `report` prints
PRINTED = {
    "glue-minilm": r"^r-softmax +\d\d\.\d\d \([+-]\d\.\d\d\*?\)",
    "multilabel": r"^data +softmax",
    "bottleneck": r"^100 +2 +1\.700 ± 0\.006 +1\.703 ± 0\.006",
    "language-models": r"^plif +1 +0 +0 +184\.73 +178\.50 +-5\.95$",
}


@pytest.fixture(scope="module")
def figures() -> Iterator[list[Figure]]:
    """Every figure that is saved while the reports are made."""
    made: list[Figure] = []

    def watched(figure: Figure, path: Path) -> None:
        made.append(figure)
        save(figure, path)

    save = canvas.save
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(canvas, "save", watched)
        yield made


def files(folder: Path) -> set[Path]:
    """Those of a report but for report.html, which shows the same once more."""
    paths = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {path for path in paths if path.name != "report.html"}


@pytest.mark.slow
@pytest.mark.parametrize("name", REPORTS)
def test_reports(
    name: str, tmp_path: Path, figures: list[Figure], capsys: pytest.CaptureFixture[str]
) -> None:
    """The pages, tables and figures under docs/; and no figure has a panel without data."""
    figures.clear()
    write, of = REPORTS[name]
    write(RESULTS / of, tmp_path)
    assert figures or name == "multilabel-raw"  # one data set has no axis
    if name in PRINTED:
        out = capsys.readouterr().out
        assert re.search(PRINTED[name], out, re.MULTILINE), out
        assert out.endswith(f"\n\nreport: {tmp_path / 'report.html'}\n")
        assert max(map(len, out.splitlines())) < 200
    committed = ROOT / "docs" / name
    paths = files(committed)
    assert paths == files(tmp_path)
    drawn = PINNED and version("matplotlib") == PINNED[1]
    for path in paths:
        if path.suffix in (".md", ".csv") or drawn:  # another matplotlib draws other bytes
            same = (committed / path).read_bytes() == (tmp_path / path).read_bytes()
            assert same, f"docs/{name}/{path} is not what the records give"
    assert [blank_panels(figure) for figure in figures] == [[]] * len(figures)


def test_tables_in_the_docs() -> None:
    pages = list(pages_with_tables())
    assert {name for *_, names in pages for name in names} == set(TABLES)
    stale = [path.name for path, content, _ in pages if path.read_text("utf-8") != content]
    assert not stale, "run python -m website.records"


@pytest.mark.parametrize(
    "content",
    [
        "<!-- results: glue -->\n\ntext\n\n<!-- results: demo -->\n\n<!-- end of results -->",
        "<!-- results: glue-x -->\n\n<!-- end of results -->",
        "<!-- results: glue -->\nno empty line\n<!-- end of results -->",
    ],
)
def test_a_broken_marker_is_refused(
    content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("")
    (tmp_path / "docs/one.md").write_text(content)
    monkeypatch.setattr(records, "ROOT", tmp_path)
    with pytest.raises(ValueError, match=r"one\.md: expected .* of which are whole"):
        list(pages_with_tables())


def test_every_run_that_the_sweeps_had_is_there() -> None:
    assert digest() == json.loads(DIGEST.read_text()), (
        "records changed, were added or lost; if added, run python -m website.records"
    )


def test_hashes_of_runs() -> None:
    wrong = [
        path
        for path, run in every_record()
        if "hash" in run and run["hash"] != hash_of({"label": run["mapping"], **run["config"]})
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("folder", "cells", "trials", "finals"),
    [
        ("glue/minilm", 32, 2, 3),
        ("glue/mrpc-fair", 8, 2, 5),
        ("multilabel/synthetic", 135, 0, 5),
        ("multilabel/synthetic-rates", 48, 7, 5),
        ("multilabel/synthetic-raw", 12, 5, 5),
        ("multilabel/synthetic-batch64", 9, 0, 5),
        ("bottleneck/small", 50, 4, 3),
        ("bottleneck/small-alphas", 30, 3, 3),
    ],
)
def test_every_cell_of_a_sweep_has_the_same_budget(
    folder: str, cells: int, trials: int, finals: int
) -> None:
    """On one machine with one set of versions; no record is broken."""
    found = read_records(RESULTS / folder)
    assert found.faults == []
    stages = defaultdict(list)
    for record in found.by_hash.values():
        stages[record.task, record.mapping].append((record.stage == "trial", record.index))
    budget = [(True, k) for k in range(trials)] + [(False, k) for k in range(finals)]
    assert len(stages) == cells
    assert {cell: sorted(runs) for cell, runs in stages.items()} == dict.fromkeys(
        stages, sorted(budget)
    )
    finished = [record.results for record in found.by_hash.values() if record.results]
    assert len({(str(run["versions"]), run["device"]) for run in finished}) == 1


def chosen_rates(experiment: Experiment[Any, Any], study: str) -> dict[Cell, float]:
    """The learning rate of every cell's final runs."""
    results = experiment.read(RESULTS / study)
    rates = {}
    for cell in results.cells:
        (rates[cell],) = {run.config["train"]["learning_rate"] for run in results.counting(cell)}
    return rates


def test_rates_at_the_ends_of_their_grids() -> None:
    """docs/multilabel.md names them, since a wider grid might change what is found."""
    found = {}
    for study, ends in (("synthetic-rates", (0.0003, 0.3)), ("synthetic-raw", (0.00003, 0.003))):
        rates = chosen_rates(MULTILABEL, f"multilabel/{study}")
        found |= {cell: rate for cell, rate in rates.items() if rate in ends}
    ten = "n10-labels5"
    assert found == {
        **{("n30-labels2", name): 0.0003 for name in ("softmax", "softmax-fine", "sigmoid")},
        **{(ten, f"r-softmax-{name}"): 0.3 for name in ("predicted", "weight0.1")},
        ("n20-labels10", "r-softmax"): 0.0003,
        **{("n30-labels15-raw", name): 0.00003 for name in ("entmax", "sparsemax-huber")},
    }


def test_rates_that_pages_name() -> None:
    of_heads = chosen_rates(LANGUAGE_MODELING, "language_modeling/ptb-small-sweep")
    assert set(of_heads.values()) == {0.005}
    on_gpu = chosen_rates(GLUE, "glue/mrpc-h200")
    assert {name: rate for (_, name), rate in on_gpu.items() if rate != 1e-4} == {
        "sigsoftmax": 5e-5
    }


SHORT = {f"n{classes}-length{length}" for classes in (20, 30) for length in (50, 200)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("study", "base", "average", "ahead"),
    [
        ("synthetic", "softmax-fine", "micro", {"n10-labels2"}),
        ("synthetic", "softmax-fine", "samples", {"n10-labels2", "n20-labels2"}),
        ("synthetic", "softmax-fine", "macro", {*SHORT, "n30-labels22"}),
        ("synthetic", "sigmoid", "micro", set()),
        ("synthetic", "sigmoid", "samples", set()),
        ("synthetic", "sigmoid", "macro", SHORT),
        *(
            (study, base, average, set())
            for study in ("synthetic-rates", "synthetic-raw")
            for base, averages in (("sigmoid", ("micro", "samples")), ("softmax-fine", AVERAGES))
            for average in averages
        ),
    ],
)
def test_where_sparse_label_sets_are_ahead(
    study: str, base: str, average: str, ahead: set[str]
) -> None:
    results = MULTILABEL.read(RESULTS / "multilabel" / study)
    found = {
        (task, difference.side)
        for (task, method), difference in results.against(base, f1(average)).items()
        if difference and method not in ("sigmoid", "softmax", "softmax-fine")
    }
    assert {task for task, side in found if side > 0} == ahead
    if base == "sigmoid" and average != "macro":
        assert {side for _, side in found} == {-1}


def test_attention_in_trained_models() -> None:
    """No mapping is better after correction, one of GLUE and two healed ones are worse."""
    entries = json.loads((ROOT / "docs/differences.json").read_text())
    trained = [
        entry
        for entry in entries
        if entry["kind"] == "trained attention" and entry["p"] is not None and not entry["control"]
    ]
    sure = compress(trained, settled([entry["p"] for entry in trained]))
    assert {entry["difference"] > 0 for entry in sure} == {False}
    with (ROOT / "docs/glue-minilm/report.csv").open(encoding="utf-8") as file:
        found = [row for row in csv.DictReader(file) if row["significant"] == "1"]
    assert [(row["task"], row["mapping"]) for row in found] == [("MRPC", "sparsehourglass")]
    healed = [entry for entry in entries if entry["study"] == "conversion/minilm"]
    worse = {entry["record"] for entry in healed if entry["high"] < 0}
    assert (len(healed), worse) == (5, {"r-softmax-50", "sparsegen-95"})
    (way,) = [
        run.results
        for run in read_records(RESULTS / "conversion/ways").by_hash.values()
        if run.mapping == "distilled" and run.results
    ]
    assert way["difference"]["interval"][1] < 0  # after half of the steps


def test_heads_of_language_models() -> None:
    """Linear softmax has rank d + 2, every other head full rank; the bottleneck has a floor."""
    for (_, head), runs in LANGUAGE_MODELING.read(
        RESULTS / "language_modeling/ptb-small-sweep"
    ).cells.items():
        for rank in (run.results["rank"] for run in runs if run.stage == "final" and run.results):
            linear = head in ("softmax", "temperature-softmax")
            least = rank["d"] + 2 if linear else rank["float64"]["contexts"]
            assert rank["float64"]["rank"] == least
    results = BOTTLENECK.read(RESULTS / "bottleneck/small")
    for run in results.records:
        assert run.results
        assert run.mapping != "softmax" or run.results["log_error"] > run.results["floor"] > 0
    for base, more in (("softmax", 10), ("mos", 9)):  # of ten cells
        modes = results.against(base, MEASURES[0].of)
        pairs = [pair for (_, head), pair in modes.items() if head == "lms"]
        assert sum(pair is not None and pair.side > 0 for pair in pairs) == more


@pytest.mark.parametrize(
    ("name", "case", "row", "other", "limit"),
    [
        ("attention", "attention: N=128", "ours r-softmax", "SDPA", 1.25),
        ("attention", "attention: N=512", "ours r-softmax", "SDPA", 1.5),
        ("attention", "step: MiniLM MRPC", "ours r-softmax", "SDPA", 1.05),
        ("attention", "attention: N=512", "ours sparsemax", "entmax sparsemax", 0.25),
        ("attention", "attention: N=512", "ours entmax", "entmax entmax15", 0.25),
        ("heads", "softmax: 10k", "ours", "plain", 0.7),
        ("heads", "softmax: 33k", "ours", "plain", 0.7),
    ],
)
def test_records_are_as_fast_as_promised(
    name: str, case: str, row: str, other: str, limit: float
) -> None:
    (found,) = [
        each
        for each in quoted_rows(f"results/benchmarks/{name}-cpu.json")
        if (each["case"], each["name"]) == (case, row) and each.get("pass") != "forward"
    ]
    assert found["to"][other]["median"] <= limit


def test_records_of_the_gpu_are_of_one_commit_and_passed() -> None:
    found = {
        name: json.loads((RESULTS / f"benchmarks/{name}-nvidia-h200.json").read_text())
        for name in ("attention", "gpu")
    }
    environments = [record["environment"] for record in found.values()]
    environments += [c["environment"] for c in found["attention"]["cases"] if "environment" in c]
    (commit,) = {environment["commit"] for environment in environments}
    assert f"at commit {commit[:7]}**" in (ROOT / "docs/kernels.md").read_text()
    checks = found["gpu"]["stages"]["sanity"]["cases"]
    assert not [name for name, result in checks.items() if "failed" in result]
    rows = [row for case in found["attention"]["cases"] for row in case["rows"]]
    assert not [row for row in rows if row["ours"] and row["reason"]]
