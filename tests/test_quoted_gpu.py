"""What the docs quote of the records of a GPU."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.variants import times
from glue.__main__ import EXPERIMENT as GLUE
from pipeline.sweep.results import Results

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "results/benchmarks"
README, KERNELS, GLUE_PAGE = "README.md", "docs/kernels.md", "docs/glue.md"
SEARCHING = ("r-softmax", "sparsemax", "entmax")
BOTH = "forward+backward"


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((BENCHMARKS / f"{name}-nvidia-h200.json").read_text())
    return found


VARIANTS = read("variants")
SHAPES = {key: settings["base"] for key, (settings,) in times(VARIANTS).items()}
ROWS = {
    (case["name"], row["pass"], row["name"]): row
    for case in read("attention")["cases"]
    for row in case["rows"]
    if row["cache"] in ("warm", "")
}


def ratio(case: str, which: str, name: str) -> float:
    value: float = ROWS[case, which, f"ours {name}"]["to"]["SDPA"]["median"]
    return value


def speeds() -> Iterator[tuple[str, str]]:
    """A page, and what must stand there."""
    padded = [
        ratio("MRPC longest", BOTH, f"{name}{end}")
        for end in ("", " (key_lengths)")
        for name in ("sparsemax", "entmax")
    ]
    said = "sparsemax takes {:.2f} of SDPA's time and entmax {:.2f}, "
    said += "with `key_lengths` {:.2f} and {:.2f}"
    yield KERNELS, said.format(*padded)
    forward = [ratio("N=512", "forward", name) for name in SEARCHING]
    both = [SHAPES["N=512", BOTH, name][1] for name in SEARCHING]
    said = "r-softmax takes {:.2f}, sparsemax {:.2f} and entmax {:.2f} times as long as SDPA. "
    said += "With the backward pass it is {:.2f}, {:.2f} and {:.2f}."
    yield KERNELS, said.format(*forward, *both)
    long = {name: SHAPES["causal 16384", BOTH, name] for name in ("softmax", *SEARCHING[1:])}
    flash, _ = SHAPES["causal 16384", BOTH, "SDPA flash"]
    said = "softmax takes {:.2f}, sparsemax {:.2f} and entmax {:.2f} times as long as SDPA, and "
    said += "{:.2f}, {:.2f} and {:.2f} times as long as FlashAttention-2"
    yield (
        KERNELS,
        said.format(*(over for _, over in long.values()), *(ms / flash for ms, _ in long.values())),
    )
    peer = VARIANTS["adasplash_2"][BOTH]
    yield KERNELS, f"entmax takes {peer['entmax'] / peer['AdaSplash-2']:.2f} times as long as Ada"
    host = {name: found[BOTH][0] for name, found in VARIANTS["host_us"].items() if BOTH in found}
    ours = sorted(us for name, us in host.items() if name != "SDPA")
    yield KERNELS, f"takes {ours[0]:.0f} to {ours[-1]:.0f} µs, with SDPA {host['SDPA']:.0f} µs"
    (steps,) = {f"{100 * (ratio('BERT-base', 'step', name) - 1):.0f} %" for name in SEARCHING}
    yield KERNELS, f"training step takes {steps} longer** with r-softmax, sparsemax or entmax"
    yield README, f"A BERT-base training step takes {steps} longer"
    compiled = {name: found["compiled"] for name, found in VARIANTS["step_ms"].items()
                if name != "what"}  # fmt: skip
    least, *_, most = sorted(ms for name, ms in compiled.items() if name != "sdpa")
    yield KERNELS, f"{compiled['sdpa']:.1f} ms with SDPA compiled and {least:.1f} to {most:.1f} ms"
    few = [ratio("N=128", BOTH, name) for name in ("relu", "threshold-softmax")]
    yield KERNELS, "relu takes {:.2f} and threshold-softmax {:.2f}".format(*few)
    short = sorted(ratio("N=128", BOTH, name) for name in SEARCHING)
    wide = sorted(both)
    said = "{:.2f} to {:.2f} times SDPA's time at 128 tokens and {:.2f} to {:.2f} times at 512"
    yield README, said.format(short[0], short[-1], wide[0], wide[-1])


def sweep() -> Results:
    return GLUE.read(ROOT / "results/glue/mrpc-h200")


def accuracies() -> Iterator[tuple[str, str]]:
    results = sweep()
    assert not results.faults
    yield GLUE_PAGE, f"{len(results.records)} of {results.expected} runs"
    with (ROOT / "docs/glue-mrpc-h200/report.csv").open() as file:
        rows = {row["mapping"]: row for row in csv.DictReader(file)}
    softmax = rows.pop("softmax")
    mean, sd = (f"{100 * float(softmax[key]):.1f}" for key in ("mean", "sd"))
    yield GLUE_PAGE, f"softmax finished {softmax['runs']} of 20 seeds, at {mean} ± {sd}"
    assert {row["paired_seeds"] for row in rows.values()} == {"17"}
    assert {row["significant"] for row in rows.values()} == {"0"}
    for name, row in rows.items():
        value, low, high = (
            f"{100 * float(row[key]):+.2f}" for key in ("difference", "low", "high")
        )
        seeds = results.difference(("MRPC", name), ("MRPC", "softmax"), score)
        assert seeds
        zeros = f"{100 * float(row['sparsity']):.1f} %"
        line = f"{zeros} | {value} | [{low}, {high}] | ± {100 * seeds.half:.2f} |"
        yield GLUE_PAGE, line
    ours = {key: 100 * float(rows["r-softmax"][key]) for key in ("difference", "low", "high")}
    zeros = f"{100 * float(rows['r-softmax']['sparsity']):.0f} % zeros"
    said = "it is at {difference:+.2f} points [{low:+.2f}, {high:+.2f}]".format(**ours)
    yield README, f"{zeros} {said}"
    yield "docs/results.md", f"With 17 seeds and {zeros}, on a GPU"
    yield "docs/results.md", "it is {difference:+.1f} [{low:+.1f}, {high:+.1f}]".format(**ours)
    detected = 100 * float(rows["r-softmax"]["detectable"])
    yield GLUE_PAGE, f"a t-test of 17 pairs detects {detected:.1f} points"


def score(results: dict[str, Any]) -> float:
    return float(results["score"])


@pytest.mark.parametrize(("page", "quote"), [*speeds(), *accuracies()])
def test_quote(page: str, quote: str) -> None:
    assert quote in " ".join((ROOT / page).read_text().split())


def test_only_sigsoftmax_took_the_lower_rate() -> None:
    rates = {
        mapping: {run.config["train"]["learning_rate"] for run in sweep().counting((task, mapping))}
        for task, mapping in sweep().cells
    }
    assert rates.pop("sigsoftmax") == {5e-5}
    assert set(map(frozenset, rates.values())) == {frozenset({1e-4})}


def test_by_seeds_only_two_are_worse() -> None:
    results = sweep()
    found = results.against("softmax", score)
    worse = {mapping for (_, mapping), pair in found.items() if pair and pair.side < 0}
    assert worse == {"sigsoftmax", "entmax-1.5"}


def test_pointwise_mappings_did_not_compile() -> None:
    failed = {name for (*_, name), row in ROWS.items() if "CompilationError" in str(row["reason"])}
    assert {"ours softmax", "ours sigsoftmax"} <= failed
    assert not {f"ours {name}" for name in SEARCHING} & failed
