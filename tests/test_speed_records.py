"""The speeds in README and docs are those of the committed benchmark record."""

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
RECORD = json.loads((ROOT / "results/benchmarks/cpu.json").read_text())
MAPPINGS = ("softmax", "r-softmax", "t-softmax", "sparsemax", "entmax", "sigsoftmax")
CASES = (("attention", "N=128"), ("attention", "N=512"), ("step", "MiniLM MRPC"))
# what issue 3 sets as the most that r-softmax may take, against SDPA
LIMITS = {"N=128": 1.25, "N=512": 1.5, "MiniLM MRPC": 1.05}


def row(group: str, case: str, contestant: str) -> dict[str, Any]:
    rows = next(c["rows"] for c in RECORD["cases"] if (c["group"], c["name"]) == (group, case))
    kinds = ("forward+backward", "step")
    return next(r for r in rows if r["name"] == contestant and r["pass"] in kinds)


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_table_of_the_docs(mapping: str) -> None:
    ratios = [row(*case, f"ours {mapping}")["to_sdpa"]["median"] for case in CASES]
    line = f"| `{mapping}` | " + " | ".join(f"{ratio:.2f}" for ratio in ratios) + " |"
    assert line in (ROOT / "docs/kernels.md").read_text(), line


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_r_softmax_against_sdpa(case: tuple[str, str]) -> None:
    ratio = row(*case, "ours r-softmax")["to_sdpa"]["median"]
    assert ratio <= LIMITS[case[1]]
    assert f"{ratio:.2f}" in (ROOT / "README.md").read_text()


def test_what_recording_costs() -> None:
    cases = json.loads((ROOT / "results/benchmarks/recording-cpu.json").read_text())["cases"]
    ratio = {
        (case["mapping"], case["tokens"]): case["ratio"]["statistics"]["median"] for case in cases
    }
    kept = [case["ratio"]["weights too"]["median"] for case in cases]
    kept_for = f"takes {min(kept):.1f} to {max(kept):.0f} times"
    assert kept_for in (ROOT / "docs/guide/inspection.md").read_text()
    short = ratio.pop(("unpatched", 16))
    least, most = (round(100 * (end(ratio.values()) - 1)) for end in (min, max))
    assert most <= 10  # what issue 7 sets
    for page in ("README.md", "docs/guide/inspection.md"):
        assert f"{least} to {most} % of a forward pass" in (ROOT / page).read_text()
    assert f"{100 * (short - 1):.0f} % where an unpatched model" in (ROOT / "README.md").read_text()
    assert f"takes {short:.1f} times" in (ROOT / "docs/guide/inspection.md").read_text()


@pytest.mark.parametrize(
    ("mapping", "peer"), [("sparsemax", "entmax sparsemax"), ("entmax", "entmax entmax15")]
)
def test_against_the_entmax_package(mapping: str, peer: str) -> None:
    faster = 1 / row("attention", "N=512", f"ours {mapping}")["to_peers"][peer]["median"]
    assert faster >= 4
    assert f"{faster:.1f} times" in (ROOT / "docs/kernels.md").read_text()
