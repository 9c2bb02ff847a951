"""Methods of the report and their limits."""

from __future__ import annotations

from sparse_attn.reports.bootstrap import RESAMPLES

from .runs import Sweep

_COMMON = (
    "Score: 100 times the task's main metric on its first dev split, after the last step of "
    "training. sd: over seeds, with n - 1.",
    f"Interval and p: crossed bootstrap, {RESAMPLES:,} resamples. Seeds and dev examples are "
    "both drawn anew with replacement, the same ones for the mapping and for softmax; the "
    "interval runs from the 2.5th to the 97.5th percentile of the mean difference, and p is "
    "2 (1 + the smaller number of resampled differences on one side of 0) / (resamples + 1). With "
    "few seeds the bootstrap is too sure: the spread of n seeds comes out too small by "
    "sqrt((n - 1) / n) or more, and a few that lie on one side do so in every resample. So each "
    "end of the interval is that of the paired t interval over the seeds where it lies further "
    "out, and p that of the t-test where it is larger. Only seeds that both have finished are "
    "compared.",
    "Holm's correction, over all differences in this report, aims at a chance of 5 % of even one "
    "false alarm. Verdict: better or worse for a Holm p below 0.05 and an interval without 0, else "
    "not significant, which is no proof that there is no difference. One seed has no p and is not "
    "judged: its interval is about that pair of runs, because only the examples are drawn anew.",
    "Means are over the runs that finished. Where some failed or diverged, they flatter.",
    "Detectable: the true difference that one paired t-test at 5 %, uncorrected, has 80 % power to "
    "detect, from the standard deviation of the differences by seed, which few seeds "
    "tell only roughly. It is about other seeds, not about other examples: what the corrected "
    "comparison can see is larger.",
    "Exact zeros: share of the attention weights between two tokens that are no padding that are "
    "exactly 0. Training time on a CPU is processor time, since other programs make the clock "
    "useless; on a GPU the clock. Peak memory on a CPU is that of the whole process.",
)
_FAIR = (
    "Protocol fair: for every task each mapping gets the same number of trials, on a part of the "
    "training set ({share:g} of it held out) that its setting is chosen on, with the same learning "
    "rates and seeds; of equally good trials the first is taken. The chosen setting is trained on "
    "the whole training set with every seed and meets the dev set once. Seed i has the same "
    "initial head and order of data in every mapping; "
    "dropout starts from the same seed, but mappings with and without a fused kernel draw other "
    "numbers from it."
)
_PAPER = (
    "Protocol paper (Balazy et al. 2023): every learning rate with every value of the parameters, "
    "and for each seed the best of these on the dev set is its score. That choice makes the score "
    "too high, more so for a larger grid."
)


def notes(sweep: Sweep) -> list[str]:
    """One paragraph for each method."""
    protocol = _FAIR.format(share=sweep.sweep.selection) if sweep.fair else _PAPER
    return [protocol, *_COMMON]
