"""Dropout: its share, its scale, its seed, and the same mask in the backward pass."""

import math
import shutil

import pytest
import torch

from sparse_attn import Mapping
from sparse_attn.kernels import attention, dropout

from .backends import each, over
from .problems import SETTINGS, SOLVERS, Inputs, Problem

RATE = 0.375
SIZE = 32  # keys and head_dim are equal, so that unit vectors as values give the weights back
OPTIONS = [{}, {"causal": True}, {"key_lengths": (20, 32)}, {"window": 5}, {"mask": "BHQK"}]


def problem(name, params, **changed):
    # the ends of the ranges cannot be learned, nor what chooses keys by their share
    fixed = name in ("top-p-softmax", "threshold-softmax", "max-gap")
    fixed = fixed or next(iter(params.values()), 0.0) in (0.0, 1.0, 2.0, math.inf)
    learn = "" if fixed else next(iter(params))
    shape = {"heads": 2, "kv_heads": 1, "queries": 17, "keys": SIZE, "dim": SIZE}
    fields = {k: changed.pop(k) for k in ("mask", "key_lengths") if k in changed}
    return Problem(name, params, learn=learn, **shape, **fields, options=changed)


def dropped_weights(inputs, impl, **changed):
    """The weights after dropout."""
    unit = torch.eye(SIZE, device=inputs.device, dtype=inputs.computed)
    value, inputs.value = inputs.value, unit.expand_as(inputs.value)
    with torch.no_grad():
        weights = inputs.attend(impl, **changed)
    inputs.value = value
    return weights


def drop(inputs, impl, seed=5):
    torch.manual_seed(seed)
    return dropped_weights(inputs, impl, dropout=RATE)


@over(
    "name params options",
    [*((*s, o) for s in SOLVERS for o in OPTIONS), *((*s, {}) for s in SETTINGS)],
    [*((*SOLVERS[2], o) for o in OPTIONS[1:]), *((*s, {}) for s in SOLVERS)],
)
def test_gradients_are_those_of_the_dropped_weights(backend, name, params, options):
    """With the mask read off the output, everything is a formula in float64."""
    case = problem(name, params, **options)
    inputs = backend.inputs(case)
    weights = dropped_weights(inputs, backend.impl).double()
    kept = drop(inputs, backend.impl).double()
    alive = kept != 0
    torch.testing.assert_close(kept, alive * weights / (1 - RATE), rtol=1e-5, atol=1e-7)

    torch.manual_seed(5)
    got = inputs.solve(backend.impl, dropout=RATE)
    truth = Inputs(case, torch.float32, torch.float64, backend.device)
    unit = torch.eye(SIZE, dtype=torch.float64, device=backend.device)
    p = attention(
        truth.query, truth.key, unit.expand_as(truth.value), truth.mapping, impl="reference",
        **truth.arguments,
    )  # fmt: skip
    value = truth.value.repeat_interleave(case.heads // case.kv_heads, 1)
    output = (p * alive / (1 - RATE)) @ value
    leaves = truth.leaves
    wanted = torch.autograd.grad(output, list(leaves.values()), truth.grad)
    torch.testing.assert_close(got["output"].double(), output, rtol=1e-4, atol=1e-5)
    for leaf, gradient in zip(leaves, wanted, strict=True):
        scale = gradient.abs().max().item()
        torch.testing.assert_close(
            got[f"d{leaf}"].double(), gradient.double(), rtol=1e-4, atol=1e-4 * max(1.0, scale)
        )


def uniform(backend, batch=2, heads=3, kv_heads=3, queries=40, keys=64, **options):
    """Which of equal weights are kept, (batch, heads, queries, keys)."""
    query = torch.zeros(batch, heads, queries, keys, device=backend.device)
    unit = torch.eye(keys, device=backend.device).expand(batch, kv_heads, keys, keys)
    return attention(
        query, unit, unit, Mapping("softmax"), dropout=RATE, impl=backend.impl, **options
    )


@each()
def test_share_and_scale(backend):
    kept = uniform(backend)
    scaled = torch.tensor(1 / 64 / (1 - RATE), device=backend.device)
    assert ((kept == 0) | ((kept - scaled).abs() < 1e-6)).all()
    alive = (kept != 0).double()
    # four standard errors of a share of independent draws
    for part, draws in ((alive.mean(), alive.numel()), (alive[1, 2].mean(), 40 * 64)):
        assert (part - (1 - RATE)).abs() < 4 * math.sqrt(RATE * (1 - RATE) / draws)
    per_row, per_key = alive.mean(-1), alive.mean((0, 1, 2))
    assert (per_row - (1 - RATE)).abs().max() < 5 * math.sqrt(RATE * (1 - RATE) / 64)
    assert (per_key - (1 - RATE)).abs().max() < 5 * math.sqrt(RATE * (1 - RATE) / 240)


@pytest.mark.parametrize(
    "case",
    [
        Problem("softmax", queries=37, keys=53),
        Problem("sparsemax", queries=70, keys=150, options={"causal": True}),
        Problem("r-softmax", {"r": 0.25}, batch=1, queries=70, keys=300, key_lengths=(260,)),
        Problem("entmax", {"alpha": 1.5}, heads=4, batch=3, queries=1, keys=9),
        Problem("r-softmax", {"r": 0.25}, batch=1, queries=40, keys=40, packed=(7, 0, 1, 32)),
    ],
    ids=str,
)
@each()
def test_all_implementations_draw_the_same(backend, case):
    """A layer that is recomputed may run another one, as where weights are asked for."""
    inputs = backend.inputs(case)
    found = []
    for impl in (backend.impl, "reference"):
        torch.manual_seed(5)
        found.append(inputs.solve(impl, dropout=RATE))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.*is deprecated:DeprecationWarning")
@pytest.mark.skipif(shutil.which("c++") is None, reason="inductor needs a C++ compiler")
def test_compiled_masks_are_the_same(fresh_compiler):
    """Compiled C++ takes a signed overflow for impossible."""
    compiled = torch.compile(dropout.kept)
    for seed in (torch.randint(2**62, (1,)) for _ in range(3)):
        expected = dropout.kept(seed, RATE, (2, 3, 5, 7))
        assert torch.equal(compiled(seed, RATE, (2, 3, 5, 7)), expected)


@each()
def test_masks_of_sequences_heads_rows_and_keys_are_independent(backend):
    """Also the heads that share a key head, and neighbours: no correlation beyond chance."""
    alive = (uniform(backend, batch=2, heads=4, kv_heads=2) != 0).double() - (1 - RATE)
    chance = RATE * (1 - RATE)

    def correlation(a, b):
        return (a * b).mean() / chance, 5 / math.sqrt(a.numel())

    heads = [alive[b, h] for b in range(2) for h in range(4)]
    pairs = [(a, b) for i, a in enumerate(heads) for b in heads[:i]]
    pairs += [(alive[:, :, k:], alive[:, :, :-k]) for k in (1, 2, 16, 32)]
    pairs += [(alive[..., k:], alive[..., :-k]) for k in (1, 2, 4, 16, 32)]
    pairs += [(h[:, :40], h[:, :40].T) for h in heads]
    for a, b in pairs:
        found, limit = correlation(a, b)
        assert found.abs() < limit


@each()
def test_the_seed_decides(backend):
    """The same seed gives the same masks; neighbouring seeds give unrelated ones."""
    masks = []
    for seed in range(4):
        torch.manual_seed(seed)
        masks.append((uniform(backend, batch=1) != 0).double() - (1 - RATE))
        masks.append((uniform(backend, batch=1) != 0).double() - (1 - RATE))
    for i, a in enumerate(masks):
        for b in masks[:i]:
            share = (a * b).mean() / (RATE * (1 - RATE))
            assert share.abs() < 5 / math.sqrt(a.numel())
    torch.manual_seed(3)
    assert torch.equal((uniform(backend, batch=1) != 0).double() - (1 - RATE), masks[-2])


@pytest.mark.slow
@each()
def test_the_mean_over_seeds_is_the_output_without_dropout(backend):
    case = Problem("r-softmax", {"r": 0.3125}, batch=1, heads=1, kv_heads=1, queries=4, keys=16)
    inputs = backend.inputs(case)
    with torch.no_grad():
        expected = inputs.attend(backend.impl)
        runs = torch.stack([inputs.attend(backend.impl, dropout=RATE) for _ in range(60)])
    error = (runs.mean(0) - expected).abs() / (runs.std(0) / math.sqrt(60) + 1e-6)
    assert error.max() < 5


@each()
def test_no_dropout_draws_nothing(backend):
    """A model in evaluation leaves the stream of random numbers alone."""
    inputs = backend.inputs(Problem("sparsemax"))
    before = torch.get_rng_state()
    first = inputs.attend(backend.impl)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(inputs.attend(backend.impl, dropout=0.0), first)


@each()
@pytest.mark.parametrize("rate", [1e-6, 0.999])
def test_extreme_rates(backend, rate):
    inputs = backend.inputs(problem("softmax", {}))
    kept = dropped_weights(inputs, backend.impl, dropout=rate)
    share = (kept != 0).double().mean()
    assert abs(share - (1 - rate)) < 0.01
    assert all(
        value.isfinite().all() for value in inputs.solve(backend.impl, dropout=rate).values()
    )


@each()
def test_dropout_repeats_under_checkpointing(backend):
    """The forward pass runs twice, with the state of the generator brought back.

    That is the generator of the devices of the checkpointed function's arguments: PyTorch would
    not bring back a GPU's for a function without tensors, for its own dropout neither.
    """
    from torch.utils.checkpoint import checkpoint

    inputs = backend.inputs(problem("sparsemax", {}))

    def attend(query, key, value):
        return attention(query, key, value, inputs.mapping, dropout=RATE, impl=backend.impl)

    torch.manual_seed(2)
    expected = inputs.solve(backend.impl, dropout=RATE)
    torch.manual_seed(2)
    output = checkpoint(attend, inputs.query, inputs.key, inputs.value, use_reentrant=False)
    gradients = torch.autograd.grad(output, list(inputs.leaves.values()), inputs.grad)
    for name, gradient in zip(inputs.leaves, gradients, strict=True):
        assert torch.equal(gradient, expected[f"d{name}"]), name
