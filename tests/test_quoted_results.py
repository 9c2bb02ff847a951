"""What the docs quote of the records, and what the records must hold for it to be fair."""

import csv
import json
import math
import re
import statistics
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from engine.sweep.records import read_records
from experiments.bottleneck.__main__ import EXPERIMENT as BOTTLENECK
from experiments.bottleneck.report import MEASURES
from experiments.images.__main__ import EXPERIMENT as IMAGES
from experiments.images.published import published
from experiments.images.report import error
from experiments.language_modeling.__main__ import EXPERIMENT as LANGUAGE_MODELING
from experiments.language_modeling.report.plots import differences as of_heads
from experiments.language_modeling.report.runs import measured
from experiments.multilabel.__main__ import EXPERIMENT as MULTILABEL
from experiments.multilabel.measures import AVERAGES, f1
from sparse_attn.comparison.comparison import LEAST
from sparse_attn.comparison.measure import SAMPLE
from sparse_attn.comparison.page import findings, table
from sparse_attn.comparison.reader import LONGEST
from sparse_attn.reports.bootstrap import expected_best
from sparse_attn.reports.seed_statistics import Difference, estimate, holm, paired
from website import results as site

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"


def language_models(experiment: str) -> list[dict[str, Any]]:
    """What every run has given."""
    records = read_records(RESULTS / "language_modeling" / experiment).by_hash.values()
    return [record.results for record in records if record.results]


SWAP = json.loads((RESULTS / "compare/minilm-sts-b.json").read_text())
CONVERTED = {
    path.stem: json.loads(path.read_text()) for path in (RESULTS / "conversion/minilm").glob("*")
}
LANGUAGE_MODELS = LANGUAGE_MODELING.read(RESULTS / "language_modeling/ptb-small-sweep")
SHORT = {f"n{classes}-length{length}" for classes in (20, 30) for length in (50, 200)}
ENDS = ("difference", "low", "high")
PAIR = ("r-softmax", "softmax")
with (ROOT / "docs/glue-minilm/report.csv").open() as file:
    GLUE = list(csv.DictReader(file))


def page(name: str) -> str:
    """The text of a page, on one line."""
    return " ".join((ROOT / name).read_text().split())


def rows(name: str, pattern: str) -> list[re.Match[str]]:
    """The lines of a page that a pattern matches."""
    return list(re.finditer(pattern, (ROOT / name).read_text(), re.MULTILINE))


def test_glue_in_its_page() -> None:
    known = {(row["mapping"], row["task"]): row for row in GLUE if row["difference"]}
    one = known["sparsehourglass", "MRPC"]
    assert [row for row in known.values() if row["significant"] == "1"] == [one]
    found, low, high = (f"{100 * float(one[key]):+.1f}" for key in ENDS)
    text = page("docs/glue.md")
    assert f"Of {len(known)} differences from softmax one is significant" in text
    assert f"sparsehourglass on MRPC, {found} [{low}, {high}]" in text
    zeros, lower = zeros_and_losses("sparsemax", "sparsehourglass")
    assert f"end lowest on these three, by {lower[0]} to {lower[-1]} points" in text
    zeros, lower = zeros_and_losses("entmax-1.5")
    assert f"with {zeros[0]} % to {zeros[-1]} % zeros, by {lower[0]} to {lower[-1]}," in text
    assert max(float(row["mean"]) for row in GLUE if row["task"] == "WNLI") < 0.563


def test_the_paper_s_protocol_in_its_page() -> None:
    scores = defaultdict(list)
    for run in read_records(RESULTS / "glue/mrpc-paper").by_hash.values():
        assert run.results
        scores[run.mapping, run.config["train"]["learning_rate"]].append(run.results["score"])
    medians = {key: f"{100 * statistics.median(found):.1f}" for key, found in scores.items()}
    assert Counter(map(len, scores.values())) == {1: 15, 5: 5}
    with (ROOT / "docs/glue-mrpc-paper/report.csv").open() as file:
        table = {row["mapping"]: row for row in csv.DictReader(file)}
    found = {name: f"{100 * float(row['mean']):.1f}" for name, row in table.items()}
    papers = {name: f"{100 * float(row['paper_accuracy']):.1f}" for name, row in table.items()}
    gained, low, high = (f"{100 * float(table['r-softmax'][key]):+.1f}" for key in ENDS)
    middle = scores["r-softmax", 5e-5]
    text = page("docs/glue.md")
    for said in (
        f"r-softmax reaches {found['r-softmax']} on MRPC and softmax {found['softmax']}: {gained} "
        f"[{low}, {high}]",
        f"({papers['r-softmax']} vs. {papers['softmax']})",
        "ahead at rates 5e-5 ({} vs. {}) and 1e-4 ({} vs. {}) and behind at 1e-5 ({} vs. {}) and "
        "2e-5 ({} vs. {})".format(
            *(medians[name, rate] for rate in (5e-5, 1e-4, 1e-5, 2e-5) for name in PAIR)
        ),
        f"at most {100 * (max(middle) - min(middle)):.1f} points at 5e-5",
        f"not ramped in, reach {found['sparsemax']} and {found['sparsehourglass']}, near the",
        f"as in the paper ({papers['sparsemax']})",
    ):
        assert said in text, said
    assert papers["sparsemax"] == papers["sparsehourglass"]
    expected = {
        name: expected_best([s for (m, _), f in scores.items() if m == name for s in f])[4]
        for name in PAIR
    }
    assert "of five is {:.1f} vs. {:.1f}".format(*(100 * expected[name] for name in PAIR)) in text
    assert max(statistics.median(scores[name, 5e-4]) for name in PAIR) < 0.69
    assert f"r-softmax is {gained} on MRPC [{low}, {high}]" in page("docs/results.md")


def test_mrpc_with_five_seeds_in_its_page() -> None:
    with (ROOT / "docs/glue-mrpc-fair/report.csv").open() as file:
        table = {row["mapping"]: row for row in csv.DictReader(file)}
    ours = {
        name: tuple(f"{100 * float(r[k]):+.1f}" for k in ENDS)
        for name, r in table.items()
        if r["low"]
    }
    text = page("docs/glue.md")
    gained, low, high = ours["r-softmax"]
    zeros = f"{100 * float(table['r-softmax']['sparsity']):.0f}"
    for said in (
        f"softmax reaches {100 * float(table['softmax']['mean']):.1f}, and nothing is significant",
        f"r-softmax {gained} [{low}, {high}] at {zeros} %",
        *(
            f"{n} {ours[n][0]}"
            for n in ("t-softmax", "sigsoftmax", "temperature-softmax", "entmax-1.5")
        ),
        *("{}, {} [{}, {}]".format(n, *ours[n]) for n in ("sparsemax", "sparsehourglass")),
        f"five pairs detects {100 * float(table['r-softmax']['detectable']):.1f} points",
    ):
        assert said in text, said
    assert {row["significant"] for row in table.values()} == {"0"}
    worse = {name for name, row in table.items() if row["high"] and float(row["high"]) < 0}
    assert worse == {"sparsemax", "sparsehourglass"}
    assert f"five seeds, {gained} [{low}, {high}]" in page("docs/results.md")


def zeros_and_losses(*mappings: str) -> tuple[list[int], list[int]]:
    """Zeros in percent and points below softmax, sorted, but on WNLI, which nothing learned."""
    some = [row for row in GLUE if row["mapping"] in mappings and row["task"] != "WNLI"]
    zeros = sorted(round(100 * float(row["sparsity"])) for row in some)
    return zeros, sorted(round(-100 * float(row["difference"])) for row in some)


def against_softmax() -> tuple[dict[str, Difference], dict[str, float]]:
    """Each head on Penn Treebank less softmax, and Holm's p."""
    found = of_heads(LANGUAGE_MODELS, "ptb")
    corrected = holm([difference.p for difference in found.values()])
    return found, dict(zip(found, corrected, strict=True))


def test_scale_alone_gains_more_than_sigsoftmax() -> None:
    """The control, softmax at temperature 0.5, is ahead of it; all took the larger rate."""
    ptb, value = "ptb", measured("test_perplexity")
    found, p = against_softmax()
    between = LANGUAGE_MODELS.difference((ptb, "sigsoftmax"), (ptb, "temperature-softmax"), value)
    biased = LANGUAGE_MODELS.difference((ptb, "sigsoftmax-bias"), (ptb, "sigsoftmax"), value)
    valid = measured("valid_perplexity")
    plif = LANGUAGE_MODELS.difference((ptb, "plif"), (ptb, "softmax"), valid)
    even = LANGUAGE_MODELS.difference((ptb, "abs"), (ptb, "softmax"), valid)
    assert between
    assert biased
    assert plif
    assert even
    assert min(between.low, biased.low) > 0
    low, high = f"{between.low:.2f}", f"{between.high:.2f}"
    text = page("docs/language-models.md")
    for said in (
        f"sigsoftmax is {-found['sigsoftmax'].value:.1f} below softmax, softmax at temperature 0.5 "
        f"{-found['temperature-softmax'].value:.1f} below, so that sigsoftmax is "
        f"{between.value:.1f} above it [{low}, {high}]",
        f"worse**: {-found['sigsoftmax-bias'].value:.1f} below softmax, {biased.value:.1f} above "
        f"sigsoftmax without [{biased.low:.2f}, {biased.high:.2f}]",
        f"normalised sigmoid is {found['normalized-sigmoid'].value:.1f} worse** than softmax.",
        f"PLIF is {found['plif'].value:.1f} worse on test (Holm's p {p['plif']:.3f}) and not "
        f"told apart on validation ({plif.value:+.2f} [{plif.low:.2f}, {plif.high:+.2f}]), "
        f"abs is {-even.value:.2f} better on validation [{-even.high:.2f}, {-even.low:.2f}] and "
        "not told apart on test",
    ):
        assert said in text
    assert plif.side == 0
    assert (
        f"sigsoftmax is {-found['sigsoftmax'].value:.0f} points of perplexity below softmax, and "
        f"softmax of twice the scores {-found['temperature-softmax'].value:.0f} points"
    ) in page("docs/results.md")
    assert found["abs"].side == 0
    finals = [run for run in LANGUAGE_MODELS.records if run.stage == "final"]
    assert {run.config["train"]["learning_rate"] for run in finals} == {0.005}


def test_mixtures_and_spherical_heads() -> None:
    ptb, value = "ptb", measured("test_perplexity")
    found, p = against_softmax()
    pair = (ptb, "moss"), (ptb, "sigsoftmax")
    even = LANGUAGE_MODELS.difference(*pair, value)
    behind = LANGUAGE_MODELS.difference(*pair, measured("valid_perplexity"))
    assert even
    assert behind
    assert even.side == 0
    mos, moss, plif = found["mos"], found["moss"], found["mos-plif"]
    reached = {
        head: statistics.mean(r["test_perplexity"] for r in LANGUAGE_MODELS.finished((ptb, head)))
        for head in ("softmax", "taylor", "spherical")
    }
    text = page("docs/language-models.md")
    for said in (
        f"three softmaxes is {-mos.value:.1f} below softmax** [{-mos.high:.1f}, {-mos.low:.1f}], "
        f"a mixture of sigsoftmaxes {-moss.value:.1f} [{-moss.high:.1f}, {-moss.low:.1f}], a "
        f"mixture of PLIFs {-plif.value:.1f} [{-plif.high:.1f}, {-plif.low:.1f}], by their own "
        f"intervals; Holm's p is {p['mos']:.3f}, {p['moss']:.3f} and {p['mos-plif']:.3f}.",
        f"not told apart from its mixture on test, and {behind.value:.1f} below it on validation "
        f"[{behind.low:.1f}, {behind.high:.1f}]",
        f"{reached['taylor']:.0f} and {reached['spherical']:.0f} on test, softmax "
        f"{reached['softmax']:.0f}",
    ):
        assert said in text, said


def test_rank_of_softmax_is_the_bottleneck() -> None:
    for (_, head), runs in LANGUAGE_MODELS.cells.items():
        for run in runs:
            if run.stage == "final":
                assert run.results
                rank = run.results["rank"]
                least = rank["float64"]["rank"]
                assert least == (
                    rank["d"] + 2
                    if head in ("softmax", "temperature-softmax")
                    else rank["float64"]["contexts"]
                )


def test_table_5_in_its_page() -> None:
    """Our finals in its table, and the trials that chose their rates."""
    lines = (ROOT / "docs/language-models.md").read_text().splitlines()
    finals = read_records(RESULTS / "language_modeling/ptb-ff").by_hash.values()
    assert {run.mapping for run in finals} == {"softmax", "abs", "spherical", "taylor"}
    for run in finals:
        assert run.results
        size = f"{run.config['model']['layers']}x{run.config['model']['hidden']}"
        (line,) = [line for line in lines if re.match(rf"\| {run.mapping}\b.*, {size} \|", line)]
        ours, paper, error, _, simlex, _, epochs = (cell.strip() for cell in line.split("|")[2:9])
        assert ours == f"{run.results['test_perplexity']:.1f}"
        assert error == f"{run.results['top_10_error']:.3f}"
        assert simlex == f"{run.results['simlex']['rho']:.3f}"
        assert epochs == str(len(run.results["epochs"]))
        above = run.results["test_perplexity"] / float(paper) - 1
        if run.mapping in ("softmax", "abs"):
            assert above < 0.03
        else:
            name = run.mapping.replace("taylor", "Taylor")
            assert re.search(
                rf"{name} softmax (is )?{100 * above:.0f} %", page("docs/language-models.md")
            )
    trials = read_records(RESULTS / "language_modeling/ptb-ff-rates").by_hash.values()
    valid = {
        (run.mapping, head["start"], train["learning_rate"], train["clip"]): (
            run.results["valid_perplexity"]
        )
        for run in trials
        for head, train in [(run.config["head"], run.config["train"])]
        if run.results and train["max_steps"] == 600
    }
    for mapping, rate in (("spherical", 20), ("taylor", 50)):
        best = min((key for key in valid if key[:2] == (mapping, "prior")), key=valid.__getitem__)
        assert best[2] == rate
    (longer,) = [run.results for run in trials if run.config["train"]["epochs"] == 6]
    assert longer
    curve = [epoch["valid_nll"] for epoch in longer["epochs"]]
    assert (len(curve), curve.index(min(curve))) == (4, 1)
    (shorter,) = [run.results["valid_perplexity"] for run in finals if run.mapping == "softmax"]
    best = f"{math.exp(min(curve)):.1f}, after the second, against {shorter:.1f} at the end of two"
    assert best in page("docs/language-models.md")
    assert f"with {longer['test_perplexity']:.1f} on test" in page("docs/language-models.md")
    zero, prior = valid["taylor", "zero", 5, 1], valid["taylor", "prior", 5, 1]
    best = valid["taylor", "prior", 50, None]
    for quote in (
        f"{zero:.1f} from zero biases and {prior:.1f} from the frequencies at rate 5 and clip 1",
        f"{best:.1f} from the frequencies at the best of three rates",
    ):
        assert quote in page("docs/language-models.md")


def test_dynamic_evaluation_in_its_page() -> None:
    text = page("docs/language-models.md")
    for run in language_models("ptb-small-dynamic"):
        quoted = f"{run['test_perplexity']:.1f} to {run['dynamic']['test_perplexity']:.1f}"
        assert f"of {run['head']} from {quoted}" in text
        assert f"{run['rank']['rank']} for {run['head']}" in text
        assert f"all {run['rank']['contexts']:,} test contexts" in text


def test_bouchards_bound_in_its_page() -> None:
    start, bound = sorted(
        language_models("ptb-ff-bouchard"), key=lambda record: record["valid_perplexity"]
    )
    assert (len(start["epochs"]), len(bound["epochs"])) == (1, 20)
    curve = [epoch["valid_nll"] for epoch in bound["epochs"]]
    assert curve == sorted(curve, reverse=True)
    text = page("docs/language-models.md")
    assert f"{math.exp(curve[0]):,.1f} after one epoch and, still falling" in text
    for record in (start, bound):
        assert f"{record['valid_perplexity']:,.1f}" in text
        assert f"{100 * record['top_10_error']:.1f} %" in text


@pytest.mark.parametrize(
    ("names", "part"), [(["multilabel"], 0), (["multilabel-rates", "multilabel-raw"], 1)]
)
def test_multilabel_in_its_page(names: list[str], part: int) -> None:
    reports = [(ROOT / f"docs/{name}/report.md").read_text() for name in names]
    tables = [
        report.split("Micro-F1 in %: all decisions")[1].split("\n\n")[1] for report in reports
    ]
    lines = [re.sub(r"\s+", "", line) for table in tables for line in table.splitlines()]
    text = (ROOT / "docs/multilabel.md").read_text().split("### With the best rate")[part]
    quoted = list(re.finditer(r"^\| (n\d\d-labels[\w-]+) \|(.*)$", text, re.MULTILINE))
    assert len(quoted) > 4
    for data, cells in (line.groups() for line in quoted):
        found = next(line for line in lines if line.startswith(f"|{data}|"))
        means = [cell.split("±")[0] for cell in found.split("|")[2:-1]]
        quotes = [cell.strip() for cell in cells.split("|")[:-1]]
        assert quotes == [f"{float(mean):.1f}" for mean in means], data


@pytest.mark.parametrize("name", ["topics", "sst2"])
def test_text_classifiers_that_predict_r(name: str) -> None:
    record = json.loads((RESULTS / f"multilabel/text/{name}.json").read_text())
    assert record["config"]["method"]["sparsity"] == "predicted"
    assert record["measured_on"] == "test"
    assert f"{100 * record['f1']['micro']:.1f}" in page("docs/multilabel.md")


def test_bottleneck_in_its_page() -> None:
    quoted = rows("docs/bottleneck.md", r"^\| [\d,]+ \|.*$")
    lines = [
        line
        for name in ("bottleneck", "bottleneck-alphas")
        for line in (ROOT / f"docs/{name}/report.md").read_text().splitlines()
    ]
    assert len(quoted) > 10
    assert [line[0] for line in quoted if line[0] not in lines] == []


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


def test_mnist_in_its_page_and_the_results() -> None:
    results = IMAGES.read(RESULTS / "images/mnist-few")
    cells = {cell[1]: cell for cell in results.cells}
    means = {
        name: estimate(results.by_seed(cell, error).values()).mean for name, cell in cells.items()
    }
    papers = {
        name: float(row.error.split()[0]) for name, row in published(results.sweep)[1].items()
    }
    above = {name: means[name] - papers[name] for name in cells}
    off = [f"{above[name]:.2f}" for name in sorted(above, key=above.__getitem__)]
    against = results.against("softmax", error)
    ours = {name: d for (_, name), d in against.items() if d is not None}
    taylor, mse = ours["taylor"], ours["mse"]
    assert len(ours) == 4
    assert [name for name, d in ours.items() if d.low > 0 or d.high < 0] == ["mse"]
    assert min(means, key=means.__getitem__) == min(papers, key=papers.__getitem__) == "taylor"
    assert max(means, key=means.__getitem__) == max(papers, key=papers.__getitem__) == "mse"
    gap = papers["taylor"] - papers["softmax"]
    found = page("docs/images.md")
    assert f"squared error {mse.value:.2f} points worse" in found
    assert f"find {-gap:.2f} between Taylor softmax and softmax" in found
    assert f"Errors of four losses are {off[0]} to {off[3]} points above the paper's" in found
    assert f"that of squared error is {off[4]} above" in found
    said = page("docs/results.md")
    assert (
        f"Taylor softmax {taylor.value:.2f} points of test error [{taylor.low:.2f}, "
        f"{taylor.high:+.2f}], where de Brébisson & Vincent's hundred runs have {gap:.2f}. Squared "
        f"error is {mse.value:.2f} worse, though not after Holm's correction"
    ) in said
    median = statistics.median(d.detectable or 0 for d in ours.values())
    assert f"could have shown a difference of {median:.1f} points" in found
    assert f"a difference of {median:.1f} points could have been found" in said


def test_no_softmax_is_below_the_floor() -> None:
    for record in read_records(RESULTS / "bottleneck/small").by_hash.values():
        if record.mapping == "softmax":
            assert record.results
            assert record.results["log_error"] > record.results["floor"] > 0


def test_retrieval_in_the_results() -> None:
    record = json.loads((RESULTS / "demo/retrieval.json").read_text())
    right = {row["setting"]: row["right"] for row in record["rows"]}
    settings = ("softmax", "r-softmax r=0.5", "random-drop-softmax r=0.5")
    shares = [f"{100 * right[setting]:.0f} %" for setting in settings]
    text = page("docs/results.md")
    assert f"of {record['questions']} questions" in text
    assert f"{record['candidates']} sentences for {shares[0]} with softmax, {shares[1]}" in text
    assert f"and {shares[2]} with as many dropped at random" in text
    swaps = [row for row in record["rows"] if row["zeros"] and "random" not in row["mapping"]]
    lost = sorted(-100 * row["difference"] for row in swaps)
    assert len(swaps) == 8
    assert max(row["interval"][1] for row in swaps) < 0
    assert f"all eight settings lose {lost[0]:.0f} to {lost[-1]:.0f} points" in text


def test_conversion_in_the_readme() -> None:
    records = [CONVERTED[name] for name in ("entmax-90", "sparsemax")]
    wholes = [table(record) for record in records]
    lines = rows("README.md", r"^\| (.*(%|x 100).*) \|$")
    quoted = [line[1].split(" | ") for line in lines]
    places = [wholes[0].headers.index(name) for name in quoted[0]]
    cells = [[row[place] for place in places] for whole in wholes for row in whole.rows]
    assert quoted[1:] == [*cells[:3], *cells[4:]]
    text = page("README.md")
    assert f"(entmax: {records[0]['seconds'] / 60:.0f} minutes on 2 cores)" in text
    assert f"on {records[0]['rows']:,} STS-B pairs that were not used for any choice" in text


def test_conversion_in_its_guide() -> None:
    guide, line = (ROOT / "docs/guide/convert.md").read_text(), page("docs/guide/convert.md")
    assert site.table("conversion").replace("\\", "") in guide
    alike, lost = [], []
    for name in ("entmax-90", "sparsemax"):
        healed = CONVERTED[name]["mappings"][1]
        low, high = healed["against_softmax"]["interval"]
        assert low < 0 < high
        alike.append(f"{healed['zeros']:.0%}".replace("%", " %"))
        lost.append(f"{100 * (CONVERTED[name]['softmax'] - healed['random']['quality']):.0f}")
    assert f"at {alike[0]} and {alike[1]} exact zeros, and as many zeros" in line
    assert f"at random lose {lost[0]} and {lost[1]} points" in line
    assert f"healed on {CONVERTED['entmax-90']['recipe']['number']:,} sentences" in line


def test_fine_tuning_of_converted_models() -> None:
    record = json.loads((RESULTS / "conversion/mrpc/converted-first.json").read_text())
    found: dict[str, dict[str, dict[int, float]]] = {}
    for run in record["runs"]:
        of = found.setdefault(run["model"], defaultdict(dict))
        for name in ("accuracy", "f1", "zeros"):
            of[name][run["seed"]] = 100 * run[name]
    for name, of in found.items():
        difference = paired(of["accuracy"], found["softmax"]["accuracy"])
        zeros, accuracy, f1 = (estimate(of[key].values()) for key in ("zeros", "accuracy", "f1"))
        assert difference
        assert zeros
        assert accuracy
        assert f1
        cells = [name, str(accuracy.n), f"{zeros.mean:.1f} %"]
        cells += [accuracy.text("{:.1f}"), f1.text("{:.1f}")]
        cells += ["-" if name == "softmax" else difference.text("{:+.1f}")]
        assert f"| {' | '.join(cells)} |" in page("docs/guide/convert.md")
        assert (max(difference.interval or (0, 0)) < 0) == name.startswith("entmax")
    later = json.loads((RESULTS / "conversion/mrpc/fine-tuned-first.json").read_text())
    swapped, healed = later["mappings"]
    value = healed["against_softmax"]["value"]
    low, high = healed["against_softmax"]["interval"]
    assert (
        f"goes from {100 * later['softmax']:.2f} to {100 * healed['quality']:.2f} "
        f"({100 * value:.2f} [{100 * low:.2f}, {100 * high:+.2f}]) with {healed['zeros']:.1%}"
    ).replace("%", " %") in page("docs/guide/convert.md")
    assert f"before healing it had {100 * swapped['quality']:.2f}." in page("docs/guide/convert.md")
    first = {run["seed"]: run for run in record["runs"] if run["model"] == "softmax"}[1]
    assert first["accuracy"] == later["softmax"]


def test_untrained_swap_in_its_guide() -> None:
    text, line = (ROOT / "docs/guide/compare.md").read_text(), page("docs/guide/compare.md")
    assert "\n".join(["```", str(table(SWAP)), "", *findings(SWAP), "```"]) in text
    cosine = {row["mapping"]: row["agreement"] for row in SWAP["mappings"]}["softpick"]
    assert f"Softpick moves embeddings (cosine {cosine:.3f}) and has the higher correlation" in line
    assert f"took {SWAP['seconds'] / 60:.1f} minutes on one thread" in line
    assert f"read all {SWAP['texts']:,} texts once" in line
    assert f"are cut after {LONGEST} tokens" in line
    assert f"With fewer than {LEAST} texts" in line
    assert f"is set on {SAMPLE} of the texts" in line


def test_untrained_swap_in_the_results() -> None:
    rows = SWAP["mappings"]
    alike = [
        row
        for row in rows
        if row["against_softmax"]["interval"][0] < 0 < row["against_softmax"]["interval"][1]
    ]
    zeros = sorted(row["zeros"] for row in alike)
    lost = sorted(row["against_random"]["value"] - row["against_softmax"]["value"] for row in alike)
    assert (len(rows), len(alike)) == (8, 4)
    assert (
        f"with {zeros[0]:.0%} to {zeros[-1]:.0%} exact zeros, cannot be told from softmax, and as "
        f"many zeros at random cost {100 * lost[0]:.0f} to {100 * lost[-1]:.0f} points"
    ).replace("%", " %") in page("docs/results.md")
    apart = sorted(100 * row["against_softmax"]["value"] for row in rows if row not in alike)
    two, one, small, large = (f"{abs(value):.1f}" for value in apart)
    assert apart[1] < 0 < apart[2]
    assert (
        f"two are above softmax, by {small} and {large} points, and two below, by {one} and {two}"
    ) in page("docs/results.md")


def test_glue_in_the_results() -> None:
    known = {row["task"]: row for row in GLUE if row["mapping"] == "r-softmax"}
    for task in ("MRPC", "SST-2", "STS-B"):
        value, low, high = (f"{100 * float(known[task][key]):+.2f}" for key in ENDS)
        assert re.search(
            rf"\{value} (points )?on {task} \[{low}, \{high}\]", page("docs/results.md")
        )
    detectable = max(float(row["detectable"] or 0) for row in GLUE if row["task"] == "STS-B")
    assert f"on STS-B of up to {100 * detectable:.0f}" in page("docs/glue.md")
    zeros, lower = zeros_and_losses("sparsemax", "sparsehourglass", "entmax-1.5")
    assert zeros[0] > 80
    assert (
        f"Above 80 % zeros scores on these three drop by {lower[0]} to {lower[-1]} points"
        in page("docs/results.md")
    )


def test_conversions_in_the_results() -> None:
    sides = {
        name: [end > 0 for end in record["mappings"][-1]["against_softmax"]["interval"]]
        for name, record in CONVERTED.items()
    }
    alike = {name for name, ends in sides.items() if ends == [False, True]}
    assert alike == {"entmax-90", "sparsemax", "sparsegen-90"}
    healed = {name: record["mappings"][-1] for name, record in CONVERTED.items()}
    text = page("docs/results.md").replace(" %", "%")
    zeros = {name: f"{row['zeros']:.0%}" for name, row in healed.items()}
    lost = {name: f"{-100 * row['against_softmax']['value']:.2f}" for name, row in healed.items()}
    ways = read_records(RESULTS / "conversion/ways").by_hash.values()
    (way,) = [run for run in ways if run.mapping == "distilled"]
    assert way.results
    assert (way.config["steps"], CONVERTED["entmax-90"]["recipe"]["steps"]) == (150, 300)
    value, interval = way.results["difference"].values()
    less = f"{-value:.2f} [{-interval[1]:.2f}, {-interval[0]:.2f}]"
    said = (
        f"entmax with {zeros['entmax-90']}, sparsemax with {zeros['sparsemax']} and sparsegen with "
        f"{zeros['sparsegen-90']} exact zeros cannot be told from softmax; sparsegen with "
        f"{zeros['sparsegen-95']} loses {lost['sparsegen-95']} points, and r-softmax with "
        f"{zeros['r-softmax-50']} loses {lost['r-softmax-50']}. "
        f"After 150 steps instead of 300 entmax loses {less} at {way.results['zeros']:.0%} zeros"
    )
    assert said in text
    swapped = CONVERTED["r-softmax-50"]["mappings"][0]
    assert swapped["against_softmax"]["value"] > healed["r-softmax-50"]["against_softmax"]["value"]
    assert f"entmax [is worse too](docs/conversion-ways/report.md), by {less}" in page("README.md")
    assert f"with these 150 steps entmax ends {less.replace(' ', ' below softmax ', 1)}" in page(
        "docs/guide/convert.md"
    )


@pytest.mark.parametrize(
    ("study", "base", "average", "ahead"),
    [
        ("synthetic", "softmax-fine", "micro", {"n10-labels2"}),
        ("synthetic", "softmax-fine", "samples", {"n10-labels2", "n20-labels2"}),
        ("synthetic", "sigmoid", "micro", set()),
        ("synthetic", "sigmoid", "samples", set()),
        ("synthetic", "sigmoid", "macro", SHORT),
        ("synthetic", "softmax-fine", "macro", {*SHORT, "n30-labels22"}),
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
    dense = {"sigmoid", "softmax", "softmax-fine"}
    found = {
        (task, difference.side)
        for (task, method), difference in results.against(base, f1(average)).items()
        if difference and method not in dense
    }
    assert {task for task, side in found if side > 0} == ahead
    if base == "sigmoid" and average != "macro":
        assert {side for _, side in found} == {-1}


def test_rates_at_the_ends_of_their_grids() -> None:
    found = {"synthetic-rates": set(), "synthetic-raw": set()}
    for study, ends in found.items():
        results = MULTILABEL.read(RESULTS / "multilabel" / study)
        rates = results.sweep.learning_rates
        for cell in results.cells:
            (rate,) = {run.config["train"]["learning_rate"] for run in results.counting(cell)}
            if rate in (rates[0], rates[-1]):
                ends.add((*cell, rate))
    two = {("n30-labels2", name, 0.0003) for name in ("softmax", "softmax-fine", "sigmoid")}
    ten = {("n10-labels5", f"r-softmax-{name}", 0.3) for name in ("predicted", "weight0.1")}
    assert found == {
        "synthetic-rates": {*two, *ten, ("n20-labels10", "r-softmax", 0.0003)},
        "synthetic-raw": {
            ("n30-labels15-raw", name, 0.00003) for name in ("entmax", "sparsemax-huber")
        },
    }
    raw = MULTILABEL.read(RESULTS / "multilabel/synthetic-raw")
    trials = {
        run.config["train"]["learning_rate"]: run.score
        for run in raw.of_stage(("n30-labels15-raw", "r-softmax"), "trial")
    }
    said = f"r-softmax has {100 * trials[0.0003]:.1f} at 0.0003 and {100 * trials[0.001]:.1f} at"
    assert said in page("docs/multilabel.md")


def test_what_the_best_rates_gain() -> None:
    studies = [
        MULTILABEL.read(RESULTS / "multilabel" / n) for n in ("synthetic", "synthetic-rates")
    ]

    def gains(method: str) -> list[float]:
        means = [
            [
                statistics.mean(study.by_seed((task, method), f1("micro")).values())
                for study in studies
            ]
            for task in studies[1].tasks
        ]
        return sorted(after - before for before, after in means)

    text = page("docs/multilabel.md")
    reports = (page(f"docs/multilabel-{name}/report.md") for name in ("rates", "raw"))
    reach = [re.search(r"difference of (\S+) points \(median; (\S+) at most", r) for r in reports]
    assert (
        "{} points of micro-F1 (median; {} at most), with raw counts {} ({})".format(
            *(number for found in reach if found for number in found.groups())
        )
        in text
    )
    least, *_, most = gains("entmax")
    assert f"(entmax by {least:.0f} to {most:.0f} points)" in text
    least, *_, most = gains("r-softmax")
    assert f"hardly moves r-softmax ({least:.1f} to {most:+.1f})" in text


def test_modes_and_kl_of_the_monotone_layer() -> None:
    results = BOTTLENECK.read(RESULTS / "bottleneck/small")
    modes, kl, log_error = (
        {base: results.against(base, measure.of) for base in ("softmax", "mos")}
        for measure in MEASURES
    )

    def count(found: dict[Any, Any], side: int) -> int:
        return [pair.side for (_, head), pair in found.items() if head == "lms"].count(side)

    assert (count(modes["softmax"], 1), count(modes["mos"], 1)) == (10, 9)
    assert count(log_error["softmax"], 1) == 9
    for (task, head), pair in kl["mos"].items():
        if head == "lms" and task.endswith(("D20", "D50")):
            assert pair
            assert pair.side == 1


def test_steps_in_the_results() -> None:
    cases = json.loads((RESULTS / "benchmarks/attention-cpu.json").read_text())["cases"]
    spans: dict[str, list[float]] = defaultdict(list)
    for case in cases:
        if case["group"] == "step":
            size = "512" if "512" in case["name"] else "short"
            kind = size + (" with dropout" if "dropout 0.1" in case["title"] else "")
            ours = [row for row in case["rows"] if row["name"].startswith("ours")]
            spans[kind] += [row["to"]["SDPA"]["median"] for row in ours]
    shown = {kind: f"{min(span):.2f} to {max(span):.2f}" for kind, span in spans.items()}
    text = page("docs/results.md")
    assert f"takes {shown['short']} times as long as with PyTorch's softmax attention**" in text
    assert f"tokens {shown['512 with dropout']} times with dropout, {shown['512']} without" in text


def test_glue_in_the_readme() -> None:
    zeros, lower = zeros_and_losses("sparsemax", "sparsehourglass")
    (ours,) = set(zeros_and_losses("r-softmax")[0])
    text = page("README.md")
    assert f"with {ours} % zeros by r-softmax cannot be told" in text
    assert f"with {zeros[0]} % to {zeros[-1]} %, end {lower[0]} to {lower[-1]} points" in text
    assert [row["significant"] for row in GLUE].count("1") == 1
    assert len(lower) == 6
    assert "in one of six cases significant after Holm's correction" in text


def test_the_guide_to_mappings() -> None:
    text = page("docs/guide/mappings.md")
    for name, below in (("sparsemax", " points below softmax"), ("entmax-1.5", " below")):
        found = {row["task"]: row for row in GLUE if row["mapping"] == name}
        rows = [found[task] for task in ("MRPC", "SST-2", "STS-B")]
        lost = "{:.1f}, {:.1f} and {:.1f}".format(
            *(-100 * float(row["difference"]) for row in rows)
        )
        zeros = "{:.0f} %, {:.0f} % and {:.0f} %".format(
            *(100 * float(row["sparsity"]) for row in rows)
        )
        assert f"{lost}{below} ({zeros}" in text
    value = measured("test_perplexity")
    softmax, even, sigmoid = (
        f"{statistics.mean(LANGUAGE_MODELS.by_seed(('ptb', head), value).values()):.1f}"
        for head in ("softmax", "abs", "normalized-sigmoid")
    )
    assert f"cannot be told from softmax on test ({even} against {softmax})" in text
    assert f"is behind softmax ({sigmoid} against {softmax})" in text
    gaps = [
        abs(difference.value)
        for study in ("synthetic", "synthetic-rates", "synthetic-raw")
        for (_, method), difference in MULTILABEL.read(RESULTS / "multilabel" / study)
        .against("sparsemax-hinge", f1("micro"))
        .items()
        if difference and method == "sparsehourglass"
    ]
    assert f"within {max(gaps):.1f} points of micro-F1 of sparsemax" in text


def test_batches_of_64_keep_the_order() -> None:
    orders = []
    for study in ("synthetic", "synthetic-batch64"):
        results = MULTILABEL.read(RESULTS / "multilabel" / study)
        micro = {
            method: statistics.mean(results.by_seed((task, method), f1("micro")).values())
            for task, method in results.cells
            if task == "n30-labels15"
        }
        orders.append(sorted(micro, key=lambda method: -round(micro[method], 1)))
    assert orders[0] == orders[1]
    said = ", ".join(f"{method} {micro[method]:.1f}" for method in orders[1][2:])
    assert len({f"{micro[method]:.1f}" for method in orders[1][:2]}) == 1
    assert f"{' and '.join(orders[1][:2])} {micro[orders[1][0]]:.1f}, {said} (45" in page(
        "docs/multilabel.md"
    )
