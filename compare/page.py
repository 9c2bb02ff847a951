"""The table, figures and page of a record."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from pipeline.report import canvas, text
from pipeline.report.forest import forest
from pipeline.report.page import Block, Bullets, Heading, Page, Plot, Table
from pipeline.report.spread import Difference

# the sign of a better agreement, and what it is
AGREEMENTS = {
    "cosine": (
        1,
        "cosine: of a text's embedding with the one under softmax, its mean over the texts; an "
        "embedding is the mean of the last hidden states.",
    ),
    "KL, nats": (
        -1,
        "KL: divergence of the model's probabilities from those under softmax, mean over tokens, "
        "then texts; 0 is equal.",
    ),
    "|difference|": (
        -1,
        "|difference|: of the predicted score from the one under softmax, its mean over the texts.",
    ),
}
NAMES = {"spearmanr": "Spearman", "pearson": "Pearson", "matthews_correlation": "Matthews"}
AGAINST = {"softmax": "against_softmax", "as many zeros at random": "against_random"}
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
    pattern = "{:+.2f}" if judged else "{:+.3f}"
    if judged:
        cells += [text.score(row["quality"]), _difference(row["against_softmax"]).text(pattern)]
    if "random" not in row:
        return [*cells, *EMPTY]
    random, difference = row["random"], _difference(row["against_random"], judged)
    value = text.score(random["quality"]) if judged else f"{random['agreement']:.3f}"
    return [*cells, value, _share(random["zeros"]), difference.text(pattern)]


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"


def _difference(found: dict[str, Any], judged: bool = True) -> Difference:
    """In points of a quality."""
    scale = 100 if judged else 1
    ends = found["interval"]
    interval = None if ends is None else (scale * ends[0], scale * ends[1])
    return Difference(scale * found["value"], interval, 0)


def _measured(record: dict[str, Any]) -> str:
    metric = record["metric"]
    return record["agreement"] if metric is None else f"{NAMES.get(metric, metric)} x 100"


def _caption(record: dict[str, Any]) -> str:
    return f"{record['model']} on {_data(record)}"


def _data(record: dict[str, Any]) -> str:
    return f"{text.counted(record['rows'], _unit(record))} of {record['source']}"


def _unit(record: dict[str, Any]) -> str:
    if record["rows"] < record["texts"]:
        return "pair"
    return "text" if record["metric"] is None else "row"


def findings(record: dict[str, Any]) -> list[str]:
    """On which side of 0 the intervals lie, and which differences have none."""
    judged = record["metric"] is not None
    differences = _differences(record)
    ours, random = differences.values()
    said = []
    if known := {name: found for name, found in ours.items() if found.interval}:
        parts = [
            f"{verdict}: {text.listing(names)}"
            for side, verdict in ((1, "better than softmax"), (0, "not told apart"), (-1, "worse"))
            if (names := [name for name, found in known.items() if found.side == side])
        ]
        said.append(f"By uncorrected intervals, {'; '.join(parts)}.")
    if sides := [found.side for found in random.values() if found.interval]:
        better = sides.count(1 if judged else AGREEMENTS[record["agreement"]][0])
        what = "better" if judged else "nearer to softmax"
        said.append(
            f"{better} of {len(sides)} {'is' if better == 1 else 'are'} {what} than as many zeros "
            "at random: which keys are dropped matters, not only how many."
            if better
            else f"None is {what}, by its interval, than as many zeros at random."
        )
    for what, found in differences.items():
        if names := [name for name, difference in found.items() if not difference.interval]:
            said.append(
                f"Nothing can be said of {text.listing(names)} against {what}: "
                f"{text.counted(record['rows'], _unit(record))}, too few or all with the same "
                "difference."
            )
    return said or ["Nothing can be said: there are no labels, and no control has as many zeros."]


def _differences(record: dict[str, Any]) -> dict[str, dict[str, Difference]]:
    """By what the mappings are compared with, and by mapping."""
    judged = record["metric"] is not None
    return {
        what: {
            row["mapping"]: _difference(row[key], judged)
            for row in record["mappings"]
            if key in row
        }
        for what, key in AGAINST.items()
    }


def notes(record: dict[str, Any]) -> list[str]:
    """What the numbers mean."""
    differences = [each for some in _differences(record).values() for each in some.values()]
    count = sum(each.interval is not None for each in differences)
    made = [
        "exact zeros: share among the pairs of valid queries and keys, over all layers, heads and "
        "texts.",
        AGREEMENTS[record["agreement"]][1],
        "random: random-drop-softmax, which drops keys without regard to their scores, with its "
        "one r for all layers set on a sample of the texts so that its zeros are as many; none "
        "where a mapping has no zeros, or fewer than random-drop-softmax can give.",
    ]
    if count:
        made.append(
            f"Differences are of {_measured(record)}, with 95 % percentile intervals of a paired "
            f"bootstrap, {record['resamples']:,} resamples of the {_data(record)}. Intervals: "
            f"{count}, not corrected for their number."
        )
    if record["cut"]:
        made.append(f"Cut after {record['limit']} tokens: {text.counted(record['cut'], 'text')}.")
    return made


def provenance(record: dict[str, Any]) -> list[str]:
    """The command, and where it ran."""
    versions = ", ".join(f"{name} {number}" for name, number in record["versions"].items())
    time = f"{record['seconds'] / 60:.1f} minutes on {record['device']}; {versions}."
    return [record["command"], time]


def overview(record: dict[str, Any]) -> list[str]:
    """For the terminal."""
    shown = table(record)
    return [str(shown), "", *findings(record), "", *notes(record)]


def make_page(record: dict[str, Any]) -> Page:
    """The report."""
    measured = _measured(record)
    blocks: list[Block] = [
        f"{_caption(record)}: softmax in attention swapped for other mappings, nothing trained.",
        Bullets(findings(record)),
        Plot("zeros", f"{measured} by exact zeros", "Crosses: random.", by_zeros(record)),
    ]
    if record["metric"] is not None:
        found = {"": _differences(record)["softmax"]}
        figure = forest(found, f"{measured}: difference from softmax")
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
