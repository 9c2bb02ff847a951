"""The speeds that the docs quote are those of the published records."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.host import LAYERS

ROOT = Path(__file__).parents[1]
README, GLUE, KERNELS = "README.md", "docs/glue.md", "docs/kernels.md"
INSPECTION, DECISIONS = "docs/guide/inspection.md", "docs/decisions.md"
SHORT, LONG, STEP = "attention: N=128", "attention: N=512", "step: MiniLM MRPC"


def rows(name: str, which: str | None = None) -> dict[tuple[str, str], dict[str, Any]]:
    """The rows of training, or of one pass, by case and name."""
    record = json.loads((ROOT / f"results/benchmarks/{name}-cpu.json").read_text())
    return {
        (f"{case['group']}: {case['name']}", row["name"]): row
        for case in record["cases"]
        for row in case["rows"]
        if (row.get("pass") != "forward" if which is None else row["pass"] == which)
    }


ATTENTION, HEADS, LARGE_HEADS = rows("attention"), rows("heads"), rows("128k/heads")
COSTS = {
    (case, kind): row["to"]["forward"]["median"]
    for (case, kind), row in rows("recording").items()
    if kind != "forward"
}
UNPATCHED = COSTS.pop(("recording: unpatched, 1 x 16", "statistics"))
COUNTING = [cost for (_, kind), cost in COSTS.items() if kind == "statistics"]
WEIGHTS = [cost for (_, kind), cost in COSTS.items() if kind == "weights too"]


def ratio(case: str, mapping: str, other: str = "SDPA") -> float:
    return ATTENTION[case, f"ours {mapping}"]["to"][other]["median"]


Found = dict[tuple[str, str], dict[str, Any]]
SPARSE = rows("sparsity", "forward+backward, 1 thread")
DECODING, PEAK, CROSSOVER = (rows(name, "forward") for name in ("decoding", "peak", "crossover"))
SMALL, AVX2 = rows("decoding", "forward+backward"), rows("avx2/attention")
TRAINED = rows("crossover", "forward+backward")
ALPHA = "entmax alpha=1.5"


def over(found: Found, case: str, name: str, base: str = "SDPA") -> str:
    return f"{found[case, name]['to'][base]['median']:.2f}"


def rate(case: str, name: str) -> float:
    row = PEAK[case, name]
    return float(row["gflop"]) / float(row["ms"]["median"])


def host(case: str, which: str) -> str:
    """Microseconds of a layer, from the mapping that takes least to that which takes most."""
    found = rows("host", which)
    fixed = ("softmax", "r-softmax", "sparsemax", "entmax")
    us = [1e3 * found[f"host: {case}", f"ours {n}"]["ms"]["median"] / LAYERS for n in fixed]
    ends = dict.fromkeys(f"{end(us):.0f}" for end in (min, max))  # one number if they are equal
    return f"{' to '.join(ends)} µs"


def crossing(found: Found, case: str) -> float:
    """The share of weights from which dense products are faster."""
    shares = [0.05 * k for k in range(1, 9)]
    sparse, dense = (
        [found[case, f"{kind} {1 - share:.4g}"]["to"]["softmax"]["median"] for share in shares]
        for kind in ("sparse", "dense")
    )
    return next(
        (share for share, s, d in zip(shares, sparse, dense, strict=True) if s > d), shares[-1]
    )


def sparse_quotes() -> Iterator[tuple[str, str]]:
    cases = dict.fromkeys(case for case, _ in SPARSE)
    for name in dict.fromkeys(name for _, name in SPARSE):
        cells = []
        for case in cases:
            zeros = SPARSE[case, name]["zeros"]
            ratio_ = over(SPARSE, case, name, "softmax")
            cells.append(ratio_ + f" ({100 * zeros:.4g} %)" * (zeros > 1e-3))
        yield KERNELS, f"| {name} | {' | '.join(cells)} |"
    short, long = "random: N=512", "random: N=8192"
    share = over(SPARSE, short, "sparsemax", "softmax")
    yield README, f"sparsemax take {share} of our own softmax's time"
    yield README, f"{over(SPARSE, long, 'sparsemax', 'softmax')} at 8,192"
    ends = [over(SPARSE, case, ALPHA, "softmax") for case in (short, long)]
    yield README, f"entmax {ends[0]} and {ends[1]}"
    one, other = (
        over(DECODING, f"decoding: {n} keys", "ours sparsemax") for n in ("16,384", "65,536")
    )
    yield KERNELS, f"{one} of SDPA's time beside 16,384 keys and {other} beside 65,536"
    yield README, f"{other} of SDPA"
    for found in (DECODING, SMALL):
        ratios = [over(found, "small: 16 tokens", f"ours {n}") for n in ("softmax", ALPHA)]
        yield KERNELS, f"{float(ratios[0]):.1f} to {float(ratios[1]):.1f} times"
    for case in ("plain", "BERT"):
        more = " to the launches of a layer forward" if case == "plain" else ""
        yield KERNELS, f"{host(case, 'forward')}{more} and {host(case, 'backward')}"
    steps = {
        case: ratio(f"step: {case}", "sparsemax")
        for model in ("MiniLM", "BERT-base")
        for case in (f"{model} 512", f"{model} 512, no dropout")
    }
    yield (
        KERNELS,
        "MiniLM {:.2f} and {:.2f}, of BERT-base {:.2f} and {:.2f}".format(*steps.values()),
    )
    forced = [
        over(AVX2, f"step: {case}", "ours sparsemax") for case in steps if case.startswith("Mini")
    ]
    yield KERNELS, f"AVX2 forced {forced[0]} and {forced[1]}"
    parts = [100 * rate("peak: N=512", n) / rate("peak: N=512", "multiply-adds")
             for n in ("ours softmax", "SDPA", "ours sparsemax")]  # fmt: skip
    yield DECISIONS, "softmax reaches {:.0f} %, SDPA {:.0f} % and sparsemax {:.0f} %".format(*parts)
    for words, found in (("training", TRAINED), ("inference", CROSSOVER)):
        ends = [crossing(found, f"crossover: N={n}") for n in (128, 512, 2048)]
        yield DECISIONS, f"for {words} {ends[0]:.2f}, {ends[1]:.2f} and {ends[2]:.2f}"


def quotes() -> Iterator[tuple[str, str]]:
    """A page, and what must stand there."""
    for mapping in ("softmax", "r-softmax", "t-softmax", "sparsemax", "entmax", "sigsoftmax"):
        cells = [f"{ratio(case, mapping):.2f}" for case in (SHORT, LONG, STEP)]
        yield KERNELS, f"| `{mapping}` | {' | '.join(cells)} |"
    yield README, f"r-softmax takes {ratio(SHORT, 'r-softmax'):.2f} of the time of PyTorch's SDPA"
    yield README, f"{ratio(LONG, 'r-softmax'):.2f} at 512"
    yield README, f"{ratio(STEP, 'r-softmax'):.2f} in a MiniLM training step"
    for name, peer in (("sparsemax", "sparsemax"), ("entmax at alpha = 1.5", "entmax15")):
        faster = 1 / ratio(LONG, name.split()[0], f"entmax {peer}")
        yield KERNELS, f"{name} {'is ' * (peer == 'sparsemax')}{faster:.1f} times"
    for name, words in (
        ("softmax", "as many MRPC examples a second"),
        ("r-softmax", "with r-soft"),
    ):
        speedup = rows("glue")["throughput: MRPC", f"ours {name}"]["speedup"]["median"]
        yield GLUE, f"{speedup:.1f} times {words}"
    least, most = (round(100 * (end(COUNTING) - 1)) for end in (min, max))
    yield INSPECTION, f"{least} to {most} % of a forward pass"
    yield INSPECTION, f"takes {UNPATCHED:.1f} times"
    yield INSPECTION, f"takes {min(WEIGHTS):.1f} to {max(WEIGHTS):.0f} times"
    for case in json.loads((ROOT / "results/benchmarks/pages-cpu.json").read_text())["cases"]:
        found = case["pages"].items()
        vectors = {"box": 2, "ball": 1, "both": 3}  # that the bounds of a page take
        share = min(page[b] + n / int(size) for size, page in found for b, n in vectors.items())
        yield DECISIONS, f"{100 * share:.0f} % for {case['name']}"
    large = LARGE_HEADS["softmax: 128k", "ours"]["to"]["plain"]["median"]
    yield "docs/heads.md", f"{large:.2f} of it at 128,256"


@pytest.mark.parametrize(("page", "quote"), [*quotes(), *sparse_quotes()])
def test_quote(page: str, quote: str) -> None:
    assert quote in " ".join((ROOT / page).read_text().split())


@pytest.mark.parametrize(
    ("name", "found", "limit"),
    [
        ("r-softmax at 128 tokens", ratio(SHORT, "r-softmax"), 1.25),
        ("r-softmax at 512 tokens", ratio(LONG, "r-softmax"), 1.5),
        ("r-softmax in a training step", ratio(STEP, "r-softmax"), 1.05),
        ("sparsemax by the entmax package's", ratio(LONG, "sparsemax", "entmax sparsemax"), 0.25),
        ("entmax by the entmax package's", ratio(LONG, "entmax", "entmax entmax15"), 0.25),
        ("counting", max(COUNTING), 1.105),
        ("softmax by nll, 10k", HEADS["softmax: 10k", "ours"]["to"]["plain"]["median"], 0.7),
        ("softmax by nll, 33k", HEADS["softmax: 33k", "ours"]["to"]["plain"]["median"], 0.7),
    ],
)
def test_records_are_as_fast_as_promised(name: str, found: float, limit: float) -> None:
    assert found <= limit, name
