"""What the language models have shown, beside what the papers printed: a page made from records."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from experiments.language_modeling.report.plots import PLOTS
from experiments.language_modeling.report.published import PublishedTable, published_tables
from experiments.language_modeling.report.runs import Cell, read_experiments
from experiments.language_modeling.report.tables import (
    heads_table,
    published_table,
    slopes_table,
)
from pipeline.files import write_text
from pipeline.report import canvas, text
from pipeline.report.table import Report, markdown

NOTES = (
    "Runs: those that finished; means are over them alone, and flatter where others diverged. sd: "
    "over seeds, with n - 1.",
    "Test - softmax: mean over pairs of runs with the same seed, the other one with softmax and "
    "otherwise, where there is such a run, the same settings. Interval: mean ± t(0.975, n - 1) sd "
    "/ sqrt(n) of the n differences. It is not corrected for the number of heads, and with three "
    "pairs t is 4.3: few seeds show large differences only.",
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
    "Run a row with `python -m experiments.language_modeling train --config "
    "configs/language_modeling/<model>.yaml --config configs/language_modeling/heads/<head>.yaml` "
    "and the options beside them."
)
# published without a table
FIGURES = (
    "Kanai et al. 2018, supplement (not at hand): singular values of the log-probability matrix; "
    "ours are plotted above where they were recorded. text8, said to be similar to softmax: "
    "text8.yaml + heads/sigsoftmax.yaml. One Billion Word, said to be better than softmax: "
    "1bw-adaptive.yaml --head.mapping sigsoftmax.",
    "Ganea et al. 2019, figures 2 and 3 (mode matching and KL divergence on synthetic data): "
    "experiments/bottleneck.",
    "de Brebisson & Vincent 2016 print no numbers for Bouchard's bounds.",
)


def report(results_dir: str | Path, output: str | Path) -> Report:
    """Write the page and, into a folder beside it with its name, its plots.

    The text depends on the records alone.

    Args:
        results_dir: folder of records, one JSON file a run in a folder for each experiment.
        output: the Markdown file to write, such as docs/language-modeling.md.

    Raises:
        ValueError: as `read_experiments`. Nothing is written then.
    """
    experiments = read_experiments(Path(results_dir))
    path = Path(output)
    tables = published_tables()
    lines = ["# Language models: ours beside the published", ""]
    for name, cells in experiments.items():
        lines += _experiment(name, cells, tables, path)
    lines += ["## The papers' tables", "", _COMMAND, ""]
    for table in tables:
        lines += [f"### {text.markdown(table.source)}: {text.markdown(table.title)}", ""]
        lines += markdown(published_table(table, experiments))
    lines += [f"- {text.markdown(line)}" for line in FIGURES]
    lines += ["", "## How to read the numbers", ""]
    lines += [f"- {text.markdown(line)}" for line in NOTES]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, "\n".join(lines) + "\n")
    short = [
        heads_table(cells).columns(*range(7), caption=f"{name}: perplexity, mean ± sd over seeds.")
        for name, cells in experiments.items()
    ]
    return Report(path, short)


def _experiment(
    name: str, cells: Sequence[Cell], tables: Sequence[PublishedTable], path: Path
) -> list[str]:
    lines = [f"## {text.markdown(name)}", ""]
    if name not in {row.config for table in tables for row in table.rows}:
        lines += ["No published table has these settings: compare the heads among themselves.", ""]
    lines += [*(text.markdown(line) for line in _setup(cells)), ""]
    lines += markdown(heads_table(cells))
    slopes = slopes_table(cells)
    lines += markdown(slopes) if slopes else []
    for kind, (caption, draw) in PLOTS.items():
        figure = draw(cells)
        if figure:
            image = Path(path.stem) / f"{name}-{kind}.png"
            (path.parent / image).parent.mkdir(parents=True, exist_ok=True)
            canvas.save(figure, path.parent / image)
            lines += [f"![{caption}]({quote(image.as_posix())})", "", text.markdown(caption), ""]
    return lines


def _setup(cells: Sequence[Cell]) -> list[str]:
    """Corpus, model and training of the first head, and what all ran on."""
    config, records = cells[0].config, [run.record for cell in cells for run in cell.runs]
    model, train, finetune = config["model"], config["train"], config["finetune"]
    stages = [_stage(train), *([f"finetuned with {_stage(finetune)}"] if finetune else [])]
    devices = sorted({record["device"] for record in records if "device" in record})
    versions = sorted({_versions(record) for record in records if "versions" in record})
    return [
        f"{config['corpus']['name']}; {model['kind']}, embedding {model['embedding']}, "
        f"{model['layers']} x {model['hidden']}; {', then '.join(stages)}.",
        f"Device: {'; '.join(devices)}. Versions: {'; '.join(versions)}.",
    ]


def _stage(stage: dict[str, Any]) -> str:
    length = (
        text.counted(stage["epochs"], "epoch")
        if stage["max_steps"] is None
        else f"at most {stage['max_steps']} steps"
    )
    return (
        f"{stage['optimizer']} with learning rate {text.plain(stage['learning_rate'])}, batches of "
        f"{stage['batch']} x {stage['bptt']}, {length}"
    )


def _versions(record: dict[str, Any]) -> str:
    return ", ".join(f"{name} {version}" for name, version in record["versions"].items())
