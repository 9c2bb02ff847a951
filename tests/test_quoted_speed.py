"""The speeds that the docs quote are those of the published records."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.pages import VECTORS, read

ROOT = Path(__file__).parents[1]
README, GLUE, KERNELS = "README.md", "docs/glue.md", "docs/kernels.md"
INSPECTION = "docs/guide/inspection.md"
SHORT, LONG, STEP = "attention: N=128", "attention: N=512", "step: MiniLM MRPC"


def rows(name: str) -> dict[tuple[str, str], dict[str, Any]]:
    """The rows of training, by case and name."""
    record = json.loads((ROOT / f"results/benchmarks/{name}-cpu.json").read_text())
    return {
        (f"{case['group']}: {case['name']}", row["name"]): row
        for case in record["cases"]
        for row in case["rows"]
        if row.get("pass") != "forward"
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
        share = min(read(page, size, bound) for size, page in found for bound in VECTORS)
        yield "docs/decisions.md", f"{100 * share:.0f} % for {case['name']}"
    large = LARGE_HEADS["softmax: 128k", "ours"]["to"]["plain"]["median"]
    yield "docs/heads.md", f"{large:.2f} of it at 128,256"


@pytest.mark.parametrize(("page", "quote"), [*quotes()])
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
