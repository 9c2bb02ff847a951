"""What the docs quote of the records of a GPU."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.variants import times
from engine.sweep.results import Results
from glue.__main__ import EXPERIMENT as GLUE

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "results/benchmarks"
README, KERNELS, GLUE_PAGE = "README.md", "docs/kernels.md", "docs/glue.md"
SEARCHING = ("r-softmax", "sparsemax", "entmax")
FORWARD, BOTH = "forward", "forward+backward"
STEPS = ("BERT-base", "BERT-base MRPC")


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((BENCHMARKS / f"{name}-nvidia-h200.json").read_text())
    return found


VARIANTS = read("31b9054/variants")
SHAPES = {key: settings["base"] for key, (settings,) in times(VARIANTS).items()}
FIRST, ROWS = (
    {(c["name"], row["pass"], row["name"]): row for c in read(name)["cases"] for row in c["rows"]}
    for name in ("31b9054/attention", "attention")
)


def ratio(case: str, which: str, name: str, other: str = "SDPA") -> float:
    value: float = ROWS[case, which, name]["to"][other]["median"]
    return value


def ours(case: str, *names: str, which: str = BOTH) -> list[float]:
    """Times over SDPA's of some mappings, by default softmax and those that search."""
    return [ratio(case, which, f"ours {name}") for name in names or ("softmax", *SEARCHING)]


def speeds() -> Iterator[tuple[str, str]]:
    """A page, and what must stand there."""
    softmax, r, sparsemax, entmax = ours("N=128")
    said = f"At 128 tokens softmax takes {softmax:.2f} of SDPA's time, entmax {entmax:.2f}, "
    yield KERNELS, f"{said}sparsemax {sparsemax:.2f} and r-softmax {r:.2f}."
    said = f"our softmax takes {softmax:.2f} of SDPA's time at 128 tokens. r-softmax, sparsemax and"
    searching = sorted(ours("N=512", *SEARCHING))
    said += f" entmax take {entmax:.2f} to {r:.2f} times SDPA's time at 128 tokens and "
    yield README, f"{said}{searching[0]:.2f} to {searching[-1]:.2f} times at 512."
    softmax, r, sparsemax, entmax = ours("MRPC")
    said = f"softmax takes {softmax:.2f} of SDPA's time, sparsemax {sparsemax:.2f} and entmax "
    cut, shorter, short = ours("MRPC", *(f"{name} (key_lengths)" for name in SEARCHING))
    said += f"{entmax:.2f}, with `key_lengths` sparsemax takes {shorter:.2f} and entmax {short:.2f}"
    yield KERNELS, f"{said}. r-softmax takes {r:.2f}, with `key_lengths` {cut:.2f}."
    softmax, r, sparsemax, entmax = ours("N=512")
    said = f"At 512 tokens softmax takes {softmax:.2f}, sparsemax {sparsemax:.2f}, entmax "
    said += f"{entmax:.2f} and r-softmax {r:.2f} times as long. On 8,192 causal keys it is "
    softmax, r, sparsemax, entmax = ours("causal N=8192")
    yield KERNELS, f"{said}{softmax:.2f}, {sparsemax:.2f}, {entmax:.2f} and {r:.2f}."
    said = "r-softmax takes {:.2f}, sparsemax {:.2f} and entmax {:.2f} times as long as SDPA."
    yield KERNELS, said.format(*ours("N=512", *SEARCHING, which=FORWARD))
    longer = [
        100 * (row["to"]["SDPA"]["median"] - 1)
        for (case, _, name), row in ROWS.items()
        if case in STEPS and name.startswith("ours ")
    ]
    assert len(longer) == 2 * 6
    said = f"training step takes {min(longer):.0f} to {max(longer):.0f} % longer"
    yield KERNELS, said
    yield README, said
    eager = [100 * (ratio(case, "step", "eager softmax") - 1) for case in STEPS]
    yield KERNELS, "Eager softmax takes {:.0f} and {:.0f} % longer".format(*eager)
    yield from peers()


def peers() -> Iterator[tuple[str, str]]:
    """What is said of other packages."""
    speed = {
        peer: 1 / ratio(f"N=512 beside {peer}", BOTH, f"ours {name}", peer)
        for name, peer in (
            ("entmax", "entmax entmax15"),
            ("entmax", "AdaSplash v1"),
            ("sparsemax", "Liger sparsemax"),
        )
    }
    said = "entmax is {:.1f} times as fast as the `entmax` package and {:.1f} times as fast as "
    said += "AdaSplash's first version, sparsemax is {:.1f} times as fast as Liger's"
    yield KERNELS, said.format(*speed.values())
    case = "causal N=8192 beside FlexAttention"
    pair = [ratio(case, BOTH, name) for name in ("ours softmax", "FlexAttention")]
    said = "softmax takes {:.2f} times SDPA's time and FlexAttention {:.2f}"
    yield KERNELS, said.format(*pair)


def earlier() -> Iterator[tuple[str, str]]:
    """What only the first run has."""
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
    us = sorted(us for name, us in host.items() if name != "SDPA")
    yield KERNELS, f"takes {us[0]:.0f} to {us[-1]:.0f} µs, with SDPA {host['SDPA']:.0f} µs"
    compiled = {name: found["compiled"] for name, found in VARIANTS["step_ms"].items()
                if name != "what"}  # fmt: skip
    least, *_, most = sorted(ms for name, ms in compiled.items() if name != "sdpa")
    yield KERNELS, f"{compiled['sdpa']:.1f} ms with SDPA compiled and {least:.1f} to {most:.1f} ms"


def checks() -> Iterator[tuple[str, str]]:
    """Of `make gpu`, none of which failed."""
    cases = read("gpu")["stages"]["sanity"]["cases"]
    assert not [case for case, result in cases.items() if "failed" in result]
    yield KERNELS, f"all {len(cases)} checks passed"


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


@pytest.mark.parametrize(("page", "quote"), [*speeds(), *earlier(), *checks(), *accuracies()])
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


def test_pointwise_mappings_did_not_compile_at_first_only() -> None:
    failed = {name for (*_, name), row in FIRST.items() if "CompilationError" in str(row["reason"])}
    assert {"ours softmax", "ours sigsoftmax"} <= failed
    assert not {f"ours {name}" for name in SEARCHING} & failed
    assert not [row for row in ROWS.values() if row["ours"] and row["reason"]]


def test_records_of_one_commit() -> None:
    commits = {read(name)["environment"]["commit"] for name in ("attention", "gpu")}
    commits |= {
        case["environment"]["commit"] for case in read("attention")["cases"]
        if "environment" in case
    }  # fmt: skip
    (commit,) = commits
    assert f"at commit {commit[:7]}**" in (ROOT / KERNELS).read_text()
