"""Instructions of each pass of the kernels, and the file with their budget.

`triton-VERSION.json` has a line per kernel. It lists, for the whole kernel and for each pass,
[instructions, those of special functions (exp, log, division), accesses of spilled registers]. A
pass is an innermost loop with a product; in one round of it a warp handles 16 rows by 64 columns of
scores. "survey, edges" is the pass "survey" over tiles with invalid scores. Forward kernels that
keep a row on chip have the loops of their search instead of passes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import triton

from benchmarks.machine.compiled import program
from benchmarks.machine.sass import Code

ROOT = Path(__file__).parents[2]
PATH = Path(__file__).with_name(f"triton-{triton.__version__}.json")
CAPABILITIES = ("8.0", "9.0")
MAPPINGS = {
    "softmax": 'Mapping("softmax")',
    "sigsoftmax": 'Mapping("sigsoftmax")',
    "r-softmax": 'Mapping("r-softmax")',
    "sparsemax": 'Mapping("sparsemax")',
    "entmax-1.5": 'Mapping("entmax", alpha=1.5)',
    "entmax-1.25": 'Mapping("entmax", alpha=1.25)',
    "t-softmax": 'Mapping("t-softmax")',
    "taylor-softmax": 'Mapping("taylor-softmax")',
    "spherical-softmax": 'Mapping("spherical-softmax")',
    "softpick": 'Mapping("softpick")',
}
KEPT = "256, padding, dropout"
SEARCHED = ("r-softmax", "sparsemax", "entmax-1.5")
UNPADDED = ("softmax", "sigsoftmax", "r-softmax", "sparsemax", "entmax-1.5")
_BERT = "mask=torch.ones(1, 1, 1, {0}, dtype=torch.bool), dropout=0.1"
CALLS = {  # bfloat16, head_dim 64
    "128, padding, dropout": "*qkv(128), {}, " + _BERT.format(128),
    KEPT: "*qkv(256), {}, " + _BERT.format(256),
    "512, padding, dropout": "*qkv(512), {}, " + _BERT.format(512),
    "128": "*qkv(128), {}",
    "16384, causal": "*qkv(16384), {}, causal=True",
}
KERNELS = {"fwd_kernel": "forward", "bwd_dq_kernel": "queries", "bwd_dkdv_kernel": "keys"}
_SEARCHES = {  # passes before the output pass
    "r-softmax": ("survey", "count", "collect", "slack"),
    "sparsemax": ("survey", "threshold"),
    "entmax-1.5": ("survey", "threshold"),
    "entmax-1.25": ("survey", "threshold"),
    "t-softmax": ("survey", "slack"),
    "softpick": ("survey",),
}
_STEPS = {  # loops of the search if a row is kept on chip
    "r-softmax": ("count", "step"),
    "sparsemax": ("threshold",),
    "entmax-1.5": ("threshold",),
}

COUNTED = ("instructions", "special functions", "spilled accesses")
Counts = dict[str, dict[str, list[int]]]


def run(capability: str, calls: list[str]) -> list[dict[str, Any]]:
    """Return the output of `compiled` for these calls, from a new process with a new cache."""
    with tempfile.TemporaryDirectory() as cache:
        code = program(int(capability.replace(".", "")), calls)
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code],
            env={**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": cache},
            cwd=ROOT, capture_output=True, text=True,
        )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"the kernels of {', '.join(calls)} do not compile:\n{done.stderr}")
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def kernels(capability: str, mapping: str) -> dict[str, dict[str, Any]]:
    """Return the kernels of a mapping by the names of their lines, with `passes`: code by name."""
    calls = [call for call in CALLS if mapping in UNPADDED or "padding" in call]
    if mapping not in SEARCHED:
        calls.remove(KEPT)
    found = run(capability, [CALLS[call].format(MAPPINGS[mapping]) for call in calls])
    named = {}
    for call, of_call in zip(calls, found, strict=True):
        for name, kernel in of_call.items():
            line = f"{capability} | {mapping} | {call} | {KERNELS[name]}"
            codes = [Code(Counter(loop)) for loop in kernel["loops"]]
            kernel["passes"] = _passes_by_name(codes, mapping, call, KERNELS[name])
            kernel["code"] = Code(Counter(kernel["code"]))
            named[line] = kernel
    return named


def _passes_by_name(codes: list[Code], mapping: str, call: str, kernel: str) -> dict[str, Code]:
    """Return the passes by name; a kernel's innermost loops must match the known names."""
    if kernel == "forward" and not any(code.products for code in codes):
        return dict(zip(_kept_loops(mapping, call), codes, strict=True))
    codes = [code for code in codes if code.products]
    names: tuple[str, ...] = (kernel,)
    if kernel == "forward":
        names = (*_SEARCHES.get(mapping, ()), "output")
        if "threshold" in names and not call.startswith("128"):
            names = ("survey", "listing", *names[1:])
    if len(codes) == 2 * len(names):
        names = tuple(chain.from_iterable((name, f"{name}, edges") for name in names))
    return dict(zip(names, codes, strict=True))


def _kept_loops(mapping: str, call: str) -> tuple[str, ...]:
    """Return the loops of a forward kernel that keeps its rows on chip."""
    steps = _STEPS.get(mapping, ())
    if steps == ("threshold",) and call != "128":  # several tiles
        steps = ("candidates", *(("marks",) if call == KEPT else ()), *steps)
    return ("padding", *steps) if "padding" in call else steps


def counts(found: dict[str, dict[str, Any]]) -> Counts:
    """Return the counts in the form of the file."""
    return {
        line: {
            name: [code.instructions, code.names["MUFU"], code.spills]
            for name, code in {"kernel": kernel["code"], **kernel["passes"]}.items()
        }
        for line, kernel in found.items()
    }


def read(path: Path = PATH) -> Counts:
    found: Counts = json.loads(path.read_text(encoding="utf-8"))
    return found


def write(found: Counts) -> None:
    lines = ",\n".join(f"{json.dumps(line)}: {json.dumps(found[line])}" for line in sorted(found))
    PATH.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
