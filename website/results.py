"""Tables made from results/ by the reports' own functions."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import variants
from benchmarks.attention.suite import Attention
from benchmarks.heads import OURS, PLAIN
from benchmarks.tables import short
from compare.page import findings, measure_of, share
from compare.page import table as compared
from demo.page import retrieval_table
from experiments.bottleneck.__main__ import EXPERIMENT as BOTTLENECK
from experiments.bottleneck.report import MEASURES, head_verdicts, measure_table
from experiments.images.__main__ import EXPERIMENT as IMAGES
from experiments.images.report import differences_table, results_table
from experiments.language_modeling.__main__ import EXPERIMENT as LANGUAGE_MODELING
from experiments.language_modeling.report.tables import heads_table
from experiments.multilabel.__main__ import EXPERIMENT as MULTILABEL
from experiments.multilabel.report import method_verdicts, scores
from pipeline.report import text
from pipeline.report.table import Table, markdown
from website import ROOT

RESULTS = ROOT / "results"


@cache
def table(name: str) -> str:
    """The Markdown of one of `TABLES`.

    Raises:
        ValueError: there is no such table.
    """
    if name not in TABLES:
        raise ValueError(f"results {name!r}: expected one of {', '.join(TABLES)}")
    return "\n".join(TABLES[name]()).strip()


def machines() -> list[str]:
    """Runs, processor and PyTorch of every folder of experiments."""
    runs: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for path, record in every_record():
        folder = path.parent.relative_to(ROOT).as_posix().removesuffix("/runs")
        run = record.get("results") or record
        if "device" in run:
            runs[folder].append(run)
    rows = [
        [
            folder,
            str(len(found)),
            text.listing(sorted({run["device"] for run in found})),
            text.listing(sorted({run["versions"]["torch"] for run in found})),
        ]
        for folder, found in runs.items()
    ]
    return markdown(Table("", ["records", "finished runs", "device", "torch"], rows))


def every_record() -> Iterator[tuple[Path, dict[str, Any]]]:
    """Every record in results/, and its file, which holds one or one a line."""
    for path in sorted(RESULTS.rglob("*.json*")):
        content = path.read_text(encoding="utf-8")
        for record in content.splitlines() if path.suffix == ".jsonl" else [content]:
            yield path, json.loads(record)


def glue() -> list[str]:
    """What can be said, differences and scores: the head of the report.

    The report has worked its intervals out, which takes longest; a test holds it to the records.
    """
    report = (ROOT / "docs/glue-minilm/report.md").read_text(encoding="utf-8")
    head = report.partition("\n## ")[0].replace("](differences", "](glue-minilm/differences")
    return head.splitlines()[1:]


def multilabel() -> list[str]:
    """Verdicts, and micro-F1 of every method on every data set."""
    results = MULTILABEL.read(RESULTS / "multilabel/synthetic")
    return [*markdown(method_verdicts(results)[0]), *markdown(scores(results, "micro"))]


def language_modeling() -> list[str]:
    """Perplexity and rank of every head; the report has the rest."""
    results = LANGUAGE_MODELING.read(RESULTS / "language_modeling/ptb-small-sweep")
    caption = (
        "Perplexity, mean ± sd over seeds. 80 % power: the true difference that a paired t-test "
        "detects with this power. The verdict is by p."
    )
    return markdown(heads_table(results, "ptb").columns(0, *range(4, 13), caption=caption))


def images() -> list[str]:
    """Every loss on MNIST beside softmax and the paper's table."""
    results = IMAGES.read(RESULTS / "images/mnist-few")
    return [*markdown(differences_table(results)), *markdown(results_table(results))]


def bottleneck() -> list[str]:
    """Verdicts, and every measure of every head."""
    results = BOTTLENECK.read(RESULTS / "bottleneck/small")
    tables = [measure_table(results, a, m) for a in results.sweep.alphas for m in MEASURES]
    return [line for table in (head_verdicts(results)[0], *tables) for line in markdown(table)]


def _benchmark(name: str) -> list[dict[str, Any]]:
    """The cases of a benchmark's record."""
    return json.loads((RESULTS / f"benchmarks/{name}.json").read_text())["cases"]


def steps() -> list[str]:
    """Whole training steps with attention of ours and of others."""
    cases = [case for case in _benchmark("attention-cpu") if case["group"] == "step"]
    page = "\n\n".join("\n".join(Attention().section(case)) for case in cases)
    return page.replace("## ", "### ").splitlines()


_H200 = {  # headings of cases, passes and what follows the contestant's name
    "N=128, forward": ("N=128", "forward", ""),
    "N=128": ("N=128", "forward+backward", ""),
    "N=512, forward": ("N=512", "forward", ""),
    "N=512": ("N=512", "forward+backward", ""),
    "MRPC": ("MRPC", "forward+backward", ""),
    "MRPC, key_lengths": ("MRPC", "forward+backward", " (key_lengths)"),
    "causal N=8192": ("causal N=8192", "forward+backward", ""),
    "BERT-base step": ("BERT-base", "step", ""),
}


def h200() -> list[str]:
    """Every mapping over SDPA on an H200."""
    found: dict[tuple[str, ...], dict[str, Any]] = {
        (case["name"], row["pass"], row["name"]): row
        for case in _benchmark("attention-nvidia-h200")
        for row in case["rows"]
        if row["reason"] is None
    }
    names = dict.fromkeys(
        name for *_, name in found if name.startswith("ours ") and "(" not in name
    )
    rows = []
    for name in names:
        ratios = [found.get((*case, name + end)) for *case, end in _H200.values()]
        cells = [f"{row['to']['SDPA']['median']:.2f}" if row else "" for row in ratios]
        rows.append([name.removeprefix("ours "), *cells])
    sdpa = [found[*case, "SDPA"]["ms"]["median"] for *case, _ in _H200.values()]
    rows.append(["SDPA, ms", *map(short, sdpa)])
    return markdown(Table("", ["mapping", *_H200], rows))


def h200_shapes() -> list[str]:
    """Forward and backward over the shapes that only the first run on an H200 has."""
    path = RESULTS / "benchmarks/31b9054/variants-nvidia-h200.json"
    record = json.loads(path.read_text())
    del record["shapes"]["N=512"]
    return variants.shapes(record, "forward+backward")


def heads() -> list[str]:
    """Time and memory of our loss beside those of the plain form."""
    rows = []
    for case in _benchmark("heads-cpu") + _benchmark("128k/heads-cpu"):
        by_name = {row["name"]: row for row in case["rows"]}
        ours, plain = by_name[OURS], by_name[PLAIN]
        memory = short(ours["memory_mib"] / plain["memory_mib"])
        time = short(ours["to"][PLAIN]["median"])
        rows.append([case["group"], f"{case['vocab']:,}", f"{case['tokens']:,}", time, memory])
    caption = f"{OURS} / {PLAIN}: below 1 is less."
    return markdown(Table(caption, ["head", "vocabulary", "tokens", "time", "peak memory"], rows))


def demo() -> list[str]:
    """What attention can forget, and the accuracy of both mappings on every seed."""
    runs: dict[str, dict[str, str]] = defaultdict(dict)
    for line in (RESULTS / "demo/training.jsonl").read_text(encoding="utf-8").splitlines():
        run = json.loads(line)
        runs[run["mapping"]][f"seed {run['seed']}"] = f"{run['score']:.1%}"
    seeds = list(runs["softmax"])
    rows = [[mapping, *(scores[seed] for seed in seeds)] for mapping, scores in runs.items()]
    record = json.loads((RESULTS / "demo/retrieval.json").read_text(encoding="utf-8"))
    return [
        *markdown(retrieval_table(record)),
        *markdown(Table("Fine-tuned, accuracy:", ["attention", *seeds], rows)),
    ]


def compare() -> list[str]:
    """The untrained swap in MiniLM."""
    record = json.loads((RESULTS / "compare/minilm-sts-b.json").read_text(encoding="utf-8"))
    return [" ".join(findings(record)), "", *markdown(compared(record))]


def conversion() -> list[str]:
    """MiniLM converted: a row for each mapping and target."""
    rows, found = [], []
    for path in sorted((RESULTS / "conversion/minilm").glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        swapped, healed = record["mappings"]
        measure = measure_of(record)
        target = record["recipe"]["target_zeros"]
        found.append(measure.difference(healed["against_softmax"]))
        rows.append(
            [
                record["recipe"]["mapping"],
                text.NOTHING if target is None else share(target),
                share(swapped["zeros"]),
                measure.difference_text(swapped["against_softmax"]),
                share(healed["zeros"]),
                measure.difference_text(healed["against_softmax"]),
                share(record["layers"][-1]["healed"]["zeros"]),
                measure.text(healed["random"]),
                f"{record['seconds'] / 60:.1f}",
            ]
        )
    headers = ["mapping", "asked", "swapped: zeros", "from softmax [95 %]", "healed: zeros"]
    headers += ["from softmax [95 %]", "last layer's", "as many at random", "minutes"]
    sides = [difference.side for difference in found]
    half = median(difference.half for difference in found)
    caption = (
        f"Healed, {sides.count(-1)} of {len(sides)} are worse than softmax and "
        f"{sides.count(1)} better, by uncorrected intervals; half of one is {half:.2f} wide in the "
        f"median. {measure.name} on {record['rows']:,} pairs; softmax: "
        f"{measure.number(record['softmax'])}"
    )
    return markdown(Table(caption, headers, rows))


def families() -> list[str]:
    """What patch_model does with every family of Transformers: counts, then a line each."""
    (path,) = (RESULTS / "families").glob("*.json")
    record = json.loads(path.read_text(encoding="utf-8"))
    found: dict[str, dict[str, Any]] = record["families"]
    verdicts = Counter(row["verdict"] for some in found.values() for row in some.values())
    total = f"{sum(verdicts.values()):,} classes of {len(found)} model types"
    counts = ", ".join(f"{verdicts[name]} {name}" for name in _VERDICTS)
    rows = [[kind, *_family(some)] for kind, some in found.items()]
    versions = f"Transformers {record['versions']['transformers']}"
    return markdown(Table(f"{versions}: {total}; {counts}.", ["family", "classes", "why"], rows))


_VERDICTS = ("accepted", "refused", "refused at the call", "not tried")


def _family(rows: dict[str, Any]) -> list[str]:
    """Classes by verdict, and the first reason of each verdict."""
    cells, reasons = [], []
    for verdict in _VERDICTS:
        some = {name: row for name, row in rows.items() if row["verdict"] == verdict}
        if some:
            cells.append(f"{verdict}: {', '.join(some)}")
            first = next(iter(some.values()))
            if "unreached" in first:
                reasons.append(f"{first['unreached']} of {first['modules']} attentions not run")
            if "reason" in first:
                reasons.append(first["reason"])
    return ["; ".join(cells), "; ".join(reasons)]


def compositions() -> list[str]:
    """What is patched beside what else is done to the model, and what is raised."""
    record = json.loads((RESULTS / "compositions.json").read_text(encoding="utf-8"))
    cells: dict[str, dict[str, str]] = record["cells"]
    subjects = list(next(iter(cells.values())))
    rows, errors = [], []
    for name, found in cells.items():
        verdicts = {subject: found.get(subject, "") for subject in subjects}
        shown = {"equal": "=", "": ""}
        rows.append([name, *(shown.get(verdict, "raises") for verdict in verdicts.values())])
        raised = {subject: said for subject, said in verdicts.items() if said not in shown}
        errors += [f"- {name}, {subject}: {said}" for subject, said in raised.items()]
    return [*markdown(Table("", ["", *subjects], rows)), "", *errors]


TABLES = {
    make.__name__: make
    for make in (
        *(machines, glue, multilabel, images, language_modeling, bottleneck),
        *(steps, h200, h200_shapes, heads, demo, compare, conversion, families),
        compositions,
    )
}
