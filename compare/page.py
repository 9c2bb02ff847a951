"""The table, figures and page of a record."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from pipeline.report import canvas, text
from pipeline.report.forest import forest
from pipeline.report.page import Block, Bullets, Heading, Page, Plot, Table
from pipeline.report.spread import Difference
from pipeline.report.table import plain

NEARER = {"cosine": 1, "KL, nats": -1, "|difference|": -1}  # the sign of a better agreement
NAMES = {"spearmanr": "Spearman", "pearson": "Pearson", "matthews_correlation": "Matthews"}
EMPTY = [text.NOTHING] * 3


def table(record: dict[str, Any]) -> Table:
    """Zeros, agreement, quality and their differences, a row per mapping."""
    judged = record["metric"] is not None
    measured = _measured(record)
    headers = ["mapping", "exact zeros", record["agreement"]]
    headers += [measured, "against softmax [95 %]"] if judged else []
    headers += [f"random: {measured}", "random: exact zeros", "against random [95 %]"]
    rows = [_row(row, judged) for row in record["mappings"]]
    if judged:
        score = text.score(record["softmax"])
        rows = [["softmax", _share(0), text.NOTHING, score, text.NOTHING, *EMPTY], *rows]
    return Table(_caption(record), headers, rows)


def _row(row: dict[str, Any], judged: bool) -> list[str]:
    cells = [row["mapping"], _share(row["zeros"]), f"{row['agreement']:.3f}"]
    if judged:
        cells += [text.score(row["quality"]), _difference(row["against_softmax"]).text("{:+.2f}")]
    if "random" not in row:
        return [*cells, *EMPTY]
    random, difference = row["random"], row["against_random"]
    value = text.score(random["quality"]) if judged else f"{random['agreement']:.3f}"
    shown = _difference(difference, judged).text("{:+.2f}" if judged else "{:+.3f}")
    return [*cells, value, _share(random["zeros"]), shown]


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"


def _difference(found: dict[str, Any], judged: bool = True) -> Difference:
    """In points of a quality."""
    scale = 100 if judged else 1
    low, high = (scale * end for end in found["interval"])
    return Difference(scale * found["value"], (low, high), 0)


def _measured(record: dict[str, Any]) -> str:
    metric = record["metric"]
    return record["agreement"] if metric is None else f"{NAMES.get(metric, metric)} x 100"


def _caption(record: dict[str, Any]) -> str:
    return f"{record['model']} on {_data(record)}"


def _data(record: dict[str, Any]) -> str:
    unit = "text" if record["metric"] is None else "row"
    if record["rows"] < record["texts"]:
        unit = "pair"
    some = "" if record["rows"] == 1 else "s"
    return f"{record['rows']:,} {unit}{some} of {record['source']}"


def findings(record: dict[str, Any]) -> list[str]:
    """How many intervals lie on either side of 0."""
    rows = record["mappings"]
    said = []
    if record["metric"] is not None:
        sides = {row["mapping"]: _difference(row["against_softmax"]).side for row in rows}
        parts = [
            f"{verdict}: {text.listing(names)}"
            for side, verdict in ((1, "better than softmax"), (0, "not told apart"), (-1, "worse"))
            if (names := [name for name, found in sides.items() if found == side])
        ]
        said.append(f"By uncorrected intervals, {'; '.join(parts)}.")
    sign = 1 if record["metric"] is not None else NEARER[record["agreement"]]
    against = [row for row in rows if "random" in row]
    if against:
        better = sum(_difference(row["against_random"]).side == sign for row in against)
        what = "nearer to softmax" if record["metric"] is None else "better"
        said.append(
            f"{better} of {len(against)} are {what} than as many zeros at random: which keys are "
            "dropped matters, not only how many."
            if better
            else f"None is {what}, by its interval, than as many zeros at random."
        )
    return said


def notes(record: dict[str, Any]) -> list[str]:
    """What the numbers mean."""
    count = sum(("against_softmax" in row) + ("random" in row) for row in record["mappings"])
    made = [
        "exact zeros: share among the pairs of valid queries and keys, over all layers, heads and "
        f"the {record['texts']:,} texts.",
        _AGREEMENTS[record["agreement"]],
        "random: random-drop-softmax, which drops keys without regard to their scores, with its "
        "one r for all layers set on a sample of the texts so that its zeros are as many.",
        f"Differences are of {_measured(record)}, with 95 % percentile intervals of a paired "
        f"bootstrap, {record['resamples']:,} resamples of the {_data(record)}. There are {count}; "
        "they are not corrected for their number.",
    ]
    if record["cut"]:
        made.append(f"{record['cut']:,} texts were cut after {record['limit']} tokens.")
    return made


def provenance(record: dict[str, Any]) -> list[str]:
    """The command, and where it ran."""
    versions = ", ".join(f"{name} {number}" for name, number in record["versions"].items())
    time = f"{record['seconds'] / 60:.1f} minutes on {record['device']}; {versions}."
    return [record["command"], time]


_AGREEMENTS = {
    "cosine": "cosine: of a text's embedding with the one under softmax, its mean over the texts; "
    "an embedding is the mean of the last hidden states.",
    "KL, nats": "KL: divergence of the model's probabilities from those under softmax, mean over "
    "tokens, then texts; 0 is equal.",
    "|difference|": "|difference|: of the predicted score from the one under softmax, its mean "
    "over the texts.",
}


def overview(record: dict[str, Any]) -> list[str]:
    """For the terminal."""
    shown = table(record)
    return [shown.caption, "", *plain(shown), "", *findings(record), "", *notes(record)]


def make_page(record: dict[str, Any]) -> Page:
    """The report."""
    measured = _measured(record)
    blocks: list[Block] = [
        f"{_caption(record)}: softmax in attention swapped for other mappings, nothing trained.",
        Bullets(findings(record)),
        Plot("zeros", f"{measured} by exact zeros", "Crosses: random.", by_zeros(record)),
    ]
    if record["metric"] is not None:
        found = {row["mapping"]: _difference(row["against_softmax"]) for row in record["mappings"]}
        figure = forest({"": found}, f"{measured}: difference from softmax")
        if figure is not None:
            caption = "Lines: 95 % intervals; filled where they exclude 0."
            blocks.append(Plot("differences", "Differences from softmax", caption, figure))
    blocks += [
        table(record),
        Heading("How it was measured"),
        Bullets([*notes(record), *provenance(record)]),
    ]
    return Page("Softmax swapped, untrained", blocks, overview=[table(record)])


def by_zeros(record: dict[str, Any]) -> Figure:
    """Quality, or without labels agreement, by zeros: each mapping over its random control."""
    judged = record["metric"] is not None
    key, scale = ("quality", 100) if judged else ("agreement", 1)
    rows = record["mappings"]
    looks = canvas.looks([row["mapping"] for row in rows], None)
    figure, axes = canvas.single(height=4.6)
    if judged:
        axes.axhline(100 * record["softmax"], color="black", lw=1, ls="--", label="softmax")
    for row in rows:
        look = looks[row["mapping"]] | {"linestyle": "none"}
        x, y = 100 * row["zeros"], scale * row[key]
        axes.plot([x], [y], **look, label=canvas.name(row["mapping"]), markersize=8)
        if "random" in row:
            beside = 100 * row["random"]["zeros"], scale * row["random"][key]
            axes.plot(*zip((x, y), beside, strict=True), color=look["color"], lw=0.8, alpha=0.5)
            axes.plot(*([value] for value in beside), "x", color=look["color"], markersize=8)
    axes.set(xlabel="exact zeros, % of valid keys", ylabel=_measured(record), xlim=(-2, 102))
    canvas.legend_below(figure, axes)
    return figure
