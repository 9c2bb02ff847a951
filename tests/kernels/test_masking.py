"""What takes no part leaks nothing, and NaN shows in its own rows only."""

from dataclasses import replace

import pytest
import torch

from sparse_attn.kernels.inputs import AttentionInputs

from .backends import CPU, TRITON, each, over
from .problems import COMPETING, DISTRIBUTIONS, LEARNED, SETTINGS, SOLVERS, Inputs, Problem

PARAMETERS = sorted({(name, parameter) for name, params in LEARNED for parameter in params})
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
def test_counted_keys_are_those_of_the_mask(case):
    inputs = Inputs(case)
    tensors, given = (inputs.query, inputs.key, inputs.value), inputs.arguments
    masks = [given.pop("mask", None)]
    masks += [mask.expand(case.named("BHQK")) for mask in masks if mask is not None]
    for mask in masks:
        made = AttentionInputs(*tensors, inputs.mapping, mask=mask, **given)
        valid = torch.ones(made.shape, dtype=torch.bool)
        if (counted := made.counted()) is not None:
            valid = valid & counted
        assert torch.equal(made._number().expand(valid.shape[:-1]), valid.sum(-1))


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


@pytest.mark.parametrize(
    ("hidden", "junk"),
    # not NaN under a mask: 0 times NaN is NaN in the reference too
    [("key_lengths", (torch.nan, torch.inf, 1e30)), ("mask", (1e30,))],
    ids=["key_lengths", "mask"],
)
@over("name params", SETTINGS, SOLVERS)
def test_hidden_keys_change_nothing(backend, name, params, hidden, junk):
    """Junk in some keys and values of the first sequence leaves every other bit as it was."""
    inputs = backend.inputs(Problem(name, params, queries=5, keys=9, dim=16))
    lengths = torch.tensor([3, 9], device=backend.device)
    mask = torch.arange(9, device=backend.device) < lengths[:, None]
    changed = {"mask": mask[:, None, None]} if hidden == "mask" else {"key_lengths": lengths}
    clean = inputs.solve(backend.impl, **changed)
    with torch.no_grad():
        for n, found in enumerate(junk):
            inputs.key[0, :, 3 + n :] = inputs.value[0, :, 3 + n :] = found
    dirty = inputs.solve(backend.impl, **changed)
    for leaf, value in clean.items():
        assert value.isfinite().all(), leaf
        assert torch.equal(dirty[leaf], value), leaf
        if leaf in ("dkey", "dvalue"):
            assert (value[0, :, 3:] == 0).all(), leaf


@each()
@pytest.mark.parametrize("name", ["softmax", "r-softmax", "sparsemax"])
def test_a_cache_that_is_not_full_is_not_read(backend, name):
    """Also where Triton splits the keys of one query."""
    size = {"batch": 1, "heads": 1, "kv_heads": 1, "queries": 1, "keys": 2100}
    inputs = backend.inputs(Problem(name, **size, key_lengths=(100,)))
    with torch.no_grad():
        expected = inputs.attend(backend.impl)
        inputs.key[:, :, 100:] = inputs.value[:, :, 100:] = torch.nan
        assert torch.equal(inputs.attend(backend.impl), expected)


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


@pytest.mark.parametrize(("name", "params"), SETTINGS)
def test_the_reference_shows_a_spoiled_value_under_a_mask(name, params):
    """As eager attention: a weight of 0 times NaN is NaN."""
    inputs = Inputs(Problem(name, params, queries=5, keys=9, dim=16))
    with torch.no_grad():
        inputs.value[0, 0, 4] = torch.tensor([torch.nan, torch.inf]).repeat(8)
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
    inputs = backend.inputs(Problem(name, params, queries=5, keys=9, dim=16))
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


@pytest.mark.parametrize("junk", [torch.nan, torch.inf])
@pytest.mark.parametrize(
    ("name", "queries", "keys"),
    [
        # Triton skips tiles without support; one with NaN has no support that compares
        *((name, 3, 1100) for name in ("sparsemax", "entmax", "sparsegen")),
        # and it splits the keys of few queries over programs
        *((name, 2, 2100) for name in ("softmax", "r-softmax", "threshold-softmax", "max-gap",
                                       "sparsemax", "relu", "normalized-relu")),
    ],
)  # fmt: skip
@each()
def test_a_spoiled_query_beside_many_keys(backend, name, queries, keys, junk):
    size = {"batch": 1, "heads": 1, "kv_heads": 1, "queries": queries, "keys": keys}
    inputs = backend.inputs(Problem(name, **size, dim=16))
    with torch.no_grad():
        clean = inputs.attend(backend.impl)
        inputs.query[:, :, 1] = junk
        dirty = inputs.attend(backend.impl)
    assert dirty[:, :, 1].isnan().all()
    clean[:, :, 1] = dirty[:, :, 1] = 0
    torch.testing.assert_close(dirty, clean, rtol=1e-6, atol=1e-6)


@over("name params", SETTINGS, SOLVERS)
def test_a_spoiled_query_without_keys_gives_zeros(backend, name, params):
    case = Problem(name, params, queries=3, keys=5, dim=16, key_lengths=(0, 5))
    inputs = backend.inputs(case)
    with torch.no_grad():
        inputs.query[0] = torch.nan
        assert (inputs.attend(backend.impl)[0] == 0).all()


@pytest.mark.parametrize(("name", "parameter"), PARAMETERS)
@each(CPU, TRITON)
def test_a_parameter_that_is_nan_gives_nan(backend, name, parameter):
    inputs = backend.inputs(Problem(name, dict(LEARNED)[name], learn=parameter, dim=16))
    with torch.no_grad():
        getattr(inputs.mapping, f"raw_{parameter}").fill_(torch.nan)
    assert inputs.attend(backend.impl).isnan().all()


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


@over("name params", COMPETING, SOLVERS[:6])
def test_an_infinite_sink_is_the_largest_number(backend, name, params):
    """One of the mapping cannot be set to it, but may diverge to it."""
    case = Problem(name, params, queries=5, keys=9, dim=16)
    inputs = backend.inputs(case)
    sinks = torch.tensor([torch.inf, -torch.inf], device=backend.device)
    got, expected = (inputs.solve(impl, sink=sinks) for impl in (backend.impl, "reference"))
    assert got["output"].isfinite().all()
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4)
