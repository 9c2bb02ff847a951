"""The CPU kernels beside the reference, on the scores that are hardest.

Queries and keys are zeros, so that the bias is the scores to the last bit, and values are the unit
matrix, so that the output is p.
"""

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sparse_attn import Mapping, mapping_names
from sparse_attn.kernels import attention
from sparse_attn.mappings import ParameterSpec, get_spec
from tests.fuzz.call import Call
from tests.fuzz.strategies import (
    FINITE,
    LAYOUTS,
    SPOILING,
    absorbs,
    examples,
    masks,
    numbers,
    same,
    tensors,
    unchanged,
)

FUSED = [name for name in mapping_names() if get_spec(name).kernel is not None]
each = pytest.mark.parametrize("name", FUSED)
SHAPES = ((1, 1, 1, 1), (2, 2, 3, 5), (1, 2, 1, 17), (1, 1, 2, 33))
EMPTY = ((0, 2, 3, 5), (2, 2, 0, 5), (2, 2, 3, 0), (0, 1, 0, 0))


@dataclass
class Attention(Call):
    """Attention whose scores are its bias."""

    mapping: Mapping
    causal: bool

    def __call__(self, impl: str, **changed: Any) -> Tensor:
        """p (B, H, Q, K)."""
        return attention(
            **{**self.inputs, **changed},
            mapping=self.mapping,
            mask=self.mask,
            causal=self.causal,
            scale=1.0,
            impl=impl,
        )

    @property
    def scores(self) -> Tensor:
        """(B, H, Q, K), -inf where masked."""
        scores = self.inputs["bias"]
        inside = torch.ones_like(scores, dtype=torch.bool)
        inside = inside.tril() if self.causal else inside
        return scores.masked_fill(~(inside if self.mask is None else inside & self.mask), -math.inf)


def kernel_parameters(name: str) -> list[ParameterSpec]:
    """Those of the mapping that its kernel takes."""
    spec = get_spec(name)
    assert spec.kernel is not None
    return [p for p in spec.parameters if p.name not in spec.kernel.constants]


@st.composite
def problems(draw: Any, name: str, kinds: Any, shapes: Any = SHAPES) -> Attention:
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    shape = draw(st.sampled_from(shapes))
    batch, heads, queries, keys = shape
    values = {}
    for parameter in kernel_parameters(name):
        if parameter.instead_of in values:
            continue
        number = st.sampled_from(numbers(parameter, torch.float32))
        either = st.one_of(number, st.lists(number, min_size=heads, max_size=heads))
        if parameter.default is not None or draw(st.booleans()):
            values[parameter.name] = draw(either)
    per_head = any(isinstance(value, list) for value in values.values())
    key_heads = draw(st.sampled_from(sorted({1, heads})))
    inputs = {
        "query": torch.zeros(batch, heads, queries, 1, dtype=dtype),
        "key": torch.zeros(batch, key_heads, keys, 1, dtype=dtype),
        "value": torch.eye(keys, dtype=dtype).expand(batch, key_heads, keys, keys),
        "bias": draw(tensors(shape, dtype, kinds)),
    }
    mapping = Mapping(name, num_heads=heads if per_head else None, **values)
    return Attention(inputs, draw(masks(shape)), mapping, draw(st.booleans()))


@each
@given(data=st.data())
@examples(0.1)
def test_rules(name: str, data: Any) -> None:
    """The mass it says, as the reference has it; NaN in the rows that hold NaN, alone."""
    problem = data.draw(problems(name, FINITE + SPOILING))
    with unchanged(*problem.inputs.values()):
        p = problem("cpu")
    scores = problem.scores
    present = scores != -math.inf
    spoiled = ((scores.isnan() | (scores == math.inf)) & present).any(-1)
    assert same(p.isnan().any(-1), spoiled)
    rows, inside = p[~spoiled], present[~spoiled]
    assert (rows >= 0).all()
    assert (rows[~inside] == 0).all()
    some = inside.any(-1).to(p.dtype)
    eps = torch.finfo(p.dtype).eps
    mass, wrong = get_spec(name).mass, rows.sum(-1) - some
    wrong = wrong.abs() if mass == "one" else wrong
    assert mass == "free" or (wrong <= 8 * (1 + p.shape[-1]) * eps).all(), "wrong mass"
    expected = problem("reference")
    assert same(expected.isnan().any(-1), spoiled)
    bias = problem.mapping.value("bias") if name == "sigsoftmax" else 0.0
    if not absorbs(bias):
        torch.testing.assert_close(rows, expected[~spoiled], atol=2e-5, rtol=1e-4)
    # the other rows do not know what stands in a spoiled one
    other = problem.changed(bias=problem.inputs["bias"].masked_fill(spoiled.unsqueeze(-1), 0.25))
    assert same(other("cpu")[~spoiled], rows)


@each
@given(data=st.data())
@examples(0.1)
def test_views_and_subsets(name: str, data: Any) -> None:
    """Strides change no bit of the output, and no gradient depends on what else is asked for."""
    problem = data.draw(problems(name, FINITE))
    layouts = {n: data.draw(st.sampled_from(LAYOUTS)) for n in problem.inputs}
    problem.check_views_and_subsets(layouts, "cpu", alike=close)


def close(one: Tensor, other: Tensor) -> bool:
    torch.testing.assert_close(one, other, equal_nan=True)
    return True


@each
@given(data=st.data())
@examples(0.1)
def test_gradients_are_finite_where_float64_has_them(name: str, data: Any) -> None:
    """An intermediate number that over- or underflows makes no NaN."""
    problem = data.draw(problems(name, FINITE))
    gradient = problem.solve("cpu", wanted=["bias"])[1]["bias"]
    exact = problem.changed(**{n: tensor.double() for n, tensor in problem.inputs.items()})
    expected = exact.solve("reference", wanted=["bias"])[1]["bias"]
    fits = expected.abs() < torch.finfo(gradient.dtype).max / 8
    assert gradient[fits].isfinite().all()
    masked = problem.scores == -math.inf
    assert (gradient[masked] == 0).all()


@each
@given(data=st.data())
@examples(0.1)
def test_nothing_to_attend_to(name: str, data: Any) -> None:
    problem = data.draw(problems(name, FINITE, EMPTY))
    out, gradients = problem.solve("cpu")
    assert out.shape == problem.inputs["bias"].shape
    assert not out.count_nonzero()
    for n, gradient in gradients.items():
        assert gradient.shape == problem.inputs[n].shape
        assert not gradient.count_nonzero()
