"""The losses with their oracles, and batches to compare them on."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy
import pytest
import torch
from hypothesis import strategies as st

from sparse_attn import losses
from tests.losses import oracle

Z = [1.0, 0.2, -1.5, 0.7]
BOTH = [1.0, 0.0, 0.0, 1.0]
EPS = 0.0198


@dataclass(frozen=True)
class Case:
    """A loss, its oracle for one row, and what it asks of the target."""

    loss: Callable
    row: Callable
    parameters: dict = field(default_factory=dict)
    binary: bool = False  # labels are 0 or 1
    needs_labels: bool = False  # a row without labels is an error

    @property
    def slopes(self):
        """The parameters that a gradient reaches, away from the ends of their range."""
        ends = {"alpha": (1.0, 2.0), "r": (0.0, 1.0), "xi": (0.0,)}
        return [
            name
            for name, value in self.parameters.items()
            if isinstance(value, float) and value not in ends.get(name, ())
        ]

    def __call__(self, scores, target, **options):
        return self.loss(scores, target, **self.parameters, **options)

    def exact(self, scores, target, mask=None):
        return oracle.each_row(self.row, scores, target, mask, **self.parameters)


SPARSE = {
    "sparsemax": Case(losses.sparsemax_loss, oracle.sparsemax_loss),
    **{
        f"entmax {a}": Case(losses.entmax_loss, oracle.entmax_loss, {"alpha": a})
        for a in (1.0, 1.25, 1.5, 2.0)
    },
    **{
        f"sparsegen {lam}": Case(losses.sparsegen_hinge_loss, oracle.sparsegen_hinge, {"lam": lam})
        for lam in (0.0, 0.5, -2.0)
    },
    **{
        f"hourglass {q}": Case(losses.sparsehourglass_loss, oracle.sparsehourglass_hinge, {"q": q})
        for q in (0.5, 10.0)
    },
    **{
        f"r {r}": Case(losses.r_softmax_multilabel_loss, oracle.r_softmax_loss, {"r": r}, True)
        for r in (0.0, 0.25, 0.5, 0.9, 1.0)
    },
    **{
        f"t {t}": Case(losses.t_softmax_multilabel_loss, oracle.t_softmax_loss, {"t": t}, True)
        for t in (0.5, 3.0)
    },
}
DENSE = {
    **{
        name: Case(losses.mapping_nll, oracle.nll, {"mapping": name}, needs_labels=True)
        for name in ("softmax", "sigsoftmax", "taylor-softmax", "softmax-abs")
    },
    "spherical-softmax": Case(
        losses.mapping_nll,
        oracle.nll,
        {"mapping": "spherical-softmax", "eps": EPS},
        needs_labels=True,
    ),
    "squared error": Case(losses.squared_error, oracle.squared_error, needs_labels=True),
}
BOUCHARD = {
    f"bouchard {xi}": Case(losses.bouchard_loss, oracle.bouchard_loss, {"xi": xi}, False, True)
    for xi in ("shared", "per_class", 0.0, 1.5)
}
BOUCHARD["bouchard 0.8 at alpha"] = Case(
    losses.bouchard_loss, oracle.bouchard_loss, {"xi": 0.8, "alpha": 0.4}, needs_labels=True
)
CASES = SPARSE | DENSE | BOUCHARD
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
every_slope = pytest.mark.parametrize(
    ("name", "parameter"), [(name, p) for name, case in CASES.items() for p in case.slopes]
)


@dataclass(frozen=True)
class Batch:
    scores: torch.Tensor  # (..., n), float64
    target: torch.Tensor  # (...) classes or (..., n) weights
    mask: torch.Tensor | None

    @property
    def weights(self):
        """The target as label weights, (..., n)."""
        if self.target.shape == self.scores.shape:
            return self.target.double().numpy()
        return oracle.one_hot(self.target, self.scores.shape[-1])


@st.composite
def batches(draw, case):
    """Scores on a grid, so that ties are common; one label, several or weights; masks."""
    n = draw(st.integers(1, 7))
    rows = draw(st.sampled_from([(), (3,), (2, 2)]))
    rng = numpy.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scores = rng.integers(-320, 321, (*rows, n)) / draw(st.sampled_from([16, 64, 1024]))
    if draw(st.booleans()):
        scores = numpy.round(scores)
    mask = rng.random((*rows, n)) < 0.7 if draw(st.booleans()) else None
    valid = numpy.ones((*rows, n), dtype=bool) if mask is None else mask
    kind = draw(st.sampled_from(["class", "labels"] if case.binary else ["class", "labels", "eta"]))
    first = valid & (valid.cumsum(-1) == 1)
    if kind == "class":
        target = numpy.where(valid.any(-1), (rng.random((*rows, n)) * valid).argmax(-1), -100)
    elif kind == "labels":
        target = (rng.random((*rows, n)) < draw(st.sampled_from([0.0, 0.4, 1.0]))) & valid
        target = target | first if case.needs_labels else target
        target = target.astype(draw(st.sampled_from([bool, numpy.int64, numpy.float32])))
    else:
        target = rng.random((*rows, n)) * valid * (rng.random((*rows, n)) < 0.6)
        target = target + 0.1 * first
    return Batch(
        torch.tensor(scores), torch.tensor(target), None if mask is None else torch.tensor(mask)
    )


def assert_close(ours, exact, rtol=1e-9, atol=1e-9):
    """Fail unless the tensors, arrays or numbers are equal within the tolerance."""
    both = (x.detach().numpy() if isinstance(x, torch.Tensor) else x for x in (ours, exact))
    numpy.testing.assert_allclose(*both, rtol=rtol, atol=atol)


EXTREME = [
    [1e4, 0.0, -1e4, 5.0],
    [-1e4, -1e4, -1e4 + 1, -1e4 - 2],
    [1e4, 1e4, 1e4 - 0.5, 0.0],
    [1e8, -1e8, 0.0, 1e8],
    [1e8, 1e8, 1e8, 1e8],
    [-1e8, -1e8, -1e8, -1e8],
]

Row = st.lists(st.floats(-4, 4, width=32), min_size=4, max_size=4).map(
    lambda z: torch.tensor(z, dtype=torch.float64)
)
Eta = (
    st.lists(st.integers(0, 3), min_size=4, max_size=4)
    .filter(any)
    .map(lambda y: torch.tensor(y, dtype=torch.float64) / sum(y))
)
