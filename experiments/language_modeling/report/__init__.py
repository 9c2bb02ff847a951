"""Report: our results with the published numbers."""

from __future__ import annotations

from typing import Any

from experiments.language_modeling.config import BASELINE
from experiments.language_modeling.report.plots import PLOTS
from experiments.language_modeling.report.runs import cells_of, config_of
from experiments.language_modeling.report.tables import (
    head_rows,
    heads_table,
    our_cells,
    published_table,
    published_tables,
    rates_table,
    slopes_table,
)
from sparse_attn.engine.sweep.report import NOTES as REPORT_NOTES
from sparse_attn.engine.sweep.report import T_INTERVAL
from sparse_attn.engine.sweep.results import Results
from sparse_attn.reports import text
from sparse_attn.reports.measures import forest_of
from sparse_attn.reports.page import Block, Bullets, Heading, Page, Plot, Table

NOTES = (
    *REPORT_NOTES,
    T_INTERVAL,
    "Differences: from runs with softmax, the same seed and otherwise the same settings, where "
    "there are such runs.",
    "Perplexity: exp of the mean negative log-likelihood, <eos> included, first token unscored. "
    "Dynamic: the model goes on learning from the text it has been tested on.",
    "Rank: singular values above sqrt(M + T + 1) / 2 times the largest times 2^-23, of the "
    "log-probabilities of M words in T contexts of the test text. Softmax has at most d + 1, with "
    "a bias d + 2, for d hidden units under the output layer.",
    "Top-10 error: share of targets that are not among the ten most probable words; ties count "
    "against the target. SimLex: Spearman's rho of the embedding's cosines and human similarity, "
    "over the pairs of SimLex-999 inside the vocabulary.",
)
_COMMAND = (
    "Run a row with sparse-attn language-modeling train --config "
    "configs/language_modeling/<model>.yaml --config configs/language_modeling/heads/<head>.yaml "
    "and the options beside them. Our runs have the network and head of the row. Their other "
    "settings may differ from the paper's and are in the tables above."
)
# source of published numbers that are not in a table
FIGURES = (
    "Kanai et al. 2018, supplement (not at hand): singular values of the log-probability matrix; "
    "ours are plotted above where they were recorded. text8, said to be similar to softmax: "
    "text8.yaml + heads/sigsoftmax.yaml. One Billion Word, said to be better than softmax: "
    "1bw-adaptive.yaml --head.mapping sigsoftmax.",
    "Ganea et al. 2019, figures 2 and 3 (mode matching and KL divergence on synthetic data): "
    "experiments/bottleneck.",
    "de Brebisson & Vincent 2016 print no numbers for Bouchard's bounds.",
)
INTERVALS = "Mean over pairs of runs with one seed and its 95 % t interval; below 0 is better."


def make_page(results: Results) -> Page:
    """The report of a sweep or of single runs."""
    tables = published_tables()
    matches = [our_cells(table, row, results) for table in tables for row in table["rows"]]
    blocks: list[Block] = []
    if results.sweep is not None:
        blocks.insert(0, results.standing)
    tasks = [task for task in results.tasks if cells_of(results, task)]
    for task in tasks:
        published = any(cell[0] == task for cells in matches for cell in cells)
        blocks += _experiment(results, task, published)
    blocks += [
        Heading("The papers' tables"),
        f"Rows with a run here: {sum(map(bool, matches))} of {len(matches)}.",
        _COMMAND,
    ]
    for table in tables:
        title = f"{table['source']}: {table['title']}"
        blocks += [Heading(title, 3), published_table(table, results)]
    blocks += [Bullets(FIGURES), Heading("How to read the numbers"), Bullets(NOTES)]
    overview = [
        heads_table(results, task).columns(
            *range(7), caption=f"{task}: perplexity, mean ± sd over seeds."
        )
        for task in tasks
    ]
    return Page("Language models: ours beside the published", blocks, overview)


def _experiment(results: Results, task: str, published: bool) -> list[Block]:
    blocks: list[Block] = [Heading(task)]
    if not published:
        blocks.append("No published table has these settings: compare the heads among themselves.")
    if figure := forest_of(head_rows(results, task), BASELINE):
        blocks.append(Plot(f"{task}-differences", "Difference from softmax", INTERVALS, figure))
    blocks += [heads_table(results, task), *_setup(results, task)]
    blocks += filter(None, [slopes_table(results, task), rates_table(results, task)])
    for kind, (title, caption, draw) in PLOTS.items():
        figure = draw(results, task)
        if figure:
            blocks.append(Plot(f"{task}-{kind}", title, caption, figure))
    return blocks


def _setup(results: Results, task: str) -> list[Block]:
    """Corpus, model, training, devices and versions of all heads."""
    cells = cells_of(results, task)
    runs = [run.results for cell in cells for run in results.counting(cell) if run.results]
    settings = dict.fromkeys(_settings(config_of(results, cell)) for cell in cells)
    devices = sorted({run["device"] for run in runs})
    versions = sorted({", ".join(map(" ".join, run["versions"].items())) for run in runs})
    headers = ["Corpus", "Model", "Embedding", "Layers", "Precision", "Training", "Finetuning"]
    return [
        Table("Settings.", headers, [list(row) for row in settings]),
        f"Device: {'; '.join(devices)}. Versions: {'; '.join(versions)}.",
    ]


def _settings(config: dict[str, Any]) -> tuple[str, ...]:
    model, finetune = config["model"], config["finetune"]
    return (
        config["corpus"]["name"],
        model["kind"],
        str(model["embedding"]),
        f"{model['layers']} x {model['hidden']}",
        config["precision"],
        _stage(config["train"]),
        _stage(finetune) if finetune else text.NOTHING,
    )


def _stage(stage: dict[str, Any]) -> str:
    length = (
        text.counted(stage["epochs"], "epoch")
        if stage["max_steps"] is None
        else f"at most {text.counted(stage['max_steps'], 'step')}"
    )
    rate, size = text.plain(stage["learning_rate"]), f"{stage['batch']} x {stage['bptt']}"
    decay = "" if stage["schedule"] == "constant" else f" with {stage['schedule']} decay"
    return f"{stage['optimizer']}, rate {rate}{decay}, batches of {size}, {length}"
