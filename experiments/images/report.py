"""Report: tables with the published numbers, and figures."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from matplotlib.figure import Figure

from experiments.images.published import SOURCE, Published, published
from sparse_attn.engine.sweep.records import Record
from sparse_attn.engine.sweep.results import Results
from sparse_attn.reports import canvas, text
from sparse_attn.reports.forest import forest
from sparse_attn.reports.page import Block, Heading, Page, Plot, Status, Table
from sparse_attn.reports.seed_statistics import holm

BASELINE = "softmax"
SPREAD = "Thick line: mean; thin line: one standard deviation to each side."


def make_page(results: Results) -> Page:
    """The report of a sweep."""
    found = results_table(results)
    blocks: list[Block] = [
        *_against_softmax(results),
        Heading("Settings"),
        _settings_table(results),
        results.standing,
        *map(Status, results.left_out),
        Heading("Test images"),
        found,
    ]
    if any(results.finished(cell) for cell in results.cells):
        blocks += [
            Plot("errors", "Test error of every run", SPREAD, plot_errors(results)),
            Plot("learning", "Validation error by epoch", "", plot_learning(results)),
        ]
    blocks += [Heading("Learning rates"), _rates_table(results)]
    caption = "Test images: mean ± standard deviation over the runs."
    title = f"Losses on {results.sweep.data.name}, {results.sweep.data.split} split"
    return Page(title, blocks, [found.columns(0, 3, 4, 5, 9, caption=caption)])


def error(run: dict[str, Any]) -> float:
    """Test error in percent."""
    return 100 * run["test"]["error"]


def criterion(run: dict[str, Any]) -> float:
    """The criterion on the test images."""
    return run["test"]["criterion"]


def negll(run: dict[str, Any]) -> float | None:
    """Mean -log p on the test images; None without probabilities."""
    found: float | None = run["test"].get("negll")
    return found


def baseline(results: Results) -> str | None:
    """The label of plain softmax, the baseline."""
    losses = results.sweep.losses.items()
    return next((label for label, loss in losses if loss.name == BASELINE), None)


def _against_softmax(results: Results) -> list[Block]:
    """Differences from plain softmax; nothing if the sweep has none."""
    base = baseline(results)
    if base is None:
        return []
    pairs = results.against(base, error)
    found = {label: pair for (_, label), pair in pairs.items() if pair}
    figure = forest({"test error": found}, f"points above {base}; less is better")
    caption = (
        "Mean difference of test errors and its 95 % t interval, not adjusted for their number."
    )
    plots = [Plot("differences", f"Difference from {base}", caption, figure)] if figure else []
    return [differences_table(results), *plots]


def _settings_table(results: Results) -> Table:
    runs = [run for cell in results.cells for run in results.finished(cell)]
    sizes = sorted({tuple(run["images"].items()) for run in runs})
    images = "; ".join(", ".join(f"{n:,} {part}" for part, n in size) for size in sizes)
    caption = (
        "Run k of every loss has the same images in each part, first weights and order. The "
        "learning rate of a loss is the best on the validation images of another seed."
    )
    rows = [["runs of each loss", str(results.sweep.runs)], ["images", images or text.MISSING]]
    return Table(caption, ["setting", "value"], rows)


def results_table(results: Results) -> Table:
    """Return criterion and error of every loss, with the published numbers."""
    title, theirs = published(results.sweep)
    rows = []
    for cell in results.cells:
        printed = theirs.get(cell[1], Published(*[text.NOTHING] * 3))
        runs = results.finished(cell)
        diverged = results.diverged(cell)
        measure = runs[0]["measure"] + " " if runs else ""
        rows.append(
            [
                cell[1],
                measure + results.text(cell, criterion, "{:.4f}"),
                printed.criterion or text.NOTHING,
                results.text(cell, negll, "{:.4f}"),
                results.text(cell, error, "{:.2f}"),
                printed.error,
                results.text(cell, lambda run: run["best_epoch"], "{:.0f}"),
                results.text(cell, lambda run: run["epochs"], "{:.0f}"),
                printed.epochs or text.NOTHING,
                f"{len(runs)}" + (f" ({diverged} diverged)" if diverged else ""),
            ]
        )
    return Table(
        "Criterion and error of the best epoch on the test images. negll is -log p of the true "
        "class in nats (of softmax for bouchard), the criterion itself where that is its name; mse "
        "is the mean over classes of the squared error. Published: standard deviations in brackets "
        f"({SOURCE}, {title}); what is counted as epochs there is not said.",
        [
            *("loss", "criterion", "published", "negll", "error in %", "published"),
            *("best epoch", "epochs run", "published", "runs"),
        ],
        rows,
    )


def differences_table(results: Results) -> Table:
    """Difference of every loss from plain softmax, which the sweep must include."""
    base = baseline(results) or ""
    errors, likelihoods = results.against(base, error), results.against(base, negll)
    cells = [cell for cell in results.cells if cell[1] != base]
    pairs = [errors.get(cell) for cell in cells]
    corrected = holm([pair and pair.p for pair in pairs])
    rows = []
    for cell, pair, p in zip(cells, pairs, corrected, strict=True):
        other = likelihoods.get(cell)
        rows.append(
            [
                cell[1],
                pair.text("{:+.2f}") if pair else text.MISSING,
                text.number(pair and pair.detectable, "{:.2f}"),
                text.probability(p),
                pair.verdict(-1, p) if pair else text.MISSING,
                other.text("{:+.4f}") if other else text.MISSING,
            ]
        )
    return Table(
        f"Loss minus {base}, mean over runs with the same seed and 95 % t interval; below 0 the "
        "loss is better. 80 % power: the difference of errors that a paired t-test detects with "
        "this power. p: of a paired t-test, after Holm's correction; the verdict on the error is "
        "by this p. The intervals are not adjusted for their number, and speak of other seeds "
        "and splits of these images, not of new images: the runs share most of them.",
        ["loss", "error in points", "80 % power", "p (Holm)", "verdict", "negll"],
        rows,
    )


def _rates_table(results: Results) -> Table:
    rows = []
    for cell in results.cells:
        loss = results.sweep.losses[cell[1]]
        trials = {r.config["train"]["learning_rate"]: r for r in results.of_stage(cell, "trial")}
        chosen = {r.config["train"]["learning_rate"] for r in results.counting(cell)}
        params = [f"{name} {text.plain(value)}" for name, value in loss.params.items()]
        rows.append(
            [
                cell[1],
                ", ".join(params) or text.NOTHING,
                "; ".join(
                    f"{rate:g}: {_outcome(trials.get(rate))}" for rate in loss.learning_rates
                ),
                ", ".join(f"{rate:g}" for rate in sorted(chosen)) or text.MISSING,
                results.text(cell, lambda run: run["seconds"], "{:.0f}"),
            ]
        )
    return Table(
        "Validation error in % of every learning rate tried, the one chosen, and seconds a run.",
        ["loss", "parameters", "tried", "chosen", "seconds"],
        rows,
    )


def _outcome(trial: Record | None) -> str:
    if trial is None or trial.results is None:
        return "not run" if trial is None else trial.status
    return f"{100 * trial.results['validation']['error']:.2f}"


def plot_errors(results: Results) -> Figure:
    """Test errors by loss: every run, mean and standard deviation."""
    errors = {cell[1]: list(results.by_seed(cell, error).values()) for cell in results.cells}
    figure, axes = canvas.dots(errors, baseline(results))
    axes.set(xlabel="test error in %", xlim=(0, None))
    return figure


def plot_learning(results: Results) -> Figure:
    """Mean validation error by epoch; a stopped run keeps the error of its best epoch."""
    looks = canvas.looks(results.mappings, baseline(results))
    figure, axes = canvas.single()
    for cell in results.cells:
        runs = results.finished(cell)
        if not runs:
            continue
        longest = max(run["epochs"] for run in runs)
        curves = [_curve(run, longest) for run in runs]
        means = [fmean(errors) for errors in zip(*curves, strict=True)]
        look = {**looks[cell[1]], "markersize": 3.5, "markevery": 5}
        axes.plot(range(1, longest + 1), means, label=canvas.name(cell[1]), **look)
    axes.set(xlabel="epoch", ylabel="validation error in %", yscale="log")
    canvas.legend_below(figure, axes)
    return figure


def _curve(run: dict[str, Any], length: int) -> list[float]:
    """Validation errors in percent by epoch, padded to a length."""
    errors = [100 * epoch["error"] for epoch in run["history"]]
    return errors + [errors[run["best_epoch"] - 1]] * (length - len(errors))
