"""Few queries beside many keys, without gradients: Triton splits the keys over programs."""

import pytest
import torch

from sparse_attn.kernels import triton
from sparse_attn.kernels.inputs import AttentionInputs

from .backends import CUDA, TRITON, each, on
from .problems import SETTINGS, SOLVERS, Inputs, Problem, largest_score

FEW = {"batch": 1, "heads": 1, "kv_heads": 1, "queries": 1, "keys": 2100}
CASES = [
    *(Problem(name, params, **FEW) for name, params in SETTINGS),
    *(Problem(name, params, **{**FEW, "heads": 2, "queries": 3}, mask="B1QK", sink=0.5)
      for name, params in SOLVERS),
    Problem("sparsemax", {}, **FEW, bias="11K", options={"softcap": 4.0}),
    Problem("entmax", {"alpha": 1.5}, **{**FEW, "batch": 2}, key_lengths=(0, 1100)),
    Problem("r-softmax", {"r": 0.3125}, **{**FEW, "queries": 16}, options={"causal": True}),
    Problem("sigsoftmax", {}, **FEW, dim=80, layout="transposed", options={"window": 64}),
]  # fmt: skip


def decode(case, impl, computed=torch.float32, device="cpu"):
    with torch.no_grad():
        return Inputs(case, torch.float32, computed, device).attend(impl)


@on(CASES, [*(Problem(*s, **FEW) for s in SOLVERS), *CASES[len(SETTINGS) :]])
def test_output_is_within_budget(backend, case):
    """Twice the error of the reference, and a few roundings of what its scores stand for."""
    got = decode(case, backend.impl, device=backend.device).cpu().double()
    truth = decode(case, "reference", torch.float64)
    own = (decode(case, "reference").double() - truth).abs().max()
    eps = torch.finfo(torch.float32).eps
    allowed = 2 * own + (4 + 2 * largest_score(case, torch.float32)) * eps * max(1, truth.max())
    assert got.isfinite().all()
    assert (got - truth).abs().max() <= allowed


@each(TRITON, CUDA)
@pytest.mark.parametrize(
    ("changed", "split"),
    [({}, True), ({"keys": 2047}, False), ({"queries": 17}, False), ({"heads": 512}, False)],
    ids=str,
)
def test_the_keys_of_few_queries_are_split(backend, changed, split):
    inputs = Inputs(Problem("softmax", **{**FEW, "dim": 16, **changed, "kv_heads": 1}))
    with torch.no_grad():
        given = AttentionInputs(inputs.query, inputs.key, inputs.value, inputs.mapping)
    planned = triton.plan.plan(given.for_operator(), False, False)
    assert (planned.split is not None) == split
    assert triton.plan.plan(given.for_operator(), True, False).split is None
