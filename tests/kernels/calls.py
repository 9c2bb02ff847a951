"""The calls that every implementation computes as the reference does: mapping by option."""

import itertools
from dataclasses import replace
from typing import Any

from .problems import COMPETING, LEARNED, SETTINGS, SOLVERS, Problem, vary

T = ("t-softmax", {"t": 1.75})
R = ("r-softmax", {"r": 0.3125})
ENTMAX = ("entmax", {"alpha": 1.5})
SPARSEMAX: tuple[str, dict[str, Any]] = ("sparsemax", {})
# Every shape that broadcasts to (batch, heads, queries, keys).
FOUR = ["".join(pick) for pick in itertools.product("B1", "H1", "Q1", "K1")]
SHAPES = [*FOUR, "HQK", "1QK", "H1K", "QK", "1K", "Q1", "K", "1", ""]
LENGTHS = ((1, 1), (1, 63), (63, 1), (63, 63), (111, 70), (70, 111), (1000, 3), (3, 1000))
# The interpreter runs one program after another: one head, one block or two.
ONE = {"batch": 1, "heads": 1, "kv_heads": 1}


def options(name: str, params: dict[str, Any], **size: Any) -> list[Problem]:
    """Every argument that changes scores or masks them, and the pairs that could interfere."""
    plain = Problem(name, params, **size)
    lengths = (plain.keys // 2, plain.keys)[: plain.batch]
    return [
        *(replace(plain, options=o) for o in (
            {"causal": True},
            {"window": 1},
            {"window": 7},
            {"window": 1000},
            {"causal": True, "window": 4},
            {"softcap": 2.0},
            {"scale": 0.5},
            {"scale": -0.25},
            {"scale": 0.0},
        )),
        *vary(plain, mask=["BHQK", "B11K", "QK"], bias=["BHQK", "1H1K", "HQK"]),
        replace(plain, key_lengths=lengths),
        replace(plain, key_lengths=(0, 1)[: plain.batch]),
        # lengths outside of the keys mean none of them, or all
        replace(plain, key_lengths=(-2, 1000)[: plain.batch]),
        replace(plain, bias="BHQK", bias_masks=True, options={"softcap": 3.0}),
        replace(plain, mask="BHQK", key_lengths=lengths, bias="H1K", options={"causal": True}),
        replace(plain, sink=0.5, bias="BHQK", bias_masks=True),
        replace(plain, sink=-0.5, mask="BHQK", key_lengths=lengths, options={"causal": True}),
        replace(plain, queries=plain.keys + 5, options={"causal": True}),
        replace(plain, queries=5, options={"causal": True, "window": 2}),
        # the last queries are further from every key than the window
        replace(plain, queries=plain.keys + 9, options={"window": 3}),
    ]  # fmt: skip


def shapes(name: str, params: dict[str, Any], **size: Any) -> list[Problem]:
    """Widths, strides, groups of heads, and scores that differ much or hardly."""
    plain = Problem(name, params, **size)
    found = [
        *vary(plain, dim=[32, 64, 80, 96, 128, 1, 17], spread=[50.0, 1e-3]),
        *vary(plain, layout=["transposed", "sliced", "columns", "every-second"]),
        replace(plain, heads=4, kv_heads=2),
        replace(plain, heads=3, kv_heads=1),
    ]
    # softpick divides by the size of scores that all go to 0 with a query of one number
    return [case for case in found if (name, case.dim) != ("softpick", 1)]


def learning(name: str, params: dict[str, Any], per_head: bool, **size: Any) -> Problem:
    return Problem(name, params, learn=next(iter(params)), per_head=per_head, **size)


SIZES = [Problem(*s, batch=1, queries=q, keys=k) for s in SOLVERS for q, k in LENGTHS]
ODD = [Problem(*s, batch=1, queries=70, keys=111) for s in SETTINGS]
FORMS = [case for s in SOLVERS for case in shapes(*s, queries=63, keys=111)]
OPTIONS = [case for s in SOLVERS for case in options(*s, queries=37, keys=45)]
LONG = [Problem(*s, queries=1000, keys=1000, **ONE) for s in SOLVERS]
LEARNING = [learning(*s, per, queries=63, keys=70) for s in LEARNED for per in (False, True)]
# below, among and above the scores
SINKS = [Problem(*s, queries=9, keys=21, sink=sink) for s in COMPETING for sink in (-2.0, 0.5, 5.0)]
# Triton has no gradient of a bias
BIASES = [
    *(Problem(*T, bias=shape, bias_learned=True, bias_masks=masks)
      for shape in SHAPES for masks in (False, True)),
    *(Problem(*s, bias="HQK", bias_learned=True, key_lengths=(7, 20),
              options={} if s[0].startswith("scaled-") else {"softcap": 3.0}) for s in SETTINGS),
]  # fmt: skip
# where their gradients sum what half precision would round away
SUMMED = [s for s in LEARNED if s[0] in ("r-softmax", "t-softmax", "scaled-softmax", "sparsecone")]
# Beyond 128 keys the Triton kernels go tile by tile, and keep up to 256 of them on chip.
TILED = [
    *(Problem(*s, queries=5, keys=keys, **ONE) for s in SOLVERS for keys in (129, 150, 256)),
    *(Problem(*s, queries=3, keys=300, **ONE) for s in SOLVERS),
    *(Problem(*s, queries=3, keys=keys, **ONE) for s in SOLVERS[2::3] for keys in (512, 520)),
    *(Problem(*s, queries=5, keys=192, **ONE) for s in SETTINGS if s not in SOLVERS),
    Problem(*SPARSEMAX, queries=3, keys=300, spread=9.0, mask="11QK", **ONE),
    Problem(*SPARSEMAX, queries=3, keys=150, sink=2.0, **ONE),
    Problem(*R, queries=70, keys=300, sink=0.5, **ONE, options={"causal": True}),
]
# rows that the Triton kernels keep on chip in several tiles, one search for each of the options
SEARCHES = [ENTMAX, R, ("sparsehourglass", {"q": 0.5}), ("top-p-softmax", {"p": 0.90625})]
LONGER = {**ONE, "dim": 16}
SEARCHED = [
    *(case for i, search in enumerate(SEARCHES)
      for case in options(*search, queries=70, keys=200, **LONGER)[i::4]),
    *(case for i, search in enumerate(SEARCHES[1::2])
      for case in options(*search, queries=40, keys=300, **LONGER)[i::6]),
    # mostly padding, in two tiles, of which one is empty
    *(Problem(*search, queries=70, keys=100, key_lengths=(60,), **LONGER) for search in SEARCHES),
    *(Problem(*search, queries=150, keys=150, options={"causal": True}, **LONGER)
      for search in [SPARSEMAX, *SEARCHES]),
    *(Problem(*search, queries=160, keys=160, packed=(20, 100, 40), **LONGER)
      for search in SEARCHES),
]  # fmt: skip
# of one sequence, one head, 7 queries and 11 keys
SMALL = {**ONE, "queries": 7, "keys": 11}
INTERPRETED = [
    *(Problem(*s, queries=9, keys=21, **ONE) for s in SETTINGS),
    *(learning(*s, True, queries=5, keys=9) for s in LEARNED),
    *(Problem(*s, queries=5, keys=9, heads=2, kv_heads=1, batch=1, sink=0.5)
      for s in [*SOLVERS, ("sigsoftmax", {}), ("entmax", {"alpha": 1.25})]),
    Problem("r-softmax", {"r": 0.15625}, queries=111, keys=70, **ONE),
    Problem(*ENTMAX, queries=63, keys=111, **ONE),
    Problem("sigsoftmax", queries=1, keys=1, **ONE),
    Problem(*SPARSEMAX, queries=3, keys=1, **ONE),
    Problem("sigsoftmax", batch=2, heads=4, kv_heads=2, queries=5, keys=7),
    Problem(*R, batch=1, heads=2, kv_heads=1, queries=5, keys=7),
    *vary(Problem(*R, queries=7, **ONE), dim=[17, 64, 80, 128]),
    *vary(Problem(*SPARSEMAX, queries=7), layout=["sliced", "columns", "every-second"]),
    *vary(Problem(*T, queries=7, **ONE), spread=[50.0, 1e-3]),
    *options(*R, **SMALL),
    *options("sparsehourglass", {"q": 0.5}, **SMALL)[::3],
    *options("sigsoftmax", {}, **SMALL)[1::3],
    *options(*ENTMAX, **SMALL)[2::3],
    *vary(Problem(*T, queries=3, keys=5), mask=SHAPES[::2]),
    *vary(Problem("sigsoftmax", queries=3, keys=5), bias=SHAPES[1::2]),
    *TILED,
    *SEARCHED,
]  # fmt: skip
