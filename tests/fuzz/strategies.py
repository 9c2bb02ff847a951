"""Tensors that go wrong if anything can: extreme values, ties, empty shapes, odd strides, masks."""

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from torch import Tensor

from sparse_attn.mappings import ParameterSpec

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
SHAPES = ((1,), (2,), (5,), (0,), (3, 4), (2, 1), (17,), (4, 0), (0, 3), (2, 2, 3), (2, 0, 3))
FINITE = ("tied", "plain", "tiny", "large", "finite", "masked")
SPOILING = ("infinite", "anything")
LAYOUTS = ("contiguous", "reversed", "sliced", "offset", "expanded")


def examples(share: float) -> settings:
    """A share of the examples of the profile, for tests that run over many cases."""
    count = max(1, int(share * settings.default.max_examples))
    # a machine may be busy
    return settings(max_examples=count, suppress_health_check=[HealthCheck.too_slow])


def computed(dtype: torch.dtype) -> torch.dtype:
    """The dtype that the library computes in."""
    return dtype if dtype == torch.float64 else torch.float32


def same(one: Tensor, other: Tensor) -> bool:
    """Equal to the last bit, NaN where NaN is."""
    holes = one.isnan()
    filled = one.masked_fill(holes, 0), other.masked_fill(holes, 0)
    return torch.equal(holes, other.isnan()) and torch.equal(*filled)


def invertible(tensor: Tensor) -> bool:
    """Whether 1/x is finite for every x that is not 0; for subnormal numbers it is not."""
    return bool(((tensor == 0) | (tensor.abs() >= torch.finfo(tensor.dtype).smallest_normal)).all())


def absorbs(bias: float | Tensor) -> bool:
    """Whether z + b of sigsoftmax has lost digits of z, so that p is one rounding or another."""
    return bool((torch.as_tensor(bias).abs() > 256).any())


@contextmanager
def unchanged(*tensors: Tensor) -> Iterator[None]:
    """Fails if the tensors are others at the end."""
    before = [tensor.clone() for tensor in tensors]
    yield
    assert all(same(*pair) for pair in zip(tensors, before, strict=True)), "changed in place"


def extremes(dtype: torch.dtype) -> list[float]:
    """Positive finite numbers of a dtype at which something over- or underflows, and 0."""
    end = torch.finfo(dtype)
    least = end.smallest_normal * end.eps  # the smallest subnormal number
    sizes = [0.0, least, 3 * least, end.smallest_normal, end.eps, 1e-30, math.sqrt(end.max)]
    sizes += [0.5, 1.0, 1.0 + end.eps, 88.0, 104.0, 256.0, 1e4, 1e15, 1e30, end.max / 2, end.max]
    return [size for size in sizes if size <= end.max]


def scores_of(dtype: torch.dtype) -> dict[str, st.SearchStrategy[float]]:
    """Kinds of scores, of which a row has one: a single huge score hides all others."""
    signs = [sign * size for size in extremes(dtype) for sign in (1.0, -1.0)]
    end = torch.finfo(dtype)
    width = {16: 16, 32: 32, 64: 64}[end.bits] if dtype != torch.bfloat16 else 32
    # bfloat16 ends below float32 and would round what lies between to infinity
    most = float(torch.tensor(end.max, dtype=dtype))
    anything = st.floats(-most, most, width=width, allow_subnormal=True)
    finite = st.one_of(st.sampled_from(signs), anything)
    return {
        "tied": st.integers(-12, 12).map(lambda k: k / 4),
        "plain": st.floats(-8, 8, width=16),
        "tiny": st.sampled_from([x for x in signs if abs(x) <= end.eps]),
        "large": st.sampled_from([x for x in signs if abs(x) >= 88]),
        "finite": finite,
        "infinite": st.one_of(finite, st.sampled_from([math.inf, -math.inf])),
        "masked": st.sampled_from([0.5, 1.0, -math.inf]),
        "anything": st.one_of(finite, st.sampled_from([math.inf, -math.inf, math.nan])),
    }


def grid(low: float, high: float) -> st.SearchStrategy[float]:
    """Multiples of 1/64: their sums and differences are exact, and ties are common."""
    return st.integers(int(64 * low), int(64 * high)).map(lambda k: k / 64)


def grid_rows(*, min_size: int = 1, unique: bool = False) -> st.SearchStrategy[Tensor]:
    """(n,) float64, up to 40 scores in [-5, 5] on the grid."""
    values = st.lists(grid(-5, 5), min_size=min_size, max_size=40, unique=unique)
    return values.map(lambda row: torch.tensor(row, dtype=torch.float64))


@st.composite
def tensors(draw: Any, shape: Sequence[int], dtype: torch.dtype, kinds: Sequence[str]) -> Tensor:
    """A tensor whose rows, along the last dimension, are each of one of the kinds."""
    strategies = scores_of(dtype)
    n = shape[-1] if shape else 1
    count = math.prod(shape) // n if n else 0
    rows = [
        draw(st.lists(strategies[draw(st.sampled_from(kinds))], min_size=n, max_size=n))
        for _ in range(count)
    ]
    return torch.tensor(rows, dtype=dtype).reshape(shape)


def lay_out(values: Tensor, layout: str) -> Tensor:
    """The same values with other strides; the room between them is NaN."""
    if layout == "reversed":
        order = tuple(range(values.dim()))[::-1]
        return values.permute(order).contiguous().permute(order)
    if layout == "sliced":
        wide = values.new_full([2 * size for size in values.shape], math.nan)
        view = wide[tuple(slice(1, None, 2) for _ in values.shape)]
        return view.copy_(values)
    if layout == "offset":
        wide = values.new_full([size + 2 for size in values.shape], math.nan)
        view = wide[tuple(slice(1, 1 + size) for size in values.shape)]
        return view.copy_(values)
    if layout == "expanded":  # the first row for all of them
        return values[:1].expand(values.shape) if values.dim() > 1 else values
    assert layout == "contiguous"
    return values.clone()


def numbers(spec: ParameterSpec, dtype: torch.dtype) -> list[float]:
    """Values of a parameter: its default, the ends of its range, and what lies just inside.

    They are numbers of the dtype, so that float64 and `dtype` solve the same problem.
    """
    end = torch.finfo(dtype)
    sizes = [end.smallest_normal * end.eps, end.smallest_normal, 0.25, 2.0, 1e30, end.max]
    default = [] if spec.default is None else [spec.default]
    values = [*default, spec.low, spec.high, *sizes, *(-x for x in sizes)]
    for edge, inside in ((spec.low, math.inf), (spec.high, -math.inf)):
        edges = torch.tensor([edge, inside], dtype=dtype)
        values.append(torch.nextafter(*edges).item() if math.isfinite(edge) else 1.0)
    rounded = {float(torch.tensor(value, dtype=dtype)) for value in values}
    return sorted(value for value in rounded if spec.contains(value))


@st.composite
def broadcast_shapes(draw: Any, shape: Sequence[int]) -> list[int]:
    """Shapes that broadcast to the shape."""
    kept = shape[draw(st.integers(0, len(shape))) :]
    return [size if draw(st.booleans()) else min(size, 1) for size in kept]


@st.composite
def masks(draw: Any, shape: Sequence[int]) -> Tensor | None:
    """None, or a boolean tensor that broadcasts to the shape."""
    if draw(st.booleans()):
        return None
    sizes = draw(broadcast_shapes(shape))
    n = math.prod(sizes)
    bits = draw(st.lists(st.booleans(), min_size=n, max_size=n))
    return torch.tensor(bits, dtype=torch.bool).view(sizes)


@st.composite
def parameters(
    draw: Any, spec: ParameterSpec, shape: Sequence[int], dtype: torch.dtype
) -> float | Tensor:
    """A value of a parameter: a float, or a tensor that broadcasts to the shape."""
    values = numbers(spec, dtype)
    if draw(st.booleans()):
        # also one that float32 does not hold
        return draw(st.sampled_from([*values, 1e300] if spec.contains(1e300) else values))
    sizes = draw(broadcast_shapes(shape))
    n = math.prod(sizes)
    drawn = draw(st.lists(st.sampled_from(values), min_size=n, max_size=n))
    return torch.tensor(drawn, dtype=dtype).view(sizes)


def subsets(names: Sequence[str]) -> list[tuple[str, ...]]:
    """Every subset, the empty one first."""
    return [s for size in range(len(names) + 1) for s in itertools.combinations(names, size)]
