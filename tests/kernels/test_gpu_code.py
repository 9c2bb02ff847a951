"""The machine code of the Triton kernels, which needs a compiler but no GPU.

The interpreter runs Python that the compiler would refuse; this is what tells them apart. Counts
are held to benchmarks/machine/triton-VERSION.json: `python -m benchmarks.machine` writes it anew.
"""

import re
from itertools import product

import pytest

from tests.marks import soak

pytest.importorskip("triton", reason="triton is not installed")

from benchmarks.machine import budget
from benchmarks.machine.compiled import SHARED
from benchmarks.machine.sass import PRODUCTS

# by compute capability
CALLS = {
    "8.0": {
        "long": """*qkv(2000, 128, torch.float16), Mapping("entmax", alpha=1.25), causal=True""",
    },
    "8.6": {
        "wide": """*qkv(128, 128, torch.float16), Mapping("top-p-softmax", sink=0.5)""",
    },
    "9.0": {
        "short": """*qkv(300, 64, torch.bfloat16, (4, 2, 2)), Mapping("sparsehourglass", learn="q"),
            mask=torch.ones(300, 300, dtype=torch.bool), bias=torch.zeros(300), softcap=20.0""",
        "free": """*qkv(300, 64, torch.bfloat16), sink=torch.zeros(2, requires_grad=True),
            mapping=Mapping("clipped-softmax", gamma=-0.01, learn="gamma")""",
        "decoding": """*qkv(4096, queries=1), Mapping("entmax", alpha=1.5)""",
        "window": """*qkv(2000, 80, torch.float32, (1, 1, 1)), Mapping("sigsoftmax", learn="bias"),
            window=100, key_lengths=torch.tensor([1500])""",
    },
}
MEASURED = list(product(budget.CAPABILITIES, budget.MAPPINGS))
ALWAYS = ("9.0", "entmax-1.5")  # and the others by `make soak`
# at capability 9.0, at BERT's sizes: as far as the budget lets, and that outside the passes
SPILLING = {"entmax-1.25", "softpick"}
SPILLING_OUTSIDE = {"r-softmax", "t-softmax"}
KEYS_SPILL = 3  # most spilled accesses in a loop of a keys' kernel, whose limit was faster
# at capability 9.0, forward kernels whose loops do not spill; unless they keep their rows on chip,
# three programs have enough registers on a multiprocessor
LIMITED = ("sparsemax", "entmax-1.5", "r-softmax")
MOST_REGISTERS = 168
STEPS = 4  # instructions of the product of a tile with head_dim 64
SLACK = 0.02  # share by which a count may fall before the budget must say so
# instructions of entmax-1.5 on causal rows, for tiles whose scores are all valid
ABSOLUTE = {
    "survey": 150,
    "listing": 300,
    "threshold": 300,
    "output": 420,
    "queries": 600,
    "keys": 600,
}


@pytest.mark.soak
@pytest.mark.parametrize("capability", ["9.0", "8.6", *soak("8.0")])
def test_compiles(capability):
    calls = CALLS[capability]
    room = SHARED[int(capability.replace(".", ""))]
    found = budget.run(capability, list(calls.values()))
    for call, kernels in zip(calls, found, strict=True):
        assert len(kernels) == 3, (call, kernels.keys())
        assert max(kernel["shared"] for kernel in kernels.values()) <= room, call


@pytest.mark.slow
@pytest.mark.parametrize(
    ("capability", "mapping"),
    [ALWAYS, *soak(*(case for case in MEASURED if case != ALWAYS))],
)
@pytest.mark.skipif(not budget.PATH.is_file(), reason="measured with the pinned Triton")
def test_machine_code(capability, mapping):
    found = budget.kernels(capability, mapping)
    for line, kernel in found.items():
        code = kernel["code"]
        assert kernel["shared"] <= SHARED[int(capability.replace(".", ""))], line
        for name, loop in kernel["passes"].items():
            assert not loop.products or loop.names["LDGSTS"], f"{line}, {name} loads nothing ahead"
        kept = line.endswith("forward") and not any(p.products for p in kernel["passes"].values())
        if capability == "9.0":
            assert {name for name in PRODUCTS if code.names[name]} == {"HGMMA"}, line
            spills = max(loop.spills for loop in kernel["passes"].values())
            if budget.KEPT in line and kept:
                # four tiles, each once with the keys and with the values of both outputs
                assert code.names["HGMMA"] == 4 * 3 * STEPS, line
            if line.endswith("forward") and mapping in LIMITED:
                assert kept or kernel["registers"] <= MOST_REGISTERS, line
                assert not spills, line
            elif line.endswith("keys") and mapping not in SPILLING:
                assert spills <= KEYS_SPILL, line
            elif "padding" in line and mapping not in SPILLING:
                if mapping not in SPILLING_OUTSIDE:
                    assert (code.spills, kernel["stack"]) == (0, 0), f"{line} spills"
                assert not spills, line
    within(budget.counts(found))


def within(found: budget.Counts) -> None:
    """Fails where counts are not those of the budget."""
    allowed = budget.read()
    wrong = []
    for line, passes in found.items():
        assert set(passes) == set(allowed[line]), line
        for name, now in passes.items():
            for what, here, most in zip(budget.COUNTED, now, allowed[line][name], strict=True):
                if here > most or here < most * (1 - SLACK):
                    wrong.append(f"{line}, {name}: {here} {what}, the budget is {most}")
    advice = "\nIf that is meant, `python -m benchmarks.machine` writes the budget anew."
    assert not wrong, "\n".join(wrong) + advice


def test_within_notices_both_directions(monkeypatch):
    monkeypatch.setattr(budget, "read", lambda: {"a": {"kernel": [1000, 0, 0]}})
    within({"a": {"kernel": [990, 0, 0]}})
    for counts in ([1001, 0, 0], [900, 0, 0], [1000, 0, 1]):
        with pytest.raises(AssertionError, match="writes the budget anew"):
            within({"a": {"kernel": counts}})


def test_budget_is_of_the_pinned_triton_and_within_the_absolute_one():
    pinned = re.search(r"^triton==(.*)$", (budget.ROOT / "constraints.txt").read_text(), re.M)
    assert pinned is not None
    path = budget.PATH.with_name(f"triton-{pinned[1]}.json")
    assert path.is_file(), "run `python -m benchmarks.machine` and remove the old file"
    assert [path] == list(path.parent.glob("triton-*.json"))
    counts = budget.read(path)
    kept = {line.split(" | ")[1] for line in counts}
    assert kept == set(budget.MAPPINGS)
    passes = {
        name: count
        for kernel in ("forward", "queries", "keys")
        for name, count in counts[f"9.0 | entmax-1.5 | 16384, causal | {kernel}"].items()
    }
    for name, most in ABSOLUTE.items():
        assert passes[name][0] <= most, name
