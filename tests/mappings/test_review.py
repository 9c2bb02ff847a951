"""Rows and parameters at the edge that once went wrong."""

import math

import pytest
import torch

from sparse_attn import SparsitySchedule
from sparse_attn import functional as maps
from sparse_attn.mappings import get_spec


def test_sparsemax_of_a_plateau_in_float32() -> None:
    scores = torch.full((2048,), -0.999)
    scores[0] = 0.0
    p, exact = maps.sparsemax(scores), maps.sparsemax(scores.double())
    # tau is a sum of 2048 differences, each right to a float32 ulp of 1
    torch.testing.assert_close(p.double(), exact, rtol=0, atol=6e-8)
    assert abs(p.double().sum().item() - 1) < 2048 * 6e-8


@pytest.mark.parametrize(
    ("function", "value"),
    [
        (maps.entmax, 3.0),
        (maps.entmax, 0.0),
        (maps.sparsegen, 2.0),
        (maps.t_softmax, -1.0),
        (maps.r_softmax, 1.5),
        (maps.r_softmax, -0.5),
        (maps.r_softmax, math.nan),
        (maps.sparsecone, -1.0),
        (maps.spherical_softmax, -1.0),
    ],
)
def test_tensor_parameter_out_of_range_spoils_its_rows_alone(function, value) -> None:
    scores = torch.randn(2, 5)
    good = 1.0 if function is maps.entmax else 0.5
    p = function(scores, torch.tensor([value, good]))
    assert p[0].isnan().all()
    torch.testing.assert_close(p[1], function(scores[1], good))


@pytest.mark.parametrize("end", ["initial", "final"])
def test_schedule_from_infinity_is_refused(end: str) -> None:
    with pytest.raises(ValueError, match=f"{end}=inf: expected a finite number"):
        SparsitySchedule("t", **{"initial": 1.0, "final": 2.0, end: math.inf})


@pytest.mark.parametrize("name", ["sigsoftmax", "taylor-softmax", "spherical-softmax", "plif"])
def test_log_g_of_the_spec_gives_the_mapping(name: str) -> None:
    spec, scores = get_spec(name), torch.randn(3, 7)
    if name == "plif":
        arguments = (torch.randn(12), 6.0)
    else:
        arguments = tuple(parameter.default for parameter in spec.parameters)
    p = spec.log_g(scores, *arguments).softmax(-1)
    torch.testing.assert_close(p, spec.function(scores, *arguments))
