"""Outputs and gradients against the reference: to rounding in float64, by budget elsewhere."""

from dataclasses import replace

import pytest
import torch

from sparse_attn import Mapping

from .backends import CPU, CUDA, FLEX, FLEX_CUDA, MARKS, TRITON, each, on
from .problems import (
    COMPETING,
    LEARNED,
    SETTINGS,
    SOLVERS,
    Inputs,
    Problem,
    assert_equal_to_rounding,
    assert_within_budget,
    rows_call,
    solve,
    vary,
)

half_dtypes = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
LENGTHS = ((1, 1), (1, 63), (63, 1), (63, 63), (111, 70), (70, 111), (1000, 3), (3, 1000))
ODD = [
    Problem(name, params, batch=1, queries=queries, keys=keys)
    for name, params in SETTINGS
    for queries, keys in LENGTHS
]
LEARNING = [
    Problem(name, params, learn=next(iter(params)), per_head=per_head, queries=63, keys=70)
    for name, params in LEARNED
    for per_head in (False, True)
]
SHAPES = [
    problem
    for name, params in SOLVERS
    for problem in (
        *vary(Problem(name, params, queries=63, keys=111), dim=[32, 64, 80, 96, 128, 1, 17]),
        *vary(Problem(name, params), layout=["transposed", "sliced", "columns", "every-second"]),
        Problem(name, params, heads=4, kv_heads=2),
        Problem(name, params, heads=3, kv_heads=1),
        Problem(name, params, spread=50.0, queries=33, keys=65),
        Problem(name, params, spread=1e-3, queries=33, keys=65),
    )
    # softpick divides by the size of scores that all go to 0 with a query of one number
    if (name, problem.dim) != ("softpick", 1)
]
LONG = [
    Problem(name, params, batch=1, heads=1, kv_heads=1, queries=1000, keys=1000)
    for name, params in SOLVERS
]
# Below, among and above the scores.
SINKS = [
    Problem(name, params, queries=9, keys=21, sink=sink)
    for name, params in COMPETING
    for sink in (-2.0, 0.5, 5.0)
]
# Their gradient sums what half precision would round away.
SUMMED = [s for s in LEARNED if s[0] in ("r-softmax", "t-softmax", "scaled-softmax", "sparsecone")]
PARAMETERS = sorted({(name, parameter) for name, params in LEARNED for parameter in params})
# The interpreter runs one program after another: one head, one block or two.
ONE = {"batch": 1, "heads": 1, "kv_heads": 1}
INTERPRETED = [
    *(Problem(name, params, queries=9, keys=21, **ONE) for name, params in SETTINGS),
    Problem("r-softmax", {"r": 0.15625}, queries=111, keys=70, **ONE),
    Problem("entmax", {"alpha": 1.5}, queries=63, keys=111, **ONE),
    Problem("sigsoftmax", {}, queries=1, keys=1, **ONE),
    Problem("sparsemax", {}, queries=3, keys=1, **ONE),
]
# Beyond 128 keys the Triton kernels go tile by tile, and keep up to 256 of them on chip.
TILED = [
    *(Problem(name, params, queries=5, keys=keys, **ONE)
      for name, params in SOLVERS for keys in (129, 150, 256)),
    *(Problem(name, params, queries=3, keys=300, **ONE) for name, params in SOLVERS),
    *(Problem(name, params, queries=3, keys=keys, **ONE)
      for name, params in SOLVERS[2::3] for keys in (512, 520)),
    *(Problem(name, params, queries=5, keys=192, **ONE)
      for name, params in SETTINGS if (name, params) not in SOLVERS),
    Problem("sparsemax", {}, queries=3, keys=300, spread=9.0, mask="11QK", **ONE),
    Problem("r-softmax", {"r": 0.3125}, queries=70, keys=300, sink=0.5, **ONE,
            options={"causal": True}),
    Problem("sparsemax", {}, queries=3, keys=150, sink=2.0, **ONE),
]  # fmt: skip
INTERPRETED_SINKS = [
    Problem(name, params, queries=5, keys=9, heads=2, kv_heads=1, batch=1, sink=0.5)
    for name, params in [*SOLVERS, ("sigsoftmax", {}), ("entmax", {"alpha": 1.25})]
]
INTERPRETED_SHAPES = [
    Problem("sigsoftmax", {}, batch=2, heads=4, kv_heads=2, queries=5, keys=7),
    Problem("r-softmax", {"r": 0.3125}, batch=1, heads=2, kv_heads=1, queries=5, keys=7),
    *vary(Problem("r-softmax", {"r": 0.3125}, queries=7, **ONE), dim=[17, 64, 80, 128]),
    *vary(Problem("sparsemax", {}, queries=7), layout=["sliced", "columns", "every-second"]),
    *vary(Problem("t-softmax", {"t": 1.75}, queries=7, **ONE), spread=[50.0, 1e-3]),
]
INTERPRETED_LEARNING = [
    Problem(name, params, learn=next(iter(params)), per_head=True, queries=5, keys=9)
    for name, params in LEARNED
]


def half(case: Problem) -> Problem:
    """Smaller scores: q k^T of the reference must stay inside float16."""
    return case if case.spread <= 3 else replace(case, spread=9.0)


@pytest.mark.parametrize("case", [*ODD, *SHAPES, *LONG, *LEARNING, *SINKS], ids=str)
def test_float64_on_the_cpu_equals_the_reference(case):
    assert_equal_to_rounding(case, "cpu")


@on(
    [
        *(case for case in ODD if (case.queries, case.keys) in ((63, 63), (70, 111))),
        *(*SHAPES, *LONG, *TILED, *LEARNING, *SINKS),
    ],
    [*INTERPRETED, *INTERPRETED_SHAPES, *TILED, *INTERPRETED_LEARNING, *INTERPRETED_SINKS],
)
def test_float32_is_within_budget(backend, case):
    assert_within_budget(case, backend.impl, torch.float32, backend.device)


@half_dtypes
@on(
    [
        *(Problem(name, params, queries=63, keys=70) for name, params in SETTINGS),
        *map(half, [*SHAPES, *TILED]),
        *(case for case in LEARNING if case.per_head),
    ],
    [
        *(Problem(name, params, queries=5, keys=19, **ONE) for name, params in SOLVERS),
        *(Problem(*s, learn=next(iter(s[1])), per_head=True, queries=63, keys=70) for s in SUMMED),
        *vary(Problem("r-softmax", {"r": 0.3125}, queries=63, keys=111), dim=[1, 8]),
        *map(half, TILED),
    ],
)
def test_half_precision_is_within_budget(backend, case, dtype):
    if backend == TRITON and dtype == torch.bfloat16:
        pytest.skip("tl.dot of Triton 3.6's interpreter takes the bits of bfloat16 for integers")
    assert_within_budget(case, backend.impl, dtype, backend.device)


@half_dtypes
@pytest.mark.parametrize("case", [half(case) for case in SHAPES[:13]], ids=str)
def test_half_precision_on_the_cpu_is_float32_rounded_once(case, dtype):
    """Nothing between the inputs and the results is rounded to half precision."""
    got = solve(case, "cpu", dtype, dtype, "cpu")
    expected = solve(case, "cpu", dtype, torch.float32, "cpu")
    for name, wanted in expected.items():
        assert torch.equal(got[name], wanted.to(got[name].dtype)), name


@pytest.mark.parametrize(
    ("backend", "case"),
    [
        pytest.param(backend, case, marks=MARKS[backend], id=f"{backend}-{case}")
        for backend in (FLEX, FLEX_CUDA)
        for case in (
            Problem("sigsoftmax", {"bias": 0.5}, bias="HQK", mask="B11K"),
            Problem("taylor-softmax", {}, heads=4, options={"causal": True, "softcap": 3.0}),
            Problem("spherical-softmax", {"eps": 0.25}, options={"causal": True}),
            Problem("normalized-relu", {}, keys=30, options={"window": 4}),
        )
    ],
)
def test_flex_is_within_budget(backend, case):
    """Its CPU kernel has no backward pass, so only the output is looked at there."""
    if backend.device == "cuda":
        assert_within_budget(case, "flex", torch.float32, "cuda")
        return
    truth = Inputs(case, torch.float32, torch.float64)
    inputs = Inputs(case)
    with torch.no_grad():
        expected = truth.attend("reference")
        torch.testing.assert_close(inputs.attend("flex").double(), expected, rtol=1e-5, atol=1e-5)


@on(
    [Problem(name, params, queries=9, keys=33) for name, params in SETTINGS],
    [Problem(name, params, queries=5, keys=9, **ONE) for name, params in SOLVERS],
)
def test_two_runs_are_bitwise_equal(backend, case):
    first = solve(case, backend.impl, torch.float32, torch.float32, backend.device)
    again = solve(case, backend.impl, torch.float32, torch.float32, backend.device)
    torch.testing.assert_close(first, again, rtol=0, atol=0)


@pytest.mark.parametrize("case", [LEARNING[3], LEARNING[-1], SHAPES[2], LONG[2]], ids=str)
def test_several_threads_give_the_same_bits(case):
    case = replace(case, bias="1H1K", bias_learned=True)
    alone = solve(case, "cpu", torch.float32, torch.float32, "cpu")
    torch.set_num_threads(3)
    try:
        together = solve(case, "cpu", torch.float32, torch.float32, "cpu")
    finally:
        torch.set_num_threads(1)
    torch.testing.assert_close(alone, together, rtol=0, atol=0)


@on(
    [Problem(name, params, queries=9, keys=33) for name, params in [*SOLVERS, *LEARNED]],
    [Problem(name, params, queries=5, keys=9, **ONE) for name, params in SOLVERS],
)
def test_results_do_not_depend_on_what_memory_held(backend, case):
    """Every element of every buffer is written before it is read."""
    case = replace(
        case, mask="BHQK", learn=next((n for n in case.params if n not in ("t", "p")), "")
    )
    torch.use_deterministic_algorithms(True)  # torch.empty and its kin give NaN
    try:
        for empty in (torch.empty(3), torch.empty_like(torch.ones(3)), torch.ones(3).new_empty(3)):
            assert empty.isnan().all()
        got = solve(case, backend.impl, torch.float32, torch.float32, backend.device)
    finally:
        torch.use_deterministic_algorithms(False)
    clean = solve(case, backend.impl, torch.float32, torch.float32, backend.device)
    torch.testing.assert_close(got, clean, rtol=0, atol=0)


def test_the_backends_are_the_ones_the_project_has():
    from sparse_attn.kernels.dispatch import IMPLEMENTATIONS

    assert {b.impl for b in (CPU, TRITON, CUDA, FLEX)} | {"reference"} == set(IMPLEMENTATIONS)


def test_float64_keeps_its_parameter():
    """0.7 in float32 is below 0.7, which drops one key fewer of eleven."""
    scores = torch.randn(8, 11, dtype=torch.float64)
    for r in (0.7, 0.9):
        got, _ = rows_call(scores, Mapping("r-softmax", r=r), "cpu")
        want, _ = rows_call(scores, Mapping("r-softmax", r=r), "reference")
        assert ((got == 0) == (want == 0)).all()


@pytest.mark.parametrize(("name", "parameter"), PARAMETERS)
@each(CPU, TRITON)
def test_a_parameter_that_is_nan_gives_nan(backend, name, parameter):
    inputs = backend.inputs(Problem(name, dict(LEARNED)[name], learn=parameter, dim=16))
    with torch.no_grad():
        getattr(inputs.mapping, f"raw_{parameter}").fill_(torch.nan)
    assert inputs.attend(backend.impl).isnan().all()


@pytest.mark.parametrize(
    ("name", "bad"),
    [("sparsemax", torch.inf), *((n, torch.nan) for n in ("sparsemax", "entmax", "sparsegen"))],
)
@each(TRITON)
def test_nan_spoils_a_long_row(backend, name, bad):
    """Tiles without support are skipped; one with NaN has no support that compares."""
    inputs = backend.inputs(Problem(name, queries=3, keys=1100, dim=16, **ONE))
    with torch.no_grad():
        inputs.query[:, :, 1] = bad
    out = inputs.attend(backend.impl)
    assert out[:, :, 1].isnan().all()
    assert out[:, :, [0, 2]].isfinite().all()


@each(TRITON)
def test_nearly_one_hot_long_rows(backend):
    """A support narrower than the rounding of the maximum still holds the maximum."""
    params = {"lam": 0.99999}
    case = Problem("sparsegen", params, queries=64, keys=1100, dim=16, spread=1.0, **ONE)
    inputs = backend.inputs(replace(case, options={"scale": 50.0}))
    got, want = (inputs.attend(impl) for impl in (backend.impl, "reference"))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@each(TRITON)
def test_tf32_switched_on_by_either_api(backend):
    """Transformers' TrainingArguments(tf32=True) uses the new one."""
    from sparse_attn.kernels.triton.plan import product_precision

    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    try:
        assert product_precision(torch.float32) == "tf32x3"
        matmul.fp32_precision = "tf32"
        assert product_precision(torch.float32) == "tf32"
        backend.inputs(Problem("softmax", queries=8, keys=8, dim=16, **ONE)).attend(backend.impl)
    finally:
        matmul.fp32_precision = before


@each()
@pytest.mark.parametrize(
    ("name", "params"), [("r-softmax", {"r": 0.90625}), ("t-softmax", {"t": 1e-5})]
)
def test_half_gradients_of_nearly_equal_scores_are_finite(backend, name, params):
    """Their slopes, of the order of 1 / t, are beyond float16."""
    case = Problem(name, params, batch=1, heads=1, kv_heads=1, spread=1e-5)
    inputs = Inputs(case, torch.float16, torch.float16, backend.device)
    inputs.grad *= 0.01
    assert all(found.isfinite().all() for found in inputs.solve(backend.impl).values())
