"""Table, figures and page of a record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from sparse_attn.comparison.data import FOUND, LEAST
from sparse_attn.reports import canvas, text
from sparse_attn.reports.forest import forest
from sparse_attn.reports.page import Block, Bullets, Heading, Page, Plot, Table
from sparse_attn.reports.seed_statistics import Difference

# sign of a better agreement, and its meaning
AGREEMENTS = {
    "cosine": (
        1,
        "cosine: of a text's embedding with the one under softmax, its mean over the texts; an "
        "embedding is the mean of the last hidden states.",
    ),
    "KL, nats": (
        -1,
        "KL: divergence of the model's probabilities from those under softmax, mean over a "
        "text's tokens, if it has one for each, then over texts; 0 is equal.",
    ),
    "|difference|": (
        -1,
        "|difference|: of the predicted score from the one under softmax, its mean over the texts.",
    ),
}
NAMES = {"spearmanr": "Spearman", "pearson": "Pearson", "matthews_correlation": "Matthews"}
PERPLEXITY = (
    "perplexity: exp of the mean of -log p over the tokens of all texts, without the first of "
    "each; lower is better."
)
VERDICT = (
    "verdict: better or worse if the whole interval is on that side of 0. Without labels, better "
    "means nearer to softmax. Not significant is no proof of equality: a true difference of half "
    "the interval's width is detected about half of the time."
)
NOT_JUDGED = f"Not judged: fewer than {LEAST} rows, or the same difference in all."
NEAREST = (
    "against softmax: agreement minus that of softmax with itself, 1 for a cosine and 0 for other "
    "measures. Nothing agrees better, so there is no verdict."
)
AGAINST = {
    "softmax": "against_softmax",
    "as many zeros at random": "against_random",
    "before training": "against_swapped",
}
EMPTY = [text.NOTHING] * 4


class Measure(NamedTuple):
    """Measure that ranks the mappings of a record.

    Attributes:
        key: "quality", or "agreement" without labels.
        name: name for the reader.
        scale: factor from the value to points.
        digits: decimals to show.
        better: sign of an improvement.
    """

    key: str
    name: str
    scale: int
    digits: int
    better: int

    def text(self, row: dict[str, Any]) -> str:
        """Format the measure of a mapping or its control."""
        return self.number(row[self.key])

    def number(self, value: float) -> str:
        return f"{self.scale * value:.{self.digits}f}"

    def difference(self, found: dict[str, Any]) -> Difference:
        """Return the difference in points."""
        ends = found["interval"]
        interval = None if ends is None else (self.scale * ends[0], self.scale * ends[1])
        return Difference(self.scale * found["value"], interval, 0)

    def judged(self, found: dict[str, Any]) -> tuple[str, str]:
        """Return the difference with its interval as text, and the verdict."""
        difference = self.difference(found)
        return difference.text(f"{{:+.{self.digits}f}}"), difference.verdict(self.better)


def measure_of(record: dict[str, Any]) -> Measure:
    """Return the measure of a record: quality, or agreement without labels."""
    metric = record["metric"]
    if metric is None:
        name = record["agreement"]
        return Measure("agreement", name, 1, 3, AGREEMENTS[name][0])
    if metric == "perplexity":
        return Measure("quality", metric, 1, 2, -1)
    return Measure("quality", f"{NAMES.get(metric, metric)} x 100", 100, 2, 1)


def table(record: dict[str, Any]) -> Table:
    """Tabulate zeros, agreement, quality and their differences, a row per mapping."""
    measure, labelled = measure_of(record), record["metric"] is not None
    headers = ["mapping", "exact zeros", record["agreement"]]
    headers += [measure.name] if labelled else []
    headers += ["against softmax [95 %]", *(["verdict"] if labelled else [])]
    headers += [f"random: {measure.name}", "random: zeros", "against random [95 %]"]
    headers.append("random: verdict")
    score = measure.number(record["softmax"])
    numbers = [text.NOTHING, score, *[text.NOTHING] * 2] if labelled else [score, text.NOTHING]
    rows = [_row(row, measure) for row in record["mappings"]]
    return Table(caption(record), headers, [["softmax", share(0), *numbers, *EMPTY], *rows])


def _row(row: dict[str, Any], measure: Measure) -> list[str]:
    cells = [row["mapping"], share(row["zeros"]), f"{row['agreement']:.3f}"]
    difference, verdict = measure.judged(row["against_softmax"])
    cells += [measure.text(row), difference, verdict] if "quality" in row else [difference]
    if "random" not in row:
        return [*cells, *EMPTY]
    random = row["random"]
    ours = random.get("ours")
    beside = [f" ({measure.text(ours)})", f" ({share(ours['zeros'])})"] if ours else ["", ""]
    cells += [measure.text(random) + beside[0], share(random["zeros"]) + beside[1]]
    return [*cells, *measure.judged(row["against_random"])]


def share(value: float) -> str:
    """Format a share in per cent."""
    return f"{100 * value:.1f} %"


def caption(record: dict[str, Any]) -> str:
    """Name the model and its data."""
    return f"{record['model']} on {_data(record)}"


def _data(record: dict[str, Any]) -> str:
    count = text.counted(record["rows"], unit(record))
    if record.get("windows"):
        count += f" of {record['windows']['tokens']:,} tokens"
    return f"{count} of {record['source']}"


def unit(record: dict[str, Any]) -> str:
    """Return the name of a row of the record's data."""
    if record["rows"] < record["texts"]:
        return "pair"
    if record.get("windows"):
        return "window"
    return "text" if record["metric"] in (None, "perplexity") else "row"


def differences(record: dict[str, Any]) -> dict[str, dict[str, Difference]]:
    """Return the differences by reference (softmax, random) and by mapping."""
    measure = measure_of(record)
    return {
        what: {
            row["mapping"]: measure.difference(row[key]) for row in record["mappings"] if key in row
        }
        for what, key in AGAINST.items()
    }


def notes(record: dict[str, Any]) -> list[str]:
    """Explain the numbers."""
    found = [each for some in differences(record).values() for each in some.values()]
    count = sum(each.interval is not None for each in found)
    made = [
        "exact zeros: share among the pairs of valid queries and keys, over all layers, heads and "
        "texts.",
        AGREEMENTS[record["agreement"]][1],
        *([PERPLEXITY] if record["metric"] == "perplexity" else []),
        *([NEAREST] if record["metric"] is None else []),
        "random: the model with as many keys dropped at random. Its share of zeros is matched on a "
        "sample of the texts, with one value for all layers. A mapping without zeros has no such "
        "control.",
    ]
    if count:
        made += [
            f"Differences: {measure_of(record).name}, with 95 % percentile intervals of a paired "
            f"bootstrap. Resamples: {record['resamples']:,}. Intervals: {count}, not corrected for "
            "their number.",
            VERDICT,
        ]
    if count < len(found):
        made.append(NOT_JUDGED)
    if record.get("controlled"):
        made.append(
            "The controls have no fast kernel. They read the first "
            f"{record['controlled']} tokens of each text, and so did the mappings for the "
            "comparison with them: the last two columns, and in brackets beside the control."
        )
    if record.get("windows"):
        made.append(_windows(record))
    if record["cut"]:
        made.append(f"Cut after {record['limit']} tokens: {text.counted(record['cut'], 'text')}.")
    return made


def _windows(record: dict[str, Any]) -> str:
    windows = record["windows"]
    found = (
        f"Windows: {record['texts']} of {windows['tokens']:,} tokens, of a text of "
        f"{windows['of']:,}, starting every {windows['stride']:,} or further apart. "
    )
    if record["metric"] == FOUND:
        return found + (
            "Each hides a number, at depths from the start to the end, and ends with a question "
            "for it; found: each token of the number was the likeliest. Numbers in windows above "
            "512 tokens have no random control."
        )
    return found + "A window scores the tokens at its end that none before it has scored."


def provenance(record: dict[str, Any]) -> list[str]:
    """Name the command, its device and its time."""
    versions = ", ".join(f"{name} {number}" for name, number in record["versions"].items())
    time = f"{record['seconds'] / 60:.1f} minutes on {record['device']}; {versions}."
    return [record["command"], time]


def overview(record: dict[str, Any]) -> list[str]:
    """Return the table and notes for the terminal."""
    shown = table(record)
    return [str(shown), "", *notes(record)]


def make_page(record: dict[str, Any]) -> Page:
    """Build the report."""
    blocks = [
        "The model was trained with softmax in its attention, which is the first row. The other "
        "rows are the same model with another function in place of softmax; nothing was trained.",
        *results(record),
        Heading("How it was measured"),
        Bullets([*notes(record), *provenance(record)]),
    ]
    return Page(
        "Other functions in place of softmax, without training", blocks, overview=[table(record)]
    )


def results(record: dict[str, Any]) -> list[Block]:
    """Build the figures and the table."""
    measured = measure_of(record).name
    blocks: list[Block] = [
        Plot("zeros", f"{measured} by exact zeros", _by_zeros_caption(record), by_zeros(record)),
    ]
    found = {"": differences(record)["softmax"]}
    figure = forest(found, f"{measured}: difference from softmax")
    if figure is not None:
        filled = "Lines: 95 % intervals; filled where they exclude 0."
        blocks.append(Plot("differences", "Differences from softmax", filled, figure))
    return [*blocks, table(record)]


def _by_zeros_caption(record: dict[str, Any]) -> str:
    """Explain what `by_zeros` draws of this record."""
    rows, parts = record["mappings"], []
    if any(row["against_softmax"]["interval"] for row in rows):
        parts.append("Vertical lines: 95 % intervals of the difference from softmax.")
    if _by_name(rows):
        parts.append("Grey: one mapping, several values of its parameter.")
    if any("random" in row and "ours" not in row["random"] for row in rows):
        parts.append("Crosses: as many keys dropped at random.")
    return " ".join(parts)


def _by_name(rows: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Group the rows of mappings that differ in a parameter alone."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        name, *values = row["mapping"].split()
        # a label of a conversion, such as "after training: entmax", says more than its parameters
        key = name if all("=" in value for value in values) else row["mapping"]
        groups.setdefault(key, []).append(row)
    return [same for same in groups.values() if len(same) > 1]


def by_zeros(record: dict[str, Any]) -> Figure:
    """Plot quality (agreement without labels) by zeros, each mapping with its random control."""
    key, measured, scale, *_ = measure_of(record)
    rows = record["mappings"]
    looks = canvas.looks([row["mapping"] for row in rows], None)
    figure, axes = canvas.single(height=4.6)
    axes.axhline(scale * record["softmax"], color="black", lw=1, ls="--", label="softmax")
    for same in _by_name(rows):
        # the curve of a parameter
        points = sorted((100 * row["zeros"], scale * row[key]) for row in same)
        axes.plot(*zip(*points, strict=True), color="0.6", lw=1, zorder=1)
    for row in rows:
        look = looks[row["mapping"]] | {"linestyle": "none"}
        x, y = 100 * row["zeros"], scale * row[key]
        axes.plot([x], [y], **look, label=canvas.name(row["mapping"]), markersize=8)
        ends = row["against_softmax"]["interval"]
        if ends is not None:
            heights = [scale * (record["softmax"] + end) for end in ends]
            axes.plot([x, x], heights, color=look["color"])
        # of longer texts, the control has read only the start
        if "random" in row and "ours" not in row["random"]:
            control = 100 * row["random"]["zeros"], scale * row["random"][key]
            axes.plot(*zip((x, y), control, strict=True), color=look["color"], lw=0.8, alpha=0.5)
            axes.plot(*([value] for value in control), "x", color=look["color"], markersize=8)
    axes.set(xlabel="exact zeros, % of valid keys", ylabel=measured, xlim=(-2, 102))
    canvas.legend_below(figure, axes)
    return figure
