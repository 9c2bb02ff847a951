"""Tables made from results/ by the functions of the reports."""

from __future__ import annotations

import csv
import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from experiments.bottleneck.__main__ import EXPERIMENT as BOTTLENECK
from experiments.bottleneck.report import MEASURES, head_verdicts, measure_table
from experiments.demo.page import retrieval_table
from experiments.images.__main__ import EXPERIMENT as IMAGES
from experiments.images.report import differences_table, results_table
from experiments.language_modeling.__main__ import EXPERIMENT as LANGUAGE_MODELING
from experiments.language_modeling.report.tables import heads_table
from experiments.length.__main__ import EXPERIMENT as LENGTH
from experiments.length.report import accuracy_table
from experiments.multilabel.__main__ import EXPERIMENT as MULTILABEL
from experiments.multilabel.report import method_verdicts, scores
from glue.__main__ import EXPERIMENT as GLUE
from sparse_attn.comparison.page import measure_of, share, unit
from sparse_attn.comparison.page import table as compared
from sparse_attn.reports import text
from sparse_attn.reports.seed_statistics import Difference, estimate, paired
from sparse_attn.reports.table import Table, markdown
from website import ROOT, speed
from website.differences.counts import attention

RESULTS = ROOT / "results"


@cache
def table(name: str) -> str:
    """Return the Markdown of one of `TABLES`.

    Raises:
        ValueError: unknown name.
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
    """Yield the file and content of every record in results/; a file has one, or one per line."""
    for path in sorted(RESULTS.rglob("*.json*")):
        content = path.read_text(encoding="utf-8")
        for record in content.splitlines() if path.suffix == ".jsonl" else [content]:
            yield path, json.loads(record)


def glue() -> list[str]:
    """Differences and scores: the head of the report.

    They are copied from the report, because its intervals take long; a test checks the report.
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


def multilabel_rates() -> list[str]:
    """Micro-F1 of every method at its best rate, with standardised and with raw counts."""
    return [
        line
        for name in ("synthetic-rates", "synthetic-raw")
        for line in markdown(scores(MULTILABEL.read(RESULTS / "multilabel" / name), "micro"))
    ]


def multilabel_batch64() -> list[str]:
    """Micro-F1 of every method with batches of 64."""
    return markdown(scores(MULTILABEL.read(RESULTS / "multilabel/synthetic-batch64"), "micro"))


def images() -> list[str]:
    """Every loss on MNIST compared with softmax and the paper's table."""
    results = IMAGES.read(RESULTS / "images/mnist-few")
    return [*markdown(differences_table(results)), *markdown(results_table(results))]


def bottleneck() -> list[str]:
    """Verdicts, and every measure of every head."""
    return _measures("small")


def bottleneck_alphas() -> list[str]:
    """Verdicts, and every measure of every head, at other alphas."""
    return _measures("small-alphas")


def _measures(study: str) -> list[str]:
    results = BOTTLENECK.read(RESULTS / "bottleneck" / study)
    tables = [measure_table(results, a, m) for a in results.sweep.alphas for m in MEASURES]
    return [line for table in (head_verdicts(results)[0], *tables) for line in markdown(table)]


def length() -> list[str]:
    """Accuracy by length; the verdicts are in the report."""
    return markdown(accuracy_table(LENGTH.read(RESULTS / "length/recall")))


def mrpc_h200() -> list[str]:
    """Differences from softmax on MRPC with most seeds, by both kinds of interval."""
    results = GLUE.read(RESULTS / "glue/mrpc-h200")
    with (ROOT / "docs/glue-mrpc-h200/report.csv").open(encoding="utf-8") as file:
        found = {row["mapping"]: row for row in csv.DictReader(file) if row["difference"]}
    rows = []
    for name, row in found.items():
        value, low, high = (float(row[key]) for key in ("difference", "low", "high"))
        seeds = results.difference(("MRPC", name), ("MRPC", "softmax"), lambda run: run["score"])
        both = Difference(100 * value, (100 * low, 100 * high), int(row["paired_seeds"]))
        assert seeds is not None
        rows.append(
            [
                name,
                share(float(row["sparsity"])),
                row["paired_seeds"],
                both.text("{:+.2f}"),
                both.verdict(p=float(row["p_holm"])),
                f"± {100 * seeds.half:.2f}",
                seeds.verdict(),
            ]
        )
    headers = ["mapping", "exact zeros", "seeds", "difference [95 %, seeds and dev examples]"]
    headers += ["verdict, Holm", "95 %, seeds only", "by seeds only"]
    return markdown(Table("", headers, rows))


def demo() -> list[str]:
    """Retrieval with dropped attention weights, and the accuracy of both mappings by seed."""
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
    """The untrained swap in MiniLM, a table for each record."""
    tables = [compared(record) for record in _comparisons("minilm-sts-b*.json")]
    return [line for each in tables for line in [*markdown(each), ""]]


def llm() -> list[str]:
    """SmolLM2 by length of its windows: zeros and perplexity, a table for each text."""
    by_text: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for record in _comparisons("smollm2-*.json"):
        by_text[record["source"]].append(record)
    lines = []
    for source, records in by_text.items():
        records.sort(key=lambda record: record["windows"]["tokens"])
        lines += [*markdown(_by_length(source, records)), ""]
    return lines


def _by_length(source: str, records: list[dict[str, Any]]) -> Table:
    """Tabulate records of one text with windows of other lengths side by side."""
    # the order of the record with most mappings, then what only others have
    most_first = sorted(records, key=lambda record: -len(record["mappings"]))
    labels = dict.fromkeys(row["mapping"] for each in most_first for row in each["mappings"])
    headers, rows = ["mapping"], {label: [label] for label in labels}
    for record in records:
        measure = measure_of(record)
        headers += [
            f"{record['windows']['tokens']:,} tokens: zeros",
            f"perplexity, softmax {measure.number(record['softmax'])}",
        ]
        by_label = {row["mapping"]: row for row in record["mappings"]}
        for label, line in rows.items():
            if row := by_label.get(label):
                line += [share(row["zeros"]), measure.judged(row["against_softmax"])[0]]
            else:
                line += [text.NOTHING] * 2
    counts = [f"{r['texts']} of {r['windows']['tokens']:,} tokens" for r in records]
    caption = f"{source}, windows: {text.listing(counts)}. Perplexity: difference [95 %]."
    return Table(caption, headers, list(rows.values()))


def _comparisons(names: str) -> list[dict[str, Any]]:
    """Read the records of `sparse-attn compare` with these names."""
    paths = sorted((RESULTS / "compare").glob(names), key=lambda path: path.stem)
    return [_read(f"compare/{path.name}") for path in paths]


def llm_top_p() -> list[str]:
    """The first table of README: top-p-softmax in SmolLM2 at 4,096 tokens."""
    judged = _judged("compare/smollm2-wikitext-4096.json")
    rows = [row for row in judged.rows if row[0] == "softmax" or row[0].startswith("top-p")]
    return markdown(Table("", judged.headers, rows))


def llm_needles() -> list[str]:
    """Numbers that SmolLM2 finds in its text, with every mapping."""
    return markdown(_judged("compare/needles-smollm2-wikitext-2048.json"))


def _judged(name: str) -> Table:
    """Tabulate a record of `sparse-attn compare` without agreement and random controls."""
    record = _read(name)
    made = compared(record)
    names = ("mapping", "exact zeros", measure_of(record).name, "against softmax [95 %]", "verdict")
    return made.columns(*map(made.headers.index, names), caption=made.caption)


def conversion() -> list[str]:
    """MiniLM converted: a row for each mapping and target."""
    return _converted("minilm")


def llm_converted() -> list[str]:
    """SmolLM2 converted."""
    return _converted("smollm2")


def _converted(model: str) -> list[str]:
    rows = []
    for path in sorted((RESULTS / "conversion" / model).glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        swapped, healed = record["mappings"]
        measure = measure_of(record)
        target = record["recipe"]["target_zeros"]
        rows.append(
            [
                record["recipe"]["mapping"],
                text.NOTHING if target is None else share(target),
                share(swapped["zeros"]),
                *measure.judged(swapped["against_softmax"]),
                share(healed["zeros"]),
                *measure.judged(healed["against_softmax"]),
                share(record["layers"][-1]["healed"]["zeros"]),
                measure.text(healed["random"]),
                f"{record['seconds'] / 60:.1f}",
            ]
        )
    headers = ["mapping", "asked", "swapped: zeros", "from softmax [95 %]", "verdict"]
    headers += ["healed: zeros", "from softmax [95 %]", "verdict", "last layer's"]
    headers += ["as many at random", "minutes"]
    caption = f"{measure.name.capitalize()}. {unit(record).capitalize()}s: {record['rows']:,}. "
    caption += f"Softmax: {measure.number(record['softmax'])}. Intervals are not corrected."
    return markdown(Table(caption, headers, rows))


def _read(name: str) -> dict[str, Any]:
    """Read a record in results/."""
    found: dict[str, Any] = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    return found


def fine_tuned() -> list[str]:
    """Models that are converted, then fine-tuned on MRPC, over seeds."""
    scores: dict[str, dict[str, dict[int, float]]] = {}
    for run in _read("conversion/mrpc/converted-first.json")["runs"]:
        for name in ("zeros", "accuracy", "f1"):
            by_seed = scores.setdefault(run["model"], {}).setdefault(name, {})
            by_seed[run["seed"]] = 100 * run[name]
    rows = []
    for model, found in scores.items():
        zeros, *means = (estimate(values.values()) for values in found.values())
        row = [model, str(len(found["accuracy"])), f"{zeros.mean:.1f} %" if zeros else ""]
        row += [mean.text("{:.1f}") for mean in means if mean]
        difference = paired(found["accuracy"], scores["softmax"]["accuracy"])
        if model == "softmax" or difference is None:
            row += [text.NOTHING] * 2
        else:
            row += [difference.text("{:+.1f}"), difference.verdict()]
        rows.append(row)
    headers = ["fine-tuned model", "seeds", "exact zeros", "accuracy", "F1"]
    return markdown(Table("", [*headers, "from softmax [95 %]", "verdict"], rows))


def families() -> list[str]:
    """Verdict of patch_model on every family of Transformers: counts, then a line each."""
    (path,) = (RESULTS / "families").glob("*.json")
    record = json.loads(path.read_text(encoding="utf-8"))
    found: dict[str, dict[str, Any]] = record["families"]
    verdicts = Counter(row["verdict"] for some in found.values() for row in some.values())
    total = f"Classes: {sum(verdicts.values()):,}. Model types: {len(found)}. "
    counts = " ".join(f"{name.capitalize()}: {verdicts[name]}." for name in _VERDICTS)
    rows = [[kind, *_family(some)] for kind, some in found.items()]
    versions = f"Transformers {record['versions']['transformers']}"
    return markdown(Table(f"{versions}. {total}{counts}", ["family", "classes", "why"], rows))


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
    """Combinations of patch_model with other changes to a model: those that work or raise."""
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


def compat() -> list[str]:
    """All tests on the oldest versions, the pinned and the newest ones."""
    rows = []
    for name, pair in _read("compat.json").items():
        counts = [f"{pair[kind]:,}" for kind in ("passed", "failed", "skipped")]
        # tests that failed at first and passed after a mend ran at another commit
        commits = [run["commit"] for run in (pair, pair.get("again")) if run]
        versions = [pair["versions"][name].partition("+")[0] for name in _COMPATIBLE]
        rows.append([name, *versions, *counts, ", ".join(commits)])
    headers = ["versions", *_COMPATIBLE, "passed", "failed", "skipped", "commit"]
    return markdown(Table("", headers, rows))


_COMPATIBLE = ("torch", "transformers", "triton", "python")


TABLES = {
    make.__name__: make
    for make in (
        *(machines, glue, multilabel, images, language_modeling, bottleneck),
        *(mrpc_h200, multilabel_rates, bottleneck_alphas, length, demo, compare, conversion),
        *(llm, llm_top_p, llm_needles, llm_converted, fine_tuned, families, compositions, compat),
        *(speed.steps, speed.attention_cpu, speed.sparsity, speed.heads, speed.llm_times),
        *(speed.h200, speed.h200_shapes, attention, multilabel_batch64),
    )
}
