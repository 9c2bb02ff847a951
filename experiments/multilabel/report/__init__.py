"""`python -m experiments.multilabel report`: a page of tables, and the figures."""

from __future__ import annotations

from pathlib import Path

from experiments.multilabel.report import plots, tables
from experiments.multilabel.report.results import Results, read_results
from pipeline.config import ReportConfig
from pipeline.files import write_text
from pipeline.report import canvas, text
from pipeline.report.table import Report, Table, markdown

FIGURES = {
    "labels": "micro-F1 by the mean number of labels",
    "length": "micro-F1 by document length",
    "curves": "micro-F1 on the validation set by epoch",
}


def report(config: ReportConfig) -> Report:
    """Write report.md and the figures; the same records give the same bytes.

    Raises:
        ValueError: as `read_results`.
    """
    results = read_results(config.results_dir)
    folder = Path(config.output_dir or config.results_dir)
    folder.mkdir(parents=True, exist_ok=True)
    parts = [_head(results), *_figures(results, folder)]
    parts += ["\n".join(markdown(table)).strip() for table in _tables(results)]
    parts += [f"Left out: {text.markdown(fault)}." for fault in results.faults]
    page = folder / "report.md"
    write_text(page, "\n\n".join(parts) + "\n")
    return Report(page, [tables.scores(results, "micro")])


def _head(results: Results) -> str:
    content = results.content
    train = content["train"]
    rates = ", ".join(map(text.plain, content["learning_rates"]))
    chosen = f"the best of {rates} on the validation set" if results.searched else rates
    devices = ", ".join(sorted({r.results["device"] for r in results.records if r.results}))
    words = (
        f"{text.counted(len(results.data), 'data set')}, "
        f"{text.counted(len(results.methods), 'method')}, "
        f"{text.counted(content['seeds'], 'seed')}. Adam, learning rate {chosen}, "
        f"{text.counted(train['epochs'], 'epoch')}, batches of {train['batch_size']}. Epoch and "
        "threshold are those of the best micro-F1 on the validation set; F1 is that on the test "
        f"set, looked at once, at the end{_exception(results)}. Device: {devices}."
    )
    return f"# Multi-label classification\n\n{text.markdown(words)}"


def _exception(results: Results) -> str:
    """Where there is no test set."""
    runs = [record for record in results.records if record.results]
    found = {r.task for r in runs if (r.results or {})["measured_on"] == "validation"}
    names = [name for name in results.data if name in found]
    return f" (on the validation set again for {text.listing(names)})" if names else ""


def _figures(results: Results, folder: Path) -> list[str]:
    """Write those that the data sets allow; their places in the page."""
    drawn = {axis: plots.plot_axis(results, axis) for axis in plots.AXES}
    drawn["curves"] = plots.plot_curves(results)
    places = []
    for name, figure in drawn.items():
        if figure is not None:
            canvas.save(figure, folder / f"{name}.png")
            places.append(f"![{FIGURES[name]}]({name}.png)")
    return places


def _tables(results: Results) -> list[Table]:
    """All that the records give something for."""
    found = [
        tables.beside_published(results),
        tables.scores(results, "micro"),
        tables.differences(results),
        tables.scores(results, "macro"),
        tables.scores(results, "samples"),
        *(tables.thresholds(results, method) for method in results.methods),
        tables.label_counts(results),
        tables.rates(results) if results.searched else None,
        tables.runs(results),
    ]
    return [table for table in found if table is not None]
