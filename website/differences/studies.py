"""Entries of every study in results/, from the readers and paired differences of its report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from engine.experiment import Experiment
from engine.sweep.records import FOLDER, PACKED_FILE, SWEEP_FILE
from engine.sweep.results import Results, Value
from experiments.bottleneck.__main__ import EXPERIMENT as BOTTLENECK
from experiments.bottleneck.report import MEASURES
from experiments.images.__main__ import EXPERIMENT as IMAGES
from experiments.images.report import baseline, error, negll
from experiments.language_modeling.__main__ import EXPERIMENT as LANGUAGE_MODELING
from experiments.language_modeling.report.plots import differences as of_heads
from experiments.length.__main__ import EXPERIMENT as LENGTH
from experiments.multilabel.__main__ import EXPERIMENT as MULTILABEL
from experiments.multilabel.measures import f1
from experiments.multilabel.report import CAPTIONS, CONTROLS
from experiments.multilabel.report import baseline as softmax_of
from glue.__main__ import EXPERIMENT as GLUE
from glue.report.runs import Sweep
from glue.report.table import majority, make_rows
from sparse_attn.comparison.page import differences as compared
from sparse_attn.comparison.page import measure_of
from sparse_attn.inspection.plot_style import mapping_in
from sparse_attn.mappings import get_spec
from sparse_attn.mappings.derived import SCALED
from sparse_attn.reports import text
from sparse_attn.reports.seed_statistics import LEVEL, Difference, paired
from sparse_attn.system.files import read_json
from website.differences.entries import BASELINE, Entry, Kind, check, read

REMEDY = "mend it or take it out"
NONE = (None, None, 0, None, None)  # fields of an absent Difference


class Measure(NamedTuple):
    """A measure of runs; `better` is 1 if more is better, else -1."""

    name: str
    unit: str
    better: int


class Found(NamedTuple):
    """Result of a study's report for a mapping on a task; difference None if not finite."""

    task: str
    mapping: str
    measure: Measure
    difference: Difference | None
    over: str = "seeds"
    zeros: float | None = None
    baseline: str = BASELINE
    tuned_on_scored_rows: bool = False
    control: bool = False
    kind: Kind = "output layer"
    baseline_learned: bool = True


def _glue(results: Results) -> Iterator[Found]:
    sweep = Sweep(**vars(results))
    if sweep.sweep.limit is not None:
        raise ValueError(
            f"{sweep.folder}: expected whole tasks, got a smoke run of limit={sweep.sweep.limit}; "
            "take it out"
        )
    rows = make_rows(sweep)
    softmax = {row.task: row.mean for row in rows if row.mapping == BASELINE}
    for row in rows:
        points = row.difference and row.difference.scaled(100)
        if points and points.n == 1:  # the interval is about one pair, not about the mapping
            points = points._replace(interval=None)
        if points or row.diverged or row.failed:
            yield Found(
                row.task,
                row.mapping,
                Measure(str(row.metric), "points", 1),
                points,
                "seeds and examples",
                row.sparsity,
                tuned_on_scored_rows=not sweep.fair,
                kind="trained attention",
                baseline_learned=(softmax[row.task] or 0) > (majority(sweep, row.task) or 0),
            )


def _by_seed(
    results: Results, base: str, measures: Iterable[tuple[Measure, Value]]
) -> Iterator[Found]:
    """Yield a result for every mapping and measure, over the seeds shared with the baseline."""
    for measure, value in measures:
        for cell, found in results.against(base, value).items():
            # finished runs may lack a measure, such as -log p for mse, without being failures
            if results.by_seed(cell, value) or not results.finished(cell):
                yield Found(*cell, measure, found, baseline=base)


def _images(results: Results) -> Iterator[Found]:
    measures = (Measure("test error", "points", -1), error), (Measure("-log p", "nats", -1), negll)
    base = baseline(results)
    return _by_seed(results, base, measures) if base else iter(())


def _multilabel(results: Results) -> Iterator[Found]:
    measures = [(Measure(f"{name}-F1", "points", 1), f1(name)) for name in CAPTIONS]
    methods = results.sweep.methods
    for found in _by_seed(results, softmax_of(results), measures):
        runs = results.finished((found.task, found.mapping))
        tuned = any(run["measured_on"] == "validation" for run in runs)
        control = methods[found.mapping].mapping in CONTROLS
        yield found._replace(tuned_on_scored_rows=tuned, control=control)


def _bottleneck(results: Results) -> Iterator[Found]:
    measures = [(Measure(m.title, m.unit, m.better), m.of) for m in MEASURES]
    return _by_seed(results, BASELINE, measures)


def _language_modeling(results: Results) -> Iterator[Found]:
    measure = Measure("test perplexity", "perplexity", -1)
    found = {task: of_heads(results, task) for task in results.tasks}
    for task, head in results.cells:
        if head in found[task] or results.diverged((task, head)):
            yield Found(task, head, measure, found[task].get(head))


def _length(results: Results) -> Iterator[Found]:
    longest = results.sweep.lengths[-1]
    measure = Measure(f"accuracy at {longest:,} tokens", "points", 1)
    for found in _by_seed(results, BASELINE, [(measure, lambda run: float(run["score"]))]):
        yield found._replace(kind="attention from scratch")


SWEEPS: dict[str, tuple[Experiment[Any, Any], Callable[[Results], Iterator[Found]]]] = {
    "glue": (GLUE, _glue),
    "multilabel": (MULTILABEL, _multilabel),
    "images": (IMAGES, _images),
    "language_modeling": (LANGUAGE_MODELING, _language_modeling),
    "bottleneck": (BOTTLENECK, _bottleneck),
    "length": (LENGTH, _length),
}
# folders with a file per model, which has softmax and other mappings, and their kind of use
MODELS: dict[str, Kind] = {"compare": "swapped attention", "conversion": "healed attention"}


def read_entries(results: Path) -> list[Entry]:
    """Return the entries of all studies below a folder such as results/, grouped by study.

    Raises:
        ValueError: a record does not fit the schema or its sweep; names the file.
    """
    found = [*_of_sweeps(results), *_of_models(results)]
    for entry in found:
        check(vars(entry), "entry", entry.source)
    return found


def without_entries(results: Path, entries: Sequence[Entry]) -> list[str]:
    """Return the records below the folder without entries, and the reason."""
    known, silent = {entry.source for entry in entries}, []
    for path in (*_sweeps(results), *_models(results)):
        name = path.relative_to(results.parent).as_posix()
        if name not in known:
            silent.append(f"{name} ({_missing_reason(path, path.relative_to(results).parts[0])})")
    return silent


def _missing_reason(path: Path, folder: str) -> str:
    if path.is_file():
        return "no softmax with labels"
    if folder in SWEEPS:
        return "no final runs of softmax and a mapping with the same seeds"
    return f"a sweep, and not below {', '.join(list(SWEEPS)[:-1])} or {list(SWEEPS)[-1]}"


def _sweeps(folder: Path) -> list[Path]:
    files = [path for name in (SWEEP_FILE, PACKED_FILE) for path in folder.rglob(name)]
    return sorted({path.parent for path in files})


def _models(root: Path) -> list[Path]:
    """Return the records of single models, each of which has softmax and mappings."""
    paths = sorted(path for name in MODELS for path in (root / name).rglob("*.json"))
    return [p for p in paths if not any((up / SWEEP_FILE).exists() for up in p.parents[:2])]


def _of_sweeps(root: Path) -> Iterator[Entry]:
    for name, (experiment, differences) in SWEEPS.items():
        for folder in _sweeps(root / name):
            for path in (*folder.glob(PACKED_FILE), *sorted((folder / FOLDER).glob("*.json"))):
                read(path, "run")
            results = experiment.read(folder)
            if results.faults:
                raise ValueError(f"{folder}: {results.faults[0]}; {REMEDY}")
            for found in differences(results):
                final = results.counting((found.task, found.mapping))
                lost = sum(record.results is None for record in final)
                yield _entry(found, root, folder, folder, results.devices, lost)


def _of_models(root: Path) -> Iterator[Entry]:
    for path in _models(root):
        record = read_json(path, str(path.parent), REMEDY)
        if "runs" in record:
            check(record, "fine-tuned", str(path))
            some = _fine_tuned(record)
        else:
            check(record, "comparison", str(path))
            some = _compared(record, MODELS[path.relative_to(root).parts[0]])
        for found in some:
            yield _entry(found, root, path.parent, path, [record["device"]], 0)


def _compared(record: dict[str, Any], kind: Kind) -> Iterator[Found]:
    """Yield the mappings of a record; of a conversion only the healed one, not the swapped."""
    judged, differences = measure_of(record), compared(record)["softmax"]
    unit, factor = "points", 1.0
    if judged.name == "perplexity":  # relative, because its level depends on the text
        unit, factor = "%", 100 / record["softmax"]
    task = record["source"]
    if "windows" in record:
        task += f", {record['windows']['tokens']:,} tokens"
    rows = record["mappings"][-1:] if "recipe" in record else record["mappings"]
    for row in rows:
        if row["mapping"] in differences:
            yield Found(
                task,
                row["mapping"],
                Measure(judged.name, unit, judged.better),
                differences[row["mapping"]].scaled(factor)._replace(n=1),
                "examples",
                row["zeros"],
                kind=kind,
            )


def _fine_tuned(record: dict[str, Any]) -> Iterator[Found]:
    """Yield models that are converted, then fine-tuned, compared with fine-tuned softmax."""
    scores: dict[str, dict[int, float]] = {}
    for run in record["runs"]:
        scores.setdefault(run["model"], {})[run["seed"]] = 100 * run["accuracy"]
    for model, by_seed in scores.items():
        if model != BASELINE:
            zeros = fmean(run["zeros"] for run in record["runs"] if run["model"] == model)
            yield Found(
                record["task"],
                model,
                Measure("accuracy", "points", 1),
                paired(by_seed, scores[BASELINE]),
                zeros=zeros,
                kind="trained attention",
            )


def _entry(
    found: Found, root: Path, folder: Path, source: Path, devices: Sequence[str], lost: int
) -> Entry:
    difference, interval, pairs, p, detectable = found.difference or NONE
    low, high = interval or (None, None)
    name = mapping_in(found.mapping)
    return Entry(
        study=folder.relative_to(root).as_posix(),
        task=found.task,
        metric=found.measure.name,
        unit=found.measure.unit,
        higher_is_better=found.measure.better > 0,
        mapping=found.mapping,
        baseline=found.baseline,
        control=found.control or (name is not None and _is_control(name, found.mapping)),
        difference=_rounded(difference),
        low=_rounded(low),
        high=_rounded(high),
        confidence=1 - LEVEL,
        p=_rounded(p),
        detectable=_rounded(detectable),
        interval_over=found.over,
        seeds=pairs,
        lost=lost,
        kind=found.kind,
        baseline_learned=found.baseline_learned,
        tuned_on_scored_rows=found.tuned_on_scored_rows,
        zeros=_rounded(found.zeros),
        device=text.listing(devices),
        source=source.relative_to(root.parent).as_posix(),
        record=None if source == folder else source.stem,
    )


def _is_control(name: str, label: str) -> bool:
    # softmax with a sink or a factor is another function
    again = name == BASELINE and "sink=" not in label and SCALED not in label
    return again or get_spec(name).source.startswith("control")


def _rounded(value: float | None) -> float | None:
    """Round to six digits, because the last ones depend on the processor."""
    return None if value is None else float(f"{value:.6g}")
