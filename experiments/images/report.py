"""`python -m experiments.images report`: tables beside the published ones, and figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments.images.plots import plot_errors, plot_learning
from experiments.images.published import SOURCE, Published, published
from experiments.images.results import Results, criterion, error, negll, read_results
from pipeline.config import ReportConfig
from pipeline.files import write_text
from pipeline.report import canvas, text
from pipeline.report.spread import Estimate, paired
from pipeline.report.table import Report, Table, markdown


def report(config: ReportConfig) -> Report:
    """Write report.md and the figures; the same records give the same bytes.

    Raises:
        ValueError: as `read_results`.
    """
    results = read_results(Path(config.results_dir))
    folder = Path(config.output_dir or config.results_dir)
    folder.mkdir(parents=True, exist_ok=True)
    found = results_table(results)
    lines = [*_head(results), "## Test images", "", *markdown(found)]
    if any(results.finished(label) for label in results.records):
        figures = {
            "errors.png": ("Test error of every run", plot_errors),
            "learning.png": ("Validation error by epoch", plot_learning),
        }
        for name, (title, plot) in figures.items():
            canvas.save(plot(results), folder / name)
            lines += [f"![{title}]({name})", ""]
    if results.baseline is not None:
        lines += ["## Against softmax", "", *markdown(differences_table(results))]
    lines += ["## Learning rates", "", *markdown(_rates_table(results))]
    page = folder / "report.md"
    write_text(page, "\n".join(lines).rstrip() + "\n")
    title = "Test images: mean ± standard deviation over the runs."
    return Report(page, [found.columns(0, 3, 4, 5, 9, caption=title)])


def _head(results: Results) -> list[str]:
    sweep = results.sweep
    runs = [run for label in results.records for run in results.finished(label)]
    sizes = sorted({tuple(run["images"].items()) for run in runs})
    images = "; ".join(", ".join(f"{n:,} {part}" for part, n in size) for size in sizes)
    devices = text.listing(sorted({run["device"] for run in runs}))
    count = text.listing([f"{n} {status}" for status, n in sorted(results.count().items())])
    wanted = len(sweep.losses) * (
        sweep.runs + len(next(iter(sweep.losses.values())).learning_rates)
    )
    title = f"Losses on {sweep.data.name}, {sweep.data.split} split"
    words = (
        f"{text.counted(sweep.runs, 'run')} of each loss, run k with the same images in each part, "
        "first weights and order for every loss; mean ± standard deviation over the runs. The "
        "learning rate of each loss is the best of those tried on the validation images of another "
        f"seed. Images: {images or 'none yet'}. Runs, trials included: {count or 'none'} of "
        f"{wanted}. Device: {devices or 'none yet'}."
    )
    lines = [f"# {text.markdown(title)}", "", text.markdown(words), ""]
    if results.faults:
        lines += [f"Left out: {text.markdown('; '.join(results.faults))}.", ""]
    return lines


def results_table(results: Results) -> Table:
    """Criterion and error of every loss beside the published ones."""
    title, theirs = published(results.sweep)
    rows = []
    for label in results.records:
        print_of = theirs.get(label, Published(*[text.NOTHING] * 3))
        runs = results.finished(label)
        rows.append(
            [
                label,
                f"{runs[0]['measure']} {_text(results.spread(label, criterion), 4)}"
                if runs
                else text.MISSING,
                print_of.criterion or text.NOTHING,
                _text(results.spread(label, negll), 4),
                _text(results.spread(label, error), 2),
                print_of.error,
                _text(results.spread(label, lambda run: run["best_epoch"]), 0),
                _text(results.spread(label, lambda run: run["epochs"]), 0),
                print_of.epochs or text.NOTHING,
                _runs(results, label),
            ]
        )
    return Table(
        "Criterion and error of the best epoch on the test images. negll is -log p of the true "
        "class in nats (of softmax for bouchard), the criterion itself where that is its name; mse "
        "is the mean over classes of the squared error. Published: standard deviations in brackets "
        f"({SOURCE}, {title}); what is counted as epochs there is not said.",
        [
            "loss",
            "criterion",
            "published",
            "negll",
            "error in %",
            "published",
            "best epoch",
            "epochs run",
            "published",
            "runs",
        ],
        rows,
    )


def _runs(results: Results, label: str) -> str:
    """How many count, and how many have diverged."""
    finals = results.of_stage(label, "final")
    diverged = sum(record.status == "diverged" for record in finals)
    return f"{len(results.finished(label))}" + (f" ({diverged} diverged)" if diverged else "")


def differences_table(results: Results) -> Table:
    """Every loss less plain softmax, which the sweep must have."""
    base = results.baseline
    assert base is not None
    rows = []
    for label in results.records:
        if label == base:
            continue
        cells = [label]
        for value, pattern in ((error, "{:+.2f}"), (negll, "{:+.4f}")):
            pairs = paired(results.by_seed(label, value), results.by_seed(base, value))
            cells.append(pairs.text(pattern) if pairs else text.MISSING)
        rows.append(cells)
    return Table(
        f"Loss minus {base}, mean over runs with the same seed and 95 % t interval; below 0 the "
        "loss is better. The intervals are not adjusted for their number, and speak of other seeds "
        "and splits of these images, not of new images: the runs share most of them.",
        ["loss", "error in points", "negll"],
        rows,
    )


def _rates_table(results: Results) -> Table:
    rows = []
    for label, loss in results.sweep.losses.items():
        trials = {
            record.config["train"]["learning_rate"]: record
            for record in results.of_stage(label, "trial")
        }
        finals = results.of_stage(label, "final")
        chosen = {record.config["train"]["learning_rate"] for record in finals}
        tried = []
        for rate in loss.learning_rates:
            record = trials.get(rate)
            outcome = "not run" if record is None else _outcome(record.status, record.results)
            tried.append(f"{rate:g}: {outcome}")
        seconds = results.spread(label, lambda run: run["seconds"])
        rows.append(
            [
                label,
                ", ".join(f"{name} {text.plain(value)}" for name, value in loss.params.items())
                or text.NOTHING,
                "; ".join(tried),
                ", ".join(f"{rate:g}" for rate in sorted(chosen)) or text.MISSING,
                _text(seconds, 0),
            ]
        )
    return Table(
        "Validation error in % of every learning rate tried, the one chosen, and seconds a run.",
        ["loss", "parameters", "tried", "chosen", "seconds"],
        rows,
    )


def _outcome(status: str, results: dict[str, Any] | None) -> str:
    return status if results is None else f"{100 * results['validation']['error']:.2f}"


def _text(spread: Estimate | None, digits: int) -> str:
    if spread is None or spread.mean != spread.mean:
        return text.MISSING
    return spread.text(f"{{:.{digits}f}}")
