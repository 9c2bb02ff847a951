"""Tiles of the CPU kernels whose rows are mostly zero: found, kept, and equal to the reference."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from sparse_attn.kernels import cpu
from sparse_attn.kernels.dropout import scale_of
from sparse_attn.kernels.inputs import AttentionInputs

from .problems import Inputs, Problem, assert_equal_to_rounding, assert_within_budget

FEW = [
    ("normalized-relu", {}),
    ("t-softmax", {"t": 1.0}),
    ("r-softmax", {"r": 0.9375}),
    ("sparsemax", {}),
    ("sparsegen", {"lam": 0.25}),
    ("entmax", {"alpha": 1.5}),
    ("entmax", {"alpha": 1.25}),
    ("top-p-softmax", {"p": 0.5}),
    ("threshold-softmax", {"lam": 0.0625}),
    ("max-gap", {"a": 8.0}),
]
PLAIN = Problem("sparsemax", queries=130, keys=150, dim=16, value_dim=24, spread=9.0)
CHANGES = [
    {},
    {"options": {"causal": True}},
    {"options": {"window": 60}},
    {"heads": 6, "layout": "transposed"},
    {"mask": "BHQK", "key_lengths": (40, 150)},
    {"bias": "BHQK", "bias_learned": True},
    {"bias": "1H1K", "bias_learned": True, "bias_masks": True},
    {"sink": 1.0},
    {"dim": 80, "value_dim": 7},
    {"queries": 1, "heads": 4},
    {"queries": 1, "sink": 1.0, "dim": 32, "value_dim": 32, "layout": "sliced"},
]
LEARNED = [("t-softmax", "t"), ("r-softmax", "r"), ("sparsegen", "lam"), ("entmax", "alpha")]


def of(name: str, params: dict, **changes: object) -> Problem:
    made = replace(PLAIN, mapping=name, params=params, **changes)
    if name != "normalized-relu":
        return made
    # few scores are positive then
    return replace(made, bias=None, options={**made.options, "bias": torch.tensor([-12.0])})


def cases() -> Iterator[Problem]:
    for name, params in FEW:
        yield from (of(name, params, **changes) for changes in CHANGES if "bias" not in changes)
    for name, params in FEW[1:]:
        yield from (of(name, params, **changes) for changes in CHANGES if "bias" in changes)
    for name, learned in LEARNED:
        params = next(p for n, p in FEW if n == name)
        yield of(name, params, learn=learned, per_head=True, sink=0.5)


@pytest.mark.parametrize("case", list(cases()), ids=str)
def test_equal_to_the_reference(case: Problem) -> None:
    assert_equal_to_rounding(case, "cpu", 1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", [of(n, p) for n, p in FEW], ids=str)
def test_as_exact_as_the_reference(case: Problem, dtype: torch.dtype) -> None:
    assert_within_budget(case, "cpu", dtype, "cpu")


def found(case: Problem, *, keep: bool = True) -> tuple[Inputs, Tensor, Tensor]:
    """The inputs, start, size and valid keys of each row, and the columns."""
    inputs = Inputs(case)
    call = AttentionInputs(
        inputs.query, inputs.key, inputs.value, inputs.mapping, **inputs.arguments
    )
    _, _, rows, columns, *_ = cpu._forward(*call.for_operator(), None, None, False, True, keep)
    return inputs, rows, columns


@pytest.mark.parametrize(("name", "params"), FEW)
def test_the_support_is_found(name: str, params: dict) -> None:
    """r-softmax has a slope at the largest score without a share, too."""
    inputs, rows, columns = found(of(name, params, value_dim=150))
    unit = torch.eye(150).expand(2, 2, 150, 150)
    inputs.value = unit
    p = inputs.attend("reference")
    starts, sizes, valid = rows[..., :3].unbind(-1)
    tried = sizes >= 0
    assert tried.float().mean() > 0.5, "hardly any tile is sparse"
    assert (valid[tried] == 150).all() or "bias" in inputs.arguments
    for where in tried.nonzero().tolist():
        start, size = starts[*where], sizes[*where]
        kept = columns[start : start + size]
        support = p[*where].nonzero().squeeze(-1)
        assert set(support.tolist()) <= set(kept.tolist())
        assert len(kept) <= len(support) + (name == "r-softmax")
        assert (kept.diff() > 0).all()


def test_what_is_kept_is_bounded() -> None:
    """By twice what the inputs take; the tiles beyond are computed again."""
    case = replace(PLAIN, mapping="r-softmax", params={"r": 0.875}, keys=600, dim=4, value_dim=4)
    _, rows, columns = found(case)
    assert 0 < len(columns) <= 2 * (16 + 16) * rows[..., 0].numel()
    assert (rows[..., 1] < 0).any()
    assert_equal_to_rounding(case, "cpu", 1e-11)


def test_dense_tiles_keep_nothing() -> None:
    for name, params in (("softmax", {}), ("r-softmax", {"r": 0.5}), ("t-softmax", {"t": 50.0})):
        _, rows, columns = found(of(name, params))
        assert len(columns) == 0
        assert (rows[..., 1] == -1).all()


@pytest.mark.parametrize(("name", "params"), FEW)
def test_dropout_falls_on_the_weights_that_softmax_drops(name: str, params: dict) -> None:
    """A function of row and column alone, whatever else is computed of the row."""
    inputs = Inputs(of(name, params), torch.float64, torch.float64)
    dense = Inputs(replace(PLAIN, mapping="softmax", spread=0.1), torch.float64, torch.float64)
    value, unit = inputs.value, torch.eye(150).double().expand(2, 2, 150, 150)
    dense.value = inputs.value = unit
    torch.manual_seed(3)
    keep = scale_of(0.2) * (dense.attend("cpu", dropout=0.2) > 0).double()
    weights = inputs.attend("reference") * keep
    inputs.value = value
    torch.manual_seed(3)
    got = inputs.solve("cpu", dropout=0.2)
    out = weights @ value
    torch.testing.assert_close(got["output"], out.detach(), rtol=0, atol=1e-12)
    expected = torch.autograd.grad(out, list(inputs.leaves.values()), inputs.grad)
    for leaf, gradient in zip(inputs.leaves, expected, strict=True):
        torch.testing.assert_close(got[f"d{leaf}"], gradient, rtol=0, atol=1e-10)


LONG = Problem("softmax", queries=300, keys=420, dim=16, value_dim=24)
SHARES = [
    ("softmax", {}, ""),
    ("sigsoftmax", {}, ""),
    ("softmax-abs", {}, ""),
    ("taylor-softmax", {}, ""),
    ("spherical-softmax", {"eps": 0.5}, "eps"),
    ("normalized-relu", {}, ""),
    ("normalized-sigmoid", {}, ""),
    ("t-softmax", {"t": 20.0}, "t"),
    ("r-softmax", {"r": 0.15}, "r"),
    ("top-p-softmax", {"p": 0.9}, ""),
    ("threshold-softmax", {"lam": 0.0001}, ""),
    ("max-gap", {"a": 0.01}, ""),
    ("sigmoid", {}, ""),
    ("relu", {}, ""),
]
BLOCKS = [
    {},
    {"options": {"causal": True}, "heads": 6},
    {"options": {"window": 60, "softcap": 4.0}},
    {"mask": "BHQK", "key_lengths": (290, 420), "bias": "BHQK", "bias_learned": True},
]
SINKS = [
    {"sink": 1.0, "options": {"causal": True}},
    # the window of a later query holds padding alone, in a block with queries that have keys
    {"sink": 1.0, "options": {"window": 30}, "key_lengths": (140, 139)},
]


@pytest.mark.parametrize("changes", [*BLOCKS, *SINKS], ids=str)
@pytest.mark.parametrize(("name", "params", "learned"), SHARES, ids=str)
def test_long_rows_have_gradients_by_blocks_of_keys(
    name: str, params: dict, learned: str, changes: dict
) -> None:
    if "sink" in changes and name in ("sigmoid", "relu"):
        pytest.skip("has no sink")
    case = replace(LONG, mapping=name, params=params, learn=learned or None, **changes)
    assert_equal_to_rounding(case, "cpu", 1e-10)


@pytest.mark.parametrize(
    "case",
    [*(of(*few, sink=0.5, options={"dropout": 0.25}) for few in FEW), LONG],
    ids=str,
)
def test_the_same_gradients_with_nothing_kept(case: Problem, monkeypatch) -> None:
    """As in a compiled graph."""
    torch.manual_seed(2)
    kept = Inputs(case).solve("cpu")
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    torch.manual_seed(2)
    again = Inputs(case).solve("cpu")
    torch.testing.assert_close(again, kept, rtol=0, atol=0)


@pytest.mark.parametrize("case", [PLAIN, LONG], ids=str)
def test_a_spoiled_row(case: Problem) -> None:
    inputs = Inputs(case)
    with torch.no_grad():
        clean = inputs.attend("cpu")
        inputs.query[1, 0, 3, 2] = torch.nan
        dirty = inputs.attend("cpu")
    assert dirty[1, 0, 3].isnan().all()
    clean[1, 0, 3] = dirty[1, 0, 3] = 0
    assert torch.equal(dirty, clean)
    gradients = inputs.solve("cpu")
    assert gradients["dkey"][1, 0].isnan().all()
    assert gradients["dkey"][0].isfinite().all()
    assert gradients["dquery"].isnan().any(-1).sum() == 1


def test_the_output_of_long_rows_can_be_changed_in_place() -> None:
    """What backward needs of it is a copy."""
    inputs, again = Inputs(LONG), Inputs(LONG)
    inputs.attend("cpu").mul_(2).sum().backward()
    (again.attend("cpu") * 2).sum().backward()
    torch.testing.assert_close(inputs.query.grad, again.query.grad, rtol=0, atol=0)
