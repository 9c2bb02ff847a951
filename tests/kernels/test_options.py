"""Masks, lengths, bias, softcap, causal, window: which keys count; others leak nothing."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from sparse_attn.kernels.inputs import AttentionInputs

from .backends import CPU, TRITON, each, on, over
from .problems import (
    COMPETING,
    DISTRIBUTIONS,
    SETTINGS,
    SOLVERS,
    Inputs,
    Problem,
    assert_equal_to_rounding,
    assert_within_budget,
    vary,
)

# Every shape that broadcasts to (batch, heads, queries, keys).
FOUR = ["".join(pick) for pick in itertools.product("B1", "H1", "Q1", "K1")]
SHAPES = [*FOUR, "HQK", "1QK", "H1K", "QK", "1K", "Q1", "K", "1", ""]
MANY = {"queries": 37, "keys": 45}


def options(name: str, params: dict, **size: int) -> list[Problem]:
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


COUNTED = [
    replace(plain, mask=mask, bias=bias, bias_masks=True, key_lengths=lengths, options=option)
    for size in ({"queries": 7, "keys": 5}, {"queries": 4, "keys": 9})
    for plain in [Problem("scaled-softmax", **size)]
    for mask, bias in ((None, None), ("B11K", None), ("K", "1H1K"), ("", "H1K"), ("1QK", "BHQ1"),
                       ("Q1", None), ("B111", None))
    for lengths in (None, (-1, 99))
    for option in ({}, {"causal": True}, {"window": 2}, {"causal": True, "window": 2**40})
]  # fmt: skip
COUNTED += [
    replace(case, batch=1, queries=9, keys=9, packed=(4, 0, 5), key_lengths=None)
    for case in COUNTED
    if case.key_lengths is None and case.queries == 7
]


@pytest.mark.parametrize("case", COUNTED, ids=str)
@pytest.mark.parametrize("expanded", [False, True])
def test_counted_keys_are_those_of_the_mask(case, expanded):
    inputs = Inputs(case)
    if expanded and "mask" in inputs.arguments:
        mask = inputs.arguments["mask"]
        inputs.arguments["mask"] = mask.expand(case.named("BHQK"))
    made = AttentionInputs(
        inputs.query, inputs.key, inputs.value, inputs.mapping, **inputs.arguments
    )
    valid = torch.ones(made.shape, dtype=torch.bool)
    if (counted := made.counted()) is not None:
        valid = valid & counted
    assert torch.equal(made._number().expand(valid.shape[:-1]), valid.sum(-1))


ALL = [case for name, params in SOLVERS for case in options(name, params, **MANY)]
T = ("t-softmax", {"t": 1.75})
ENTMAX = ("entmax", {"alpha": 1.5})
# of one sequence, one head, 7 queries and 11 keys
FEW = {"batch": 1, "heads": 1, "kv_heads": 1, "queries": 7, "keys": 11}
# rows that the Triton kernels keep on chip in several tiles, one search for each of the options
SEARCHES = [ENTMAX, ("r-softmax", {"r": 0.3125}), ("sparsehourglass", {"q": 0.5}),
            ("top-p-softmax", {"p": 0.90625})]  # fmt: skip
LONGER = {"batch": 1, "heads": 2, "kv_heads": 1, "dim": 16}
TILED = [
    *(case for i, search in enumerate(SEARCHES)
      for case in options(*search, queries=70, keys=200, **LONGER)[i::4]),
    *(case for i, search in enumerate(SEARCHES[1::2])
      for case in options(*search, queries=40, keys=300, **LONGER)[i::6]),
    # mostly padding, in two tiles, of which one is empty
    *(Problem(*search, queries=70, keys=100, key_lengths=(60,), **LONGER) for search in SEARCHES),
    *(Problem(*search, queries=150, keys=150, options={"causal": True}, **LONGER)
      for search in [("sparsemax", {}), *SEARCHES]),
    *(Problem(*search, queries=160, keys=160, packed=(20, 100, 40), **LONGER)
      for search in SEARCHES),
]  # fmt: skip
INTERPRETED = [
    *options("r-softmax", {"r": 0.3125}, **FEW),
    *options("sparsehourglass", {"q": 0.5}, **FEW)[::3],
    *options("sigsoftmax", {}, **FEW)[1::3],
    *options(*ENTMAX, **FEW)[2::3],
]


@pytest.mark.parametrize(
    "case",
    [
        *ALL,
        *(
            Problem(*setting, **fields)
            for setting in SETTINGS
            for fields in (
                {"mask": "BHQK", "key_lengths": (7, 20), "options": {"causal": True}},
                {"bias": "HQK", "bias_learned": True, "key_lengths": (7, 20),
                 "options": {} if setting[0].startswith("scaled-") else {"softcap": 3.0}},
            )
        ),
        *(
            Problem(*T, bias=shape, bias_learned=True, bias_masks=masks)
            for shape in SHAPES
            for masks in (False, True)
        ),
    ],
    ids=str,
)  # fmt: skip
def test_float64_on_the_cpu_equals_the_reference(case):
    """With the gradient of a bias, whatever its shape."""
    assert_equal_to_rounding(case, "cpu")


@on(
    [*ALL, *TILED, *vary(Problem(*T), mask=SHAPES), *vary(Problem(*ENTMAX), bias=SHAPES)],
    [
        *INTERPRETED,
        *TILED,
        *vary(Problem(*T, queries=3, keys=5), mask=SHAPES[::2]),
        *vary(Problem("sigsoftmax", {}, queries=3, keys=5), bias=SHAPES[1::2]),
    ],
)
def test_float32_is_within_budget(backend, case):
    assert_within_budget(case, backend.impl, torch.float32, backend.device)


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16, torch.float64])
@each()
def test_a_bias_of_another_dtype(backend, stored):
    """A float32 bias of learned positions beside half-precision states, and the reverse."""
    case = Problem("r-softmax", {"r": 0.3125}, batch=1, queries=5, keys=7, bias="HQK")
    inputs = Inputs(case, torch.bfloat16, torch.float32, backend.device)
    bias = inputs.arguments["bias"]
    expected = inputs.solve("reference")
    got = inputs.solve(backend.impl, bias=bias.to(stored))
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


@each(CPU, TRITON)
def test_key_lengths_of_any_stride(backend):
    inputs = backend.inputs(Problem("softmax", batch=4, queries=8, keys=8, dim=16))
    wide = torch.tensor([[3, 8], [5, 8], [2, 8], [7, 8]])
    for lengths in (wide[:, 0], torch.tensor([3]).expand(4)):
        got, want = (inputs.attend(i, key_lengths=lengths) for i in (backend.impl, "reference"))
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


@each(CPU, TRITON)
def test_a_window_longer_than_any_row(backend):
    inputs = backend.inputs(Problem("softmax", queries=8, keys=8, dim=16))
    for window in (2**31, 2**63 - 1):
        got = inputs.attend(backend.impl, window=window)
        torch.testing.assert_close(got, inputs.attend(backend.impl))


# What is masked


@each()
@pytest.mark.parametrize(("name", "params"), SOLVERS)
def test_queries_without_keys_give_zeros_and_no_gradient(backend, name, params):
    case = Problem(name, params, queries=5, keys=7)
    inputs = backend.inputs(case)
    mask = torch.ones(2, 1, 5, 7, dtype=torch.bool, device=backend.device)
    mask[0, 0, 3] = False
    mask[1] = False
    got = inputs.solve(backend.impl, mask=mask)
    assert (got["output"][0, :, 3] == 0).all()
    assert (got["output"][1] == 0).all()
    assert (got["dquery"][0, :, 3] == 0).all()
    assert (got["output"][0, :, :3] != 0).any(-1).all()
    for leaf in ("dquery", "dkey", "dvalue"):
        assert (got[leaf][1] == 0).all(), leaf
        assert (got[leaf][0] != 0).any(), leaf


@each(CPU)
def test_numbers_of_numpy_are_numbers(backend):
    inputs = backend.inputs(Problem("softmax", queries=9, keys=9, dim=16))
    expected = inputs.attend(backend.impl, window=3, scale=0.5, softcap=4.0)
    numbers = {"window": np.int64(3), "scale": np.float32(0.5), "softcap": np.float32(4)}
    assert torch.equal(inputs.attend(backend.impl, **numbers, dropout=np.float32(0)), expected)


@pytest.mark.parametrize("junk", [torch.nan, torch.inf, 1e30])
@over("name params", SOLVERS, SOLVERS[1:4])
def test_keys_beyond_the_lengths_are_not_read(backend, name, params, junk):
    case = Problem(name, params, queries=5, keys=19, key_lengths=(3, 19), dim=16)
    assert_untouched(case, backend, junk, slice(3, None))


@over("name params", SETTINGS, SOLVERS)
def test_large_values_under_a_mask_change_nothing(backend, name, params):
    """Not NaN: 0 times NaN is NaN in the reference too."""
    case = Problem(name, params, queries=5, keys=9, dim=16)
    mask = torch.ones(2, 1, 1, 9, dtype=torch.bool, device=backend.device)
    mask[0, ..., 3:] = False
    assert_untouched(case, backend, 1e30, slice(3, None), mask=mask)


def assert_untouched(case, backend, junk, keys, **changed):
    """Junk in some keys and values of the first sequence leaves every other bit as it was."""
    inputs = backend.inputs(case)
    clean = inputs.solve(backend.impl, **changed)
    with torch.no_grad():
        inputs.key[0, :, keys] = junk
        inputs.value[0, :, keys] = junk
    dirty = inputs.solve(backend.impl, **changed)
    for name, value in clean.items():
        assert value.isfinite().all(), name
        assert torch.equal(dirty[name], value), name
        if name in ("dkey", "dvalue"):
            assert (value[0, :, keys] == 0).all(), name


@over("name params", SETTINGS, SOLVERS)
def test_nan_under_a_mask_stays_out_of_the_weights(backend, name, params):
    case = Problem(name, params, queries=5, keys=9, dim=16)
    inputs = backend.inputs(case)
    mask = torch.ones(9, dtype=torch.bool, device=backend.device)
    mask[4:6] = False
    with torch.no_grad():
        clean = inputs.attend(backend.impl, mask=mask)
        inputs.key[:, :, 4:6] = torch.nan
        assert torch.equal(inputs.attend(backend.impl, mask=mask), clean)


@pytest.mark.parametrize("junk", [torch.nan, torch.inf])
@pytest.mark.parametrize(("name", "params"), SETTINGS)
def test_the_reference_shows_a_spoiled_value_under_a_mask(name, params, junk):
    """As eager attention: a weight of 0 times NaN is NaN."""
    inputs = Inputs(Problem(name, params, queries=5, keys=9, dim=16))
    with torch.no_grad():
        inputs.value[0, 0, 4] = junk
        output = inputs.attend("reference", mask=torch.arange(9) != 4)
    spoiled = torch.zeros(output.shape[:2], dtype=torch.bool)
    spoiled[0, : output.shape[1] // inputs.value.shape[1]] = True
    assert torch.equal(output.isnan().all((2, 3)), spoiled)
    assert torch.equal(output.isfinite().all((2, 3)), ~spoiled)


@pytest.mark.parametrize("junk", [torch.nan, torch.inf])
@over("name params", SETTINGS, SOLVERS)
def test_a_spoiled_query_spoils_its_row_only(backend, name, params, junk):
    """A NaN shows: it is not taken for a masked key.

    The others are equal to rounding: a row takes part in the decision how its tile is computed.
    """
    case = Problem(name, params, queries=5, keys=9, dim=16)
    inputs = backend.inputs(case)
    with torch.no_grad():
        clean = inputs.attend(backend.impl)
        if junk == torch.inf:  # a score of +inf, without the NaN of inf - inf in q k^T
            bias = torch.zeros(2, 2, 5, 9, device=backend.device)
            bias[1, 0, 4, 2] = torch.inf
            dirty = inputs.attend(backend.impl, bias=bias)
        else:
            inputs.query[1, 0, 4, 2] = junk
            dirty = inputs.attend(backend.impl)
    assert dirty[1, 0, 4].isnan().all()
    clean[1, 0, 4] = dirty[1, 0, 4] = 0
    torch.testing.assert_close(dirty, clean, rtol=1e-6, atol=1e-6)


@over("name params", SETTINGS, SOLVERS)
def test_a_spoiled_query_without_keys_gives_zeros(backend, name, params):
    case = Problem(name, params, queries=3, keys=5, dim=16, key_lengths=(0, 5))
    inputs = backend.inputs(case)
    with torch.no_grad():
        inputs.query[0] = torch.nan
        assert (inputs.attend(backend.impl)[0] == 0).all()


@over("name params", DISTRIBUTIONS, SOLVERS[:6])
def test_one_valid_key_takes_everything(backend, name, params):
    """Weight 1 whatever the score; also where g of it is 0 or the temperature is."""
    case = Problem(name, params, queries=9, keys=9, dim=16)
    inputs = backend.inputs(case)
    mask = torch.eye(9, dtype=torch.bool, device=backend.device).roll(2, 1)
    got = inputs.solve(backend.impl, mask=mask)
    torch.testing.assert_close(got["output"], inputs.value.detach().roll(-2, 2), rtol=1e-6, atol=0)
    for leaf in ("dquery", "dkey"):
        torch.testing.assert_close(got[leaf], torch.zeros_like(got[leaf]), rtol=0, atol=2e-5)


@each()
def test_a_masked_run_equals_the_run_without_those_keys(backend):
    case = Problem("r-softmax", {"r": 0.3125}, queries=5, keys=19, dim=16)
    inputs = backend.inputs(case)
    keep = torch.tensor([0, 3, 4, 7, 8, 9, 15, 18], device=backend.device)
    mask = torch.zeros(19, dtype=torch.bool, device=backend.device)
    mask[keep] = True
    masked = inputs.solve(backend.impl, mask=mask)
    inputs.key = inputs.key.detach()[:, :, keep].requires_grad_()
    inputs.value = inputs.value.detach()[:, :, keep].requires_grad_()
    short = inputs.solve(backend.impl)
    masked["dkey"], masked["dvalue"] = masked["dkey"][:, :, keep], masked["dvalue"][:, :, keep]
    torch.testing.assert_close(masked, short, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("sink", [torch.inf, -torch.inf])
@over("name params", COMPETING, SOLVERS[:6])
def test_an_infinite_sink_is_the_largest_number(backend, name, params, sink):
    """One of the mapping cannot be set to it, but may diverge to it."""
    case = Problem(name, params, queries=5, keys=9, dim=16)
    inputs = backend.inputs(case)
    sinks = torch.tensor([sink, 0.5], device=backend.device)
    got, expected = (inputs.solve(impl, sink=sinks) for impl in (backend.impl, "reference"))
    assert got["output"].isfinite().all()
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4)
