"""What every loss promises of rows of scores that are extreme, with any labels."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sparse_attn import Mapping, losses
from sparse_attn.mappings import ParameterSpec, get_spec
from tests.fuzz.call import Call
from tests.fuzz.strategies import (
    DTYPES,
    FINITE,
    LAYOUTS,
    SPOILING,
    computed,
    examples,
    invertible,
    masks,
    parameters,
    same,
    tensors,
    unchanged,
)

SHAPES = ((1,), (5,), (2, 1), (3, 4), (0, 3), (2, 2, 3))
IGNORED = -100


@dataclass(frozen=True)
class Loss:
    """A loss, the parameters it takes, and what it asks of labels."""

    function: Callable[..., Tensor]
    parameters: tuple[ParameterSpec, ...] = ()
    fixed: dict[str, Any] = field(default_factory=dict)
    binary: bool = False
    needs_labels: bool = False
    largest: float = math.inf  # beyond it log g, or squares of scores, overflow: the loss is inf
    shifts: bool = False  # adds a parameter to the scores, which rounds them


def nll(name: str) -> Loss:
    # zeros come at the ends of a range
    ranges = tuple(replace(p, low_open=True, high_open=True) for p in get_spec(name).parameters)
    shifts = name == "sigsoftmax"
    fixed = {"mapping": name}
    return Loss(losses.mapping_nll, ranges, fixed, needs_labels=True, largest=1e30, shifts=shifts)


def bouchard(*ranges: ParameterSpec, **fixed: str) -> Loss:
    return Loss(losses.bouchard_loss, ranges, fixed, needs_labels=True, largest=1e18, shifts=True)


def parameter_of(name: str) -> tuple[ParameterSpec, ...]:
    return get_spec(name).parameters


XI = ParameterSpec("xi", 1.0, low=0.0, high=1e15, per_entry=True)
ALPHA = ParameterSpec("alpha", 0.0, low=-1e15, high=1e15)
DENSE = ("softmax", "sigsoftmax", "taylor-softmax", "spherical-softmax", "softmax-abs")
DENSE += ("normalized-sigmoid", "temperature-softmax", "mixed-sparsemax", "mixed-r-softmax")
LOSSES = {
    "sparsemax": Loss(losses.sparsemax_loss),
    "entmax": Loss(losses.entmax_loss, parameter_of("entmax")),
    "sparsegen": Loss(losses.sparsegen_hinge_loss, parameter_of("sparsegen")),
    "sparsehourglass": Loss(losses.sparsehourglass_loss, parameter_of("sparsehourglass")),
    "r-softmax": Loss(losses.r_softmax_multilabel_loss, parameter_of("r-softmax"), binary=True),
    "t-softmax": Loss(losses.t_softmax_multilabel_loss, parameter_of("t-softmax"), binary=True),
    "squared error": Loss(losses.squared_error, needs_labels=True),
    **{name: nll(name) for name in DENSE},
    "plif": Loss(
        losses.mapping_nll,
        (),
        {"mapping": Mapping("plif", knots=5)},
        needs_labels=True,
        largest=1e30,
    ),
    "bouchard shared": bouchard(xi="shared"),
    "bouchard per class": bouchard(xi="per_class"),
    "bouchard xi": bouchard(XI),
    "bouchard alpha": bouchard(ALPHA, xi="per_class"),
    "bouchard both": bouchard(XI, ALPHA),
}
each = pytest.mark.parametrize("name", LOSSES)


@dataclass
class Rows(Call):
    """A call of a loss."""

    loss: Loss
    target: Tensor

    def __call__(self, reduction: str = "none", **changed: Any) -> Tensor:
        return self.loss.function(
            **{**self.loss.fixed, **self.inputs, **changed},
            target=self.target,
            mask=self.mask,
            reduction=reduction,
        )

    @property
    def labels(self) -> Tensor:
        """(..., n), bool."""
        if self.target.shape == self.scores.shape:
            return self.target > 0
        return torch.arange(self.scores.shape[-1]) == self.target.unsqueeze(-1)

    @property
    def seen(self) -> Tensor:
        """(..., n), not masked."""
        everything = torch.ones_like(self.scores, dtype=torch.bool)
        return everything if self.mask is None else everything & self.mask

    @property
    def present(self) -> Tensor:
        """(..., n), neither masked nor infinite nor NaN."""
        return self.seen & self.scores.isfinite()

    @property
    def worked(self) -> Tensor:
        """(...), rows with a label."""
        return self.seen.any(-1) & self.labels.any(-1)

    @property
    def counted(self) -> Tensor:
        """(...), rows that a mean counts."""
        several = self.target.shape == self.scores.shape
        return self.seen.any(-1) & (several | self.labels.any(-1))

    @property
    def spoiled(self) -> Tensor:
        """(...), with NaN or +inf."""
        bad = self.scores.isnan() | (self.scores == math.inf)
        return (bad & self.seen).any(-1) & self.worked

    @property
    def impossible(self) -> Tensor:
        """(...), with a label at -inf."""
        return (self.labels & self.seen & (self.scores == -math.inf)).any(-1) & self.worked


@st.composite
def calls(
    draw: Any, loss: Loss, kinds: Sequence[str], dtypes: Sequence[torch.dtype] = DTYPES
) -> Rows:
    dtype, shape = draw(st.sampled_from(dtypes)), draw(st.sampled_from(SHAPES))
    scores, mask = draw(tensors(shape, dtype, kinds)), draw(masks(shape))
    target = draw(targets(loss, shape, mask))
    call = Rows({"scores": scores}, mask, loss, target)
    for parameter in loss.parameters:
        broadcasts_to = shape if parameter.per_entry else shape[:-1]
        call.inputs[parameter.name] = draw(parameters(parameter, broadcasts_to, computed(dtype)))
    return call


@st.composite
def targets(draw: Any, loss: Loss, shape: Sequence[int], mask: Tensor | None) -> Tensor:
    """Classes, sets of labels or weights, none of them under the mask."""
    seen = torch.ones(shape, dtype=torch.bool)
    seen = seen if mask is None else seen & mask
    values = {"labels": [0.0, 1.0], "weights": [0.0, 1e-30, 0.5, 3.0], "heavy": [0.0, 1e38, 3e38]}
    kind = draw(
        st.sampled_from(["class", "labels", *([] if loss.binary else ["weights", "heavy"])])
    )
    if kind == "class":
        rows = seen.reshape(-1, shape[-1])
        found = [
            draw(st.sampled_from([*row.nonzero().flatten().tolist(), IGNORED])) for row in rows
        ]
        return torch.tensor(found, dtype=torch.long).view(shape[:-1])
    n = math.prod(shape)
    drawn = draw(st.lists(st.sampled_from(values[kind]), min_size=n, max_size=n))
    target = torch.tensor(drawn).view(shape).masked_fill(~seen, 0.0)
    if loss.needs_labels:
        first = seen & (seen.cumsum(-1) == 1)
        target = target.where(target.any(-1, keepdim=True), first.float())
    dtypes = (torch.float32, *([torch.bool, torch.int64] if kind == "labels" else []))
    return target.to(draw(st.sampled_from(dtypes)))


@each
@given(data=st.data())
@examples(0.25)
def test_rules(name, data):
    call = data.draw(calls(LOSSES[name], FINITE + SPOILING))
    with unchanged(*call.tensors.values(), call.target):
        rows, gradients = call.solve()
    assert rows.shape == call.scores.shape[:-1]
    assert rows.dtype == computed(call.scores.dtype)
    assert (rows[~call.worked] == 0).all()
    assert rows[call.spoiled].isnan().all()
    good = ~call.spoiled
    assert not rows[good].isnan().any(), "NaN where none went in"
    assert (rows[call.impossible & good] == math.inf).all()
    size = call.scores.double().masked_fill(~call.present, 0.0).abs().amax(-1)
    rounding = 64 * torch.finfo(rows.dtype).eps * call.scores.shape[-1] * (1 + size)
    assert (rows >= -rounding)[good].all(), "negative"
    for n, gradient in gradients.items():
        assert gradient.shape == call.tensors[n].shape
        assert gradient.dtype == call.tensors[n].dtype
    by_scores = gradients["scores"]
    hidden = ~call.seen | ~(call.worked & good).unsqueeze(-1)
    assert (by_scores[~call.seen | (call.scores == -math.inf)] == 0).all()
    assert (by_scores[~call.worked] == 0).all()
    other, others = call.changed(scores=call.scores.masked_fill(hidden, 0.25)).solve()
    assert same(rows[good], other[good])
    assert same(by_scores[good], others["scores"][good])
    total = call("sum")
    assert same(total, rows.sum())
    assert same(call("mean"), rows.sum() / call.counted.sum())


@each
@given(data=st.data())
@examples(0.25)
def test_views_and_subsets(name, data):
    call = data.draw(calls(LOSSES[name], FINITE))
    call.check_views_and_subsets({"scores": data.draw(st.sampled_from(LAYOUTS))})


@each
@given(data=st.data())
@examples(0.25)
def test_float64_agrees(name, data):
    """Losses and gradients are finite where they fit, and the losses are those of float64."""
    call = data.draw(calls(LOSSES[name], FINITE, DTYPES[:3]))
    scores = call.scores.where(call.scores.abs() <= call.loss.largest, call.scores.sign())
    call = call.changed(scores=scores)
    rows, gradients = call.solve()
    exact, wanted = call.changed(**{n: a.double() for n, a in call.tensors.items()}).solve()
    assert not exact.isnan().any()
    fits = exact.abs() < torch.finfo(rows.dtype).max / 8
    assert rows[fits].isfinite().all(), "loss"
    # p jumps where t is subnormal
    if name not in ("r-softmax", "t-softmax", "mixed-r-softmax"):
        size = 1 + exact + scores.double().masked_fill(~call.present, 0.0).abs().amax(-1)
        if call.loss.shifts:
            shifts = [a for n, a in call.inputs.items() if n != "scores"]
            size += sum(torch.as_tensor(a).abs().sum().item() for a in shifts)
        assert ((rows.double() - exact).abs() <= 1e-5 * scores.shape[-1] * size)[fits].all()
    # a gradient of what is too large for the dtype is none
    for n, gradient in gradients.items() if fits[exact.isfinite()].all() else ():
        assert not wanted[n].isnan().any(), f"{n} in float64"
        fits = wanted[n].abs() < torch.finfo(gradient.dtype).max / 8
        if invertible(call.tensors[n]):
            assert gradient[fits].isfinite().all(), f"gradient of {n}"
