"""Packed sequences, `cu_seqlens`: each is attended to as if it were alone."""

import itertools
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from sparse_attn import Mapping
from sparse_attn.kernels import attention
from sparse_attn.kernels.dispatch import run
from sparse_attn.kernels.inputs import AttentionInputs

from .backends import on
from .problems import (
    COMPETING,
    LEARNED,
    SETTINGS,
    SOLVERS,
    Inputs,
    Problem,
    assert_close,
    assert_within_budget,
    vary,
)

# short enough to be read in place, empty, longer than a tile, of no whole number of vectors
LENGTHS = (7, 0, 1, 110, 3, 19)
SHORT = (5, 2, 0, 9)


def packed(name, params, lengths=SHORT, **fields):
    size = {"batch": 1, "queries": sum(lengths), "keys": sum(lengths), "packed": lengths}
    return Problem(name, params, **size, **fields)


def options(name, params, lengths=SHORT):
    plain = packed(name, params, lengths)
    return [
        *vary(plain, options=[{"causal": True}, {"window": 3}, {"causal": True, "window": 2},
                              {"dropout": 0.0, "scale": 0.5}]),
        *vary(plain, mask=["BHQK", "B11K", "QK", "Q1"], layout=["transposed", "every-second"]),
        replace(plain, heads=4, value_dim=24, layout="sliced"),
        replace(plain, mask="1HQK", bias="HQK", bias_masks=True, options={"causal": True}),
    ]  # fmt: skip


BIASES = [
    packed("t-softmax", {"t": 1.75}, bias=shape, bias_learned=True, heads=4)
    for shape in ("1HQK", "QK", "1K", "Q1", "H11", "K", "1")
]
CASES = [
    *(packed(*setting) for setting in SETTINGS),
    *(packed(*setting, LENGTHS, options={"causal": True}) for setting in SETTINGS),
    *(packed(*setting, sink=0.5) for setting in COMPETING),
    *(packed(*s, learn=next(iter(s[1])), per_head=True) for s in LEARNED),
    *(case for setting in SOLVERS for case in options(*setting)),
    *vary(packed("entmax", {"alpha": 1.5}), options=[{"softcap": 2.0}], packed=[(16,)]),
    *BIASES,
]  # fmt: skip

# blocks of queries and tiles of keys that several sequences share, or one has for itself
TILED = (70, 3, 0, 199)
INTERPRETED = [
    *(packed(*setting, heads=1, kv_heads=1) for setting in SOLVERS),
    *(packed(*setting, TILED, heads=1, kv_heads=1) for setting in SOLVERS[2:6]),
    packed("sparsemax", {}, TILED, heads=1, kv_heads=1, options={"causal": True}),
    packed("sparsemax", {}, TILED, heads=1, kv_heads=1, mask="1HQK", sink=0.5),
    packed("softmax", {}, TILED, heads=2, kv_heads=1, options={"window": 80}),
]


def alone(inputs: Inputs) -> dict[str, Tensor]:
    """As `Inputs.solve` by the reference, each sequence in a call of its own."""
    given = dict(inputs.arguments)
    ends = given.pop("cu_seqlens").tolist()
    outputs = []
    for start, end in itertools.pairwise(ends):
        rows = slice(start, end)
        own = {**given}
        for name in ("mask", "bias"):
            if name in given:
                whole = given[name].expand(1, inputs.query.shape[1], ends[-1], ends[-1])
                own[name] = whole[..., rows, rows]
        tensors = (t[:, :, rows] for t in (inputs.query, inputs.key, inputs.value))
        outputs.append(attention(*tensors, inputs.mapping, impl="reference", **own))
    output = torch.cat(outputs, dim=2)
    leaves = inputs.leaves
    gradients = torch.autograd.grad(output, list(leaves.values()), inputs.grad)
    return {"output": output, **dict(zip((f"d{n}" for n in leaves), gradients, strict=True))}


@pytest.mark.parametrize("impl", ["cpu", "reference"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_sequence_is_computed_alone(case, impl):
    inputs = Inputs(case, torch.float64, torch.float64)
    assert_close(inputs.solve(impl), alone(inputs))


# Triton has no gradient to a bias, and takes values of the head_dim of queries
@on([case for case in CASES if not (case.bias_learned or case.value_dim)], INTERPRETED)
def test_float32_is_within_budget(backend, case):
    assert_within_budget(case, backend.impl, torch.float32, backend.device)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@on([packed(*setting, LENGTHS) for setting in SOLVERS])
def test_half_precision_is_within_budget(backend, case, dtype):
    assert_within_budget(case, backend.impl, dtype, backend.device)


@pytest.mark.parametrize("impl", ["cpu", "reference"])
def test_boundaries_matter(impl):
    inputs = Inputs(packed("softmax", {}, LENGTHS))
    own = inputs.attend(impl)
    whole = torch.tensor([0, sum(LENGTHS)])
    joined = inputs.attend(impl, cu_seqlens=whole)
    assert (own - joined).abs().amax((0, 1, 3)).gt(1e-2).float().mean() > 0.9
    torch.testing.assert_close(joined, inputs.attend(impl, cu_seqlens=None), rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
def test_boundaries_of_any_stride_and_type(kind):
    inputs = Inputs(packed("r-softmax", {"r": 0.25}))
    expected = inputs.attend("cpu")
    given = inputs.arguments["cu_seqlens"].to(kind).repeat_interleave(2)[::2]
    assert torch.equal(inputs.attend("cpu", cu_seqlens=given), expected)
    assert torch.equal(inputs.attend(None, cu_seqlens=given), expected)


def test_a_spoiled_sequence_spoils_no_other():
    inputs = Inputs(packed("sparsemax", {}))
    expected = inputs.solve("cpu")
    with torch.no_grad():
        for leaf in (inputs.query, inputs.key, inputs.value):
            leaf[:, :, 3] = torch.nan
    got = inputs.solve("cpu")
    for name in expected:
        assert got[name][:, :, : SHORT[0]].isnan().any()
        assert torch.equal(got[name][:, :, SHORT[0] :], expected[name][:, :, SHORT[0] :])


def test_dropout_is_one_mask_in_both_passes_and_another_in_each_sequence():
    lengths, rate = (32, 32, 32), 0.375
    inputs = Inputs(packed("softmax", {}, lengths, dim=96))
    unit = torch.eye(96).expand_as(inputs.value)
    weights = attention(inputs.query, inputs.key, unit, inputs.mapping, **inputs.arguments)

    def dropped(value):
        torch.manual_seed(5)
        return attention(
            inputs.query, inputs.key, value, inputs.mapping, dropout=rate, **inputs.arguments
        )

    kept = dropped(unit)
    torch.testing.assert_close(kept, (kept != 0) * weights / (1 - rate), rtol=1e-5, atol=1e-7)
    blocks = [kept[..., n : n + 32, n : n + 32] != 0 for n in (0, 32, 64)]
    for block, other in zip(blocks, blocks[1:] + blocks[:1], strict=True):
        assert abs(block.float().mean() - (1 - rate)) < 0.05
        assert (block == other).float().mean() < 0.7
    (gradient,) = torch.autograd.grad(dropped(inputs.value), inputs.value, inputs.grad)
    torch.testing.assert_close(gradient, kept.mT @ inputs.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "parameters"), SOLVERS)
def test_statistics_are_those_of_each_sequence(name, parameters):
    given = Inputs(packed(name, parameters, LENGTHS), torch.float64, torch.float64)
    tensors = given.query, given.key, given.value
    special = (torch.arange(sum(LENGTHS)) % 7 == 0)[None]
    call = AttentionInputs(
        *tensors, given.mapping, causal=True, need_statistics=True, special_keys=special,
        cu_seqlens=given.arguments["cu_seqlens"],
    )  # fmt: skip
    expected = []
    start = 0
    for length in LENGTHS:
        rows = slice(start, start := start + length)
        query, key, value = (t[:, :, rows] for t in tensors)
        own = replace(
            call, query=query, key=key, value=value, special_keys=special[:, rows], cu_seqlens=None
        )
        expected.append(run(own, "reference").statistics)
    for impl in ("cpu", "reference"):
        torch.testing.assert_close(run(call, impl).statistics, torch.cat(expected, dim=2))


def test_no_tokens():
    empty = torch.zeros(1, 2, 0, 8, requires_grad=True)
    for impl in ("cpu", "reference"):
        output = attention(
            empty, empty, empty, Mapping("softmax"), cu_seqlens=torch.tensor([0, 0, 0]), impl=impl
        )
        output.sum().backward()
        assert output.shape == empty.shape
