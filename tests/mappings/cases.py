"""The table of mappings that the tests run over, and how to call each one."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from sparse_attn import functional
from sparse_attn.mappings import MappingSpec, get_spec

from . import rows

# Rounding of float64 (2e-16) times the row lengths (about 1e3) and condition numbers (about 10)
# met in these tests.
FLOAT64 = {"rtol": 1e-11, "atol": 1e-13}
# gradcheck: central differences with step 1e-6 are good to about 1e-9, its defaults ask for 1e-5.
CHECK = {"atol": 1e-6, "rtol": 1e-4}

SLOPES = (0.3, -1.0, 0.5, 2.0, -0.4, 0.9, 1.3, -2.0, 0.1)
UNITS = {
    "raw_gain": (1.2, -0.3, 2.0),
    "raw_slope": (0.5, 1.0, -0.7),
    "offset": (-1.0, 0.4, 1.5),
}

PREFIXES = ("mixed-", "scaled-", "detached-")


@dataclass(frozen=True)
class Case:
    """One mapping at one setting of its parameters, with what spec.md section 1 says of it."""

    name: str
    reference: Callable[..., np.ndarray]
    params: dict[str, Any] = field(default_factory=dict)
    zeros: bool = False
    shift: bool = False  # p(z + c) = p(z)
    scale: bool = False  # p(a z) = p(z), a > 0
    key: Callable[[torch.Tensor], torch.Tensor] = lambda z: z  # p rises with this
    kinks: tuple[float, ...] = ()  # scores at which the mapping has no derivative
    mass: str = "one"
    chaotic: bool = False  # the support hangs on the bits of the scores: no order, no smoothness

    def __str__(self) -> str:
        shown = [f"{k}={v}" for k, v in self.params.items() if isinstance(v, float)]
        return "-".join([self.name, *shown])

    def arguments(self, scores: torch.Tensor) -> dict[str, Any]:
        """The parameters, with tuples as tensors in the computing precision."""
        precise = torch.float64 if scores.dtype == torch.float64 else torch.float32
        return {
            key: torch.tensor(value, dtype=precise) if isinstance(value, tuple) else value
            for key, value in self.params.items()
        }

    def __call__(self, scores, *, mask=None, dim=-1, log=False):
        """p, or log p, of the library."""
        call = function_of(self.name, log, sink="sink" in self.params)
        params = self.arguments(scores)
        if self.name == "weighted-softmax":
            precise = scores if scores.dtype == torch.float64 else scores.float()
            params["weights"] = 1 + torch.sigmoid(2 * precise.nan_to_num())
        return call(scores, **params, mask=mask, dim=dim)

    @property
    def derived(self) -> bool:
        """Made of another mapping, with no function of its own."""
        return "sink" in self.params or self.name.startswith(PREFIXES)

    def log_row(self, row: np.ndarray) -> np.ndarray:
        """log p of the reference, for the valid entries of one row."""
        return self.reference(np.asarray(row, dtype=np.float64), **self.params)

    def log_rows(self, scores: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """log p of the reference for [rows, n] scores; -inf where the mask is False."""
        scores = scores.detach().double().numpy()
        valid = np.ones_like(scores, dtype=bool) if mask is None else mask.numpy()
        result = np.full_like(scores, -np.inf)
        for row, keep, out in zip(scores, valid, result, strict=True):
            if keep.any():
                out[keep] = self.log_row(row[keep])
        return torch.from_numpy(result)


def function_of(name: str, log: bool = False, sink: bool = False) -> Callable[..., torch.Tensor]:
    """The public function of a mapping, or with log=True."""
    if sink or name.startswith(PREFIXES):
        spec = get_spec(name, sink=sink)
        return spec.log_function if log else spec.function
    function = getattr(functional, name.replace("-", "_"))
    return partial(function, log=True) if log else function


def defaults(spec: MappingSpec) -> dict[str, Any]:
    """What the function of a record takes beside the scores."""
    values = {p.name: p.default for p in spec.parameters if p.default is not None}
    if spec.weights is not None:
        values |= spec.weights(**{option.name: option.default for option in spec.options})
    return values


def _sparse(name, reference, **options):
    return Case(name, reference, options.pop("params", {}), zeros=True, **options)


CASES = [
    Case("softmax", rows.softmax, shift=True),
    Case("weighted-softmax", rows.gated_softmax),
    _sparse("t-softmax", rows.t_softmax, params={"t": 1.7}, shift=True),
    _sparse("r-softmax", rows.r_softmax, params={"r": 0.3}, shift=True),
    _sparse("sparsemax", rows.sparsemax, shift=True),
    _sparse("sparsegen", rows.sparsegen, params={"lam": 0.4}, shift=True),
    _sparse("sparsegen", rows.sparsegen, params={"lam": -2.0}, shift=True),
    _sparse("sparsecone", rows.sparsecone, params={"q": 0.5}),
    _sparse("sparsehourglass", rows.sparsehourglass, params={"q": 0.5}),
    _sparse("sparsehourglass", rows.sparsehourglass, params={"q": 0.0}, scale=True),
    _sparse("entmax", rows.entmax, params={"alpha": 1.5}, shift=True),
    _sparse("entmax", rows.entmax, params={"alpha": 1.2}, shift=True),
    _sparse("entmax", rows.entmax, params={"alpha": 2.0}, shift=True),
    Case("entmax", rows.entmax, {"alpha": 1.0}, shift=True),
    Case("sigsoftmax", rows.sigsoftmax),
    Case("sigsoftmax", rows.sigsoftmax, {"bias": 1.5}),
    Case("taylor-softmax", rows.taylor_softmax, key=lambda z: (z + 1).abs()),
    Case("spherical-softmax", rows.spherical_softmax, {"eps": 0.0198}, key=torch.abs),
    Case("spherical-softmax", rows.spherical_softmax, {"eps": 0.4375, "center": 0.75},
         key=lambda z: (z - 0.75).abs()),
    _sparse("spherical-softmax", rows.spherical_softmax, params={"eps": 0.0}, scale=True,
            key=torch.abs),
    Case("softmax-abs", rows.softmax_abs, key=torch.abs, kinks=(0.0,)),
    _sparse("normalized-relu", rows.normalized_relu, scale=True, kinks=(0.0,)),
    Case("normalized-sigmoid", rows.normalized_sigmoid),
    Case("plif", rows.plif, {"raw_slopes": SLOPES, "bound": 4.0},
         kinks=tuple(float(x) for x in np.linspace(-4, 4, len(SLOPES) + 1)[1:-1])),
    Case("monotone", rows.monotone, dict(UNITS)),
    Case("temperature-softmax", rows.temperature_softmax, {"temperature": 0.5}, shift=True),
    _sparse("top-k-softmax", rows.top_k_softmax, params={"k": 2.0}, shift=True),
    _sparse("random-drop-softmax", rows.random_drop_softmax, params={"r": 0.37}, chaotic=True),
    Case("mixed-sparsehourglass", rows.mixed(rows.sparsehourglass), {"q": 0.5, "mix": 0.6}),
    Case("mixed-r-softmax", rows.mixed(rows.r_softmax), {"r": 0.3, "mix": 0.6}, shift=True),
    _sparse("mixed-r-softmax", rows.mixed(rows.r_softmax), params={"r": 0.3, "mix": 1.0},
            shift=True),
    _sparse("top-p-softmax", rows.top_p_softmax, params={"p": 0.8}, shift=True),
    _sparse("threshold-softmax", rows.threshold_softmax, params={"lam": 0.07}, shift=True),
    _sparse("max-gap", rows.max_gap, params={"a": 0.7}, shift=True),
    Case("adaptive-temperature", rows.adaptive_temperature, shift=True),
    _sparse("softpick", rows.softpick, mass="at most one", kinks=(0.0,)),
    _sparse("clipped-softmax", rows.clipped_softmax, params={"alpha": 0.5}, shift=True,
            mass="at most one"),
    _sparse("clipped-softmax", rows.clipped_softmax, params={"gamma": -0.1, "zeta": 1.05},
            shift=True, mass="free"),
    Case("sigmoid", rows.sigmoid, mass="free"),
    Case("sigmoid", rows.sigmoid, {"bias": -1.0}, mass="free"),
    _sparse("relu", rows.relu, mass="free", kinks=(0.0,)),
    Case("scaled-softmax", rows.scaled(rows.softmax), shift=True),
    _sparse("scaled-entmax", rows.scaled(rows.entmax),
            params={"alpha": 1.5, "delta": 0.5, "beta": 0.7, "gamma": 1.5}, shift=True),
    Case("softmax", rows.with_sink(rows.softmax), {"sink": 0.0}, mass="at most one"),
    _sparse("r-softmax", rows.with_sink(rows.r_softmax), params={"r": 0.3, "sink": -0.5},
            mass="at most one"),
    _sparse("entmax", rows.with_sink(rows.entmax), params={"alpha": 1.5, "sink": 0.5},
            mass="at most one"),
]  # fmt: skip

# One case for each mapping, for the tests in which its parameters play no part.
ONE_EACH = list({case.name: case for case in reversed(CASES)}.values())[::-1]


def each(chosen: list[Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", chosen, ids=str)


cases, one_each = each(CASES), each(ONE_EACH)
# those that finite differences and the order of the scores say something about
calm = each([case for case in CASES if not case.chaotic])
forms = pytest.mark.parametrize("log", [False, True], ids=["p", "log"])


@dataclass(frozen=True)
class Parameter:
    """A scalar parameter: values in its range, the first four with a slope, and out of it."""

    mapping: str
    name: str
    values: tuple[float, ...]
    range: str
    outside: tuple[float, ...]

    def __str__(self) -> str:
        several = sum(p.mapping == self.mapping for p in PARAMETERS) > 1
        return f"{self.mapping}-{self.name}" if several else self.mapping

    def __call__(self, scores, value, *, log=False, **options):
        """p, or log p, with this value of the parameter."""
        return function_of(self.mapping, log)(scores, **{self.name: value}, **options)

    def reference(self, row: torch.Tensor, value: float) -> torch.Tensor:
        """p of one row by the NumPy reference."""
        function = getattr(rows, self.mapping.replace("-", "_"))
        return torch.from_numpy(np.exp(function(row.numpy(), **{self.name: value})))


NAN, INF = np.nan, np.inf
ANY_SIZE = (-0.5, NAN, INF)
SHARE = (-0.1, 1.1, NAN, INF)
PARAMETERS = [
    Parameter("t-softmax", "t", (0.8, 2.0, 5.0, 1e3, 0.0, INF), "[0, inf]", (-0.5, NAN, -INF)),
    Parameter("r-softmax", "r", (0.13, 0.37, 0.71, 0.95, 0.0, 1.0), "[0, 1]", SHARE),
    Parameter("sparsegen", "lam", (0.6, -0.5, -3.0, -20.0, 0.9, 0.0), "(-inf, 1)", (1.5, NAN, INF)),
    Parameter("sparsecone", "q", (0.2, 0.5, 1.0, 10.0, 0.0, 3.0), "[0, inf)", ANY_SIZE),
    Parameter("sparsehourglass", "q", (0.2, 0.5, 1.0, 10.0, 0.0, 3.0), "[0, inf)", ANY_SIZE),
    Parameter("entmax", "alpha", (1.1, 1.25, 1.5, 1.9, 1.0, 2.0), "[1, 2]", (0.9, 2.5, NAN, INF)),
    Parameter("sigsoftmax", "bias", (0.0, -4.0, 3.0, 1.0, 50.0, -50.0), "(-inf, inf)",
              (INF, -INF, NAN)),
    Parameter("spherical-softmax", "eps", (0.0198, 0.5, 1.0, 30.0, 0.0, 1e-3), "[0, inf)",
              ANY_SIZE),
    Parameter("spherical-softmax", "center", (-1.0, 0.75, 2.5, -3.0, 0.0, 40.0), "(-inf, inf)",
              (INF, -INF, NAN)),
    Parameter("temperature-softmax", "temperature", (0.3, 0.8, 1.0, 4.0, 9.0, 0.1), "[0.001, inf)",
              (0.0, -1.0, NAN, INF)),
    Parameter("top-k-softmax", "k", (1.0, 2.0, 2.1, 9.0, INF, 5.0), "[1, inf]", (0.5, NAN, -INF)),
    Parameter("clipped-softmax", "alpha", (0.3, 0.9, 0.1, 2.0, 0.0, 50.0), "[0, inf)", ANY_SIZE),
    Parameter("clipped-softmax", "gamma", (-0.02, -0.3, -0.05, -0.1, 0.0, -9.0), "(-inf, 0]",
              (0.5, NAN, -INF)),
    Parameter("clipped-softmax", "zeta", (1.1, 1.3, 1.5, 1.2, 3.0, 1.0), "[1, inf)",
              (0.5, NAN, INF)),
    Parameter("sigmoid", "bias", (0.0, -4.0, 3.0, 1.0, 50.0, -50.0), "(-inf, inf)",
              (INF, -INF, NAN)),
    Parameter("top-p-softmax", "p", (0.8, 0.3, 0.55, 0.95, 0.0, 1.0), "[0, 1]", SHARE),
    Parameter("threshold-softmax", "lam", (0.1, 0.01, 0.3, 0.7, 0.0, 1.0), "[0, 1]", SHARE),
    Parameter("max-gap", "a", (1.0, 0.01, 0.3, 3.0, 0.0, 100.0), "[0, inf)", ANY_SIZE),
    Parameter("random-drop-softmax", "r", (0.1, 0.45, 0.0, 1.0, 0.8, 0.33), "[0, 1]", SHARE),
]  # fmt: skip
FIXED = ("top-k-softmax", "top-p-softmax", "threshold-softmax", "max-gap", "random-drop-softmax")
LEARNABLE = [p for p in PARAMETERS if p.mapping not in FIXED]
parameters = pytest.mark.parametrize("parameter", PARAMETERS, ids=str)
learnable = pytest.mark.parametrize("parameter", LEARNABLE, ids=str)


def assert_close(got: Any, expected: Any, **tolerance: float) -> None:
    """Fail unless equal within the tolerance, that of float64 if none is given."""
    torch.testing.assert_close(got, expected, **(tolerance or FLOAT64))


def finite(log_p: torch.Tensor) -> torch.Tensor:
    """log p with its -inf entries, where there is nothing to differentiate, as zeros."""
    return torch.where(log_p > -torch.inf, log_p, 0)


def random_scores(*shape: int, scale: float = 3.0, dtype=torch.float64) -> torch.Tensor:
    """Normal scores: wide enough that every sparse mapping returns both zeros and non-zeros."""
    return torch.randn(*shape, dtype=torch.float64).mul(scale).to(dtype)


def random_mask(*shape: int) -> torch.Tensor:
    """A mask with about 60 % valid entries, at least one in every row."""
    mask = torch.rand(*shape) < 0.6
    mask[..., 0] |= ~mask.any(-1)
    return mask


def smooth_scores(case: Case, *shape: int) -> torch.Tensor:
    """Random scores at least 0.05 away from the case's kinks."""
    scores = random_scores(*shape, scale=1.5)
    for kink in case.kinks:
        near = (scores - kink).abs() < 0.05
        scores = torch.where(near, kink + 0.1, scores)
    return scores
