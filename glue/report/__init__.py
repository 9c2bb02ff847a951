"""`sparse-attn glue report`: the results of a sweep, as a page and a CSV table."""

from __future__ import annotations

from sparse_attn.engine.sweep.records import Record
from sparse_attn.engine.sweep.report import report
from sparse_attn.engine.sweep.results import Results
from sparse_attn.evaluation.tasks import TASKS
from sparse_attn.reports import text
from sparse_attn.reports.bootstrap import RESAMPLES
from sparse_attn.reports.measures import Measure
from sparse_attn.reports.page import Page

from ..sweep import BASELINE
from .columns import columns
from .plots import make_plots
from .published import SOURCE
from .runs import Sweep, compare_runs, setting_of
from .tables import mappings_table, tasks_table

SCORE = Measure(
    "Score x 100",
    lambda run: run["score"],
    scale=100,
    note="The task's main metric on its first dev split, after the last step of training.",
    compare=compare_runs,
)
SELECTED_ON_DEV = (
    "Protocol paper: each score is the best point of a grid, chosen on the dev set that it is "
    "reported on. It is too high, and intervals and p-values ignore the choice. Use protocol fair "
    "to compare mappings."
)
NOTES = (
    f"Interval and p: crossed bootstrap, {RESAMPLES:,} resamples of seeds and dev examples, the "
    "same ones for the mapping and softmax. Where the paired t-test over seeds is less certain, "
    "its ends and its p are taken, because a bootstrap of few seeds is overconfident. With one "
    "seed only the examples are resampled.",
    "One class: runs that predict a single class, which have not learned. Chosen by chance: at "
    "most one held-out row separates the best setting from the others, or none beats the most "
    "frequent class.",
    "Exact zeros: share of the attention weights between two tokens that are not padding. "
    "Training time is processor time on a CPU and wall-clock time on a GPU. Peak memory on a CPU "
    "is that of the whole process.",
    f"Paper: accuracy in {SOURCE}. Compare differences, not levels.",
)
FAIR = (
    "Protocol fair: every mapping gets the same number of trials, learning rates and seeds. The "
    "best trial on a held-out share of the training set ({share:g}) sets its setting, which is "
    "trained on the whole training set with every seed and meets the dev set once. Seed i has the "
    "same initial head and order of data in every mapping."
)
PAPER = (
    "Protocol paper (Balazy et al. 2023): every learning rate with every value of the parameters; "
    "the score of a seed is the best of these on the dev set."
)


def make_page(results: Results) -> Page:
    """Return the report of a sweep."""
    sweep = Sweep(**vars(results))
    data = "GLUE" if set(sweep.tasks) & set(TASKS) else f"{text.listing(sweep.tasks)}:"
    protocol = FAIR.format(share=sweep.sweep.selection) if sweep.fair else PAPER
    return report(
        sweep,
        [SCORE],
        title=f"{data} sweep {sweep.folder.resolve().name}",
        seeds=sweep.sweep.seeds,
        setup=_setup(sweep),
        setting=_setting,
        baseline=BASELINE,
        columns=columns(sweep),
        tables=[tasks_table(sweep), mappings_table(sweep)],
        figures=[plot for task in sweep.tasks for plot in make_plots(sweep, task)],
        notes=[protocol, *NOTES],
        warnings=[] if sweep.fair else [SELECTED_ON_DEV],
    )


def _setup(sweep: Sweep) -> list[list[str]]:
    config = sweep.sweep
    trials = [["trials", str(config.trials)]] if sweep.fair else []
    return [
        ["model", config.model],
        ["protocol", config.protocol],
        ["seeds", str(config.seeds)],
        *trials,
        ["learning rates", ", ".join(map(text.plain, config.learning_rates))],
    ]


def _setting(record: Record) -> str:
    """Name the learning rate and the parameters of a run."""
    rate, params = setting_of(record)
    named = (f"{name} {text.plain(value)}" for name, value in params.items())
    return ", ".join([f"lr {text.plain(rate)}", *named])
