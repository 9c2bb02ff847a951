"""Golden values: every mapping at z = [1, 0.2, -1.5, 0.7], printed with six digits."""

import math

import pytest
import torch

from sparse_attn import functional as maps
from sparse_attn.mappings import get_spec

from .cases import assert_close

Z = (1.0, 0.2, -1.5, 0.7)
PRINTED = {"rtol": 0, "atol": 1e-6}  # half a unit of the sixth digit, and the float64 rounding

GOLDEN = [
    ("softmax", {}, [0.440096, 0.197748, 0.036125, 0.326031]),
    ("weighted_softmax", {"weights": torch.tensor([2.0, 2.0, 2.0, 2.0])},
     [0.440096, 0.197748, 0.036125, 0.326031]),
    ("weighted_softmax", {"weights": torch.tensor([0.0, 3.0, 0.0, 0.0])}, [0, 1, 0, 0]),
    ("sigsoftmax", {}, [0.491271, 0.166022, 0.010063, 0.332644]),
    ("sigsoftmax", {"bias": 2.0}, [0.453101, 0.192408, 0.024304, 0.330187]),
    ("normalized_relu", {}, [0.526316, 0.105263, 0, 0.368421]),
    ("normalized_sigmoid", {}, [0.342978, 0.257956, 0.085585, 0.313482]),
    ("spherical_softmax", {"eps": 0.0198}, [0.264252, 0.015495, 0.588153, 0.132100]),
    # 2 z^2 - 3 z + 2 = 1, 1.48, 11 and 0.88
    ("spherical_softmax", {"eps": 0.4375, "center": 0.75},
     [0.069638, 0.103064, 0.766017, 0.061281]),
    ("softmax_abs", {}, [0.260493, 0.117047, 0.429481, 0.192978]),
    ("taylor_softmax", {}, [0.397456, 0.193959, 0.099364, 0.309221]),
    ("t_softmax", {"t": 1.0}, [0.621721, 0.055871, 0, 0.322408]),
    ("t_softmax", {"t": 2.0}, [0.526512, 0.141946, 0, 0.331542]),
    ("t_softmax", {"t": 0.3}, [1, 0, 0, 0]),
    ("t_softmax", {"t": 0.1}, [1, 0, 0, 0]),
    ("t_softmax", {"t": 0.0}, [1, 0, 0, 0]),
    ("t_softmax", {"t": math.inf}, [0.440096, 0.197748, 0.036125, 0.326031]),
    ("r_softmax", {"r": 0.0}, [0.510865, 0.156092, 0, 0.333043]),
    ("r_softmax", {"r": 0.25}, [0.582994, 0.090883, 0, 0.326123]),
    ("r_softmax", {"r": 0.5}, [0.748091, 0, 0, 0.251909]),
    ("r_softmax", {"r": 0.75}, [1, 0, 0, 0]),
    ("r_softmax", {"r": 1.0}, [1, 0, 0, 0]),
    ("sparsemax", {}, [0.65, 0, 0, 0.35]),
    ("sparsegen", {"lam": 0.5}, [0.8, 0, 0, 0.2]),
    ("sparsegen", {"lam": -1.0}, [0.516667, 0.116667, 0, 0.366667]),
    ("sparsehourglass", {"q": 0.0}, [0.875, 0, 0, 0.125]),
    ("sparsehourglass", {"q": 0.5}, [0.6875, 0, 0, 0.3125]),
    ("sparsehourglass", {"q": 10.0}, [0.652228, 0, 0, 0.347772]),
    # The sum of the row is positive, so the cone and the hourglass agree.
    ("sparsecone", {"q": 0.0}, [0.875, 0, 0, 0.125]),
    ("sparsecone", {"q": 0.5}, [0.6875, 0, 0, 0.3125]),
    ("sparsecone", {"q": 10.0}, [0.652228, 0, 0, 0.347772]),
    ("entmax", {"alpha": 1.0}, [0.440096, 0.197748, 0.036125, 0.326031]),
    ("entmax", {"alpha": 2.0}, [0.65, 0, 0, 0.35]),
    # softmax of 2 z, then of the scores that are left
    ("temperature_softmax", {"temperature": 0.5}, [0.569007, 0.114881, 0.003834, 0.312278]),
    ("top_k_softmax", {"k": 1.0}, [1, 0, 0, 0]),
    ("top_k_softmax", {"k": 2.0}, [0.574443, 0, 0, 0.425557]),
    ("top_k_softmax", {"k": 2.5}, [0.456590, 0.205159, 0, 0.338250]),
    ("top_k_softmax", {"k": 4.0}, [0.440096, 0.197748, 0.036125, 0.326031]),
    ("top_k_softmax", {"k": math.inf}, [0.440096, 0.197748, 0.036125, 0.326031]),
    ("random_drop_softmax", {"r": 0.0}, [0.440096, 0.197748, 0.036125, 0.326031]),
    # the hashes are b1aab1b6, 9694b376, 0dec3f3d, 72e21bd2, and the lowest go
    ("random_drop_softmax", {"r": 0.25}, [0.456590, 0.205159, 0, 0.338250]),
    ("random_drop_softmax", {"r": 0.5}, [0.689974, 0.310026, 0, 0]),
    ("random_drop_softmax", {"r": 0.75}, [1, 0, 0, 0]),
    ("random_drop_softmax", {"r": 1.0}, [1, 0, 0, 0]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "params", "expected"), GOLDEN)
def test_golden_values(name, params, expected):
    """p and exp(log p) meet the printed value, with zeros and -inf exactly where it is 0."""
    z, expected = (torch.tensor(x, dtype=torch.float64) for x in (Z, expected))
    p, log_p = getattr(maps, name)(z, **params), getattr(maps, name)(z, **params, log=True)
    assert_close(p, expected, **PRINTED)
    assert torch.equal(p == 0, expected == 0)
    assert_close(log_p.exp(), expected, **PRINTED)
    assert torch.equal(log_p == -math.inf, expected == 0)


def test_softmax_normaliser():
    """log p = z - LSE(z), with LSE = 1.8207627."""
    z = torch.tensor(Z, dtype=torch.float64)
    assert_close(maps.softmax(z, log=True), z - 1.8207627, rtol=0, atol=1e-7)


def test_plif_with_equal_slopes_is_a_tempered_softmax():
    """Slopes softplus(v) = s everywhere make f(x) = s x; v = log(e^s - 1)."""
    z = torch.tensor(Z, dtype=torch.float64)
    for slope in (1.0, 2.5):
        raw = torch.full((7,), math.log(math.expm1(slope)), dtype=torch.float64)
        assert_close(maps.plif(z, raw, bound=1.2), maps.softmax(slope * z), **PRINTED)


def test_monotone_with_one_unit_by_hand():
    """One unit with gain, slope softplus(log(e - 1)) = 1 and offset 0 is softmax(sigmoid(z))."""
    z = torch.tensor(Z, dtype=torch.float64)
    raw = torch.tensor([math.log(math.e - 1)], dtype=torch.float64)
    p = maps.monotone(z, raw, raw, torch.zeros(1, dtype=torch.float64))
    # exp(sigmoid(z)) = exp([0.731059, 0.549834, 0.182426, 0.668188])
    expected = torch.tensor([2.077278, 1.732965, 1.200125, 1.950701], dtype=torch.float64)
    assert_close(p, expected / expected.sum(), **PRINTED)


# What the formula leaves at 0/0, or at a limit, has one stated value.

CONVENTIONS = [
    ("normalized_relu", {}, [-1.0, 0.0, -2.0], [1 / 3, 1 / 3, 1 / 3]),
    ("spherical_softmax", {"eps": 0.0}, [0.0, 0.0], [0.5, 0.5]),
    ("sparsehourglass", {"q": 0.0}, [1.0, -2.0, 1.0], [0.5, 0, 0.5]),
    ("sparsecone", {"q": 0.0}, [1.0, -2.0, 1.0], [0.5, 0, 0.5]),
    ("sparsecone", {"q": 0.5}, [1.0, -7.0, 1.0], [0.5, 0, 0.5]),
    ("weighted_softmax", {"weights": torch.zeros(3)}, [1.0, 2.0, 3.0], [0, 0, 0]),
    ("r_softmax", {"r": 1.0}, [2.0, 1.0, 2.0], [0.5, 0, 0.5]),
    ("t_softmax", {"t": 0.0}, [2.0, 1.0, 2.0], [0.5, 0, 0.5]),
    # Ties: at the quantile all vanish, at the top all survive.
    ("r_softmax", {"r": 0.5}, [3.0, 0.1, 0.1, 0.1, 0.0], [1, 0, 0, 0, 0]),
    ("r_softmax", {"r": 0.3}, [3.0, 0.1, 0.1, 0.1, 0.1], [1, 0, 0, 0, 0]),
    ("r_softmax", {"r": 0.9}, [1.1, 0.0, 1.1, 1.1], [1 / 3, 0, 1 / 3, 1 / 3]),
    ("r_softmax", {"r": 0.3}, [0.1] * 7, [1 / 7] * 7),
    ("t_softmax", {"t": 0.5}, [1.1, 0.0, 1.1, 1.1], [1 / 3, 0, 1 / 3, 1 / 3]),
    ("sparsemax", {}, [2.0, 2.0, 0.5], [0.5, 0.5, 0]),
    ("top_k_softmax", {"k": 1.0}, [2.0, 1.0, 2.0], [0.5, 0, 0.5]),
    ("random_drop_softmax", {"r": 1.0}, [0.1] * 7, [1 / 7] * 7),
]


@pytest.mark.parametrize(("name", "params", "scores", "expected"), CONVENTIONS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_conventions(name, params, scores, expected, dtype):
    z = torch.tensor(scores, dtype=dtype, requires_grad=True)
    p = getattr(maps, name)(z, **params)
    expected = torch.tensor(expected, dtype=dtype)
    # A handful of roundings of numbers near one.
    assert_close(p, expected, rtol=0, atol=4 * torch.finfo(dtype).eps)
    assert torch.equal(p == 0, expected == 0)
    log_p = getattr(maps, name)(z, **params, log=True)
    assert_close(log_p, expected.log(), rtol=0, atol=8 * torch.finfo(dtype).eps)
    (gradient,) = torch.autograd.grad(p.pow(2).sum(), z)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("r", [0.1, 0.3, 1 / 3, 0.45, 0.7])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_interpolation_between_ties_is_exact(r, dtype):
    """(1 - a) x + a x may differ from x by a rounding, which would leave tied entries alive."""
    scores = torch.rand(50, 1, dtype=torch.float64).to(dtype).repeat(1, 23)
    scores[:, 0] += torch.rand(50, dtype=torch.float64).add(0.1).to(dtype)
    expected = torch.zeros(50, 23, dtype=dtype)
    expected[:, 0] = 1
    assert torch.equal(maps.r_softmax(scores, r), expected)


FIVE = (1.0, -0.5, 2.0, 0.25, 2.0)
TEN = {"rtol": 0, "atol": 1e-10}
FIELD = [
    ("softmax", {"sink": 0.0},
     [0.1333344034, 0.0297509268, 0.3624404858, 0.0629827125, 0.3624404858]),
    ("softmax", {"sink": 1.5},
     [0.1138850778, 0.0254111956, 0.3095717374, 0.0537955016, 0.3095717374]),
    ("sparsemax", {"sink": 1.5}, [0, 0, 0.5, 0, 0.5]),
    ("entmax", {"alpha": 1.5, "sink": 1.5}, [0.0203082074, 0, 0.4128150755, 0, 0.4128150755]),
    ("scaled-softmax", {"delta": 0.0, "beta": 0.43, "gamma": 1.0},
     [0.1682123269, 0.0595692546, 0.3360585276, 0.1001013632, 0.3360585276]),
    ("top-p-softmax", {"p": 0.5}, [0, 0, 0.5, 0, 0.5]),
    ("top-p-softmax", {"p": 0.9}, [0.1553624035, 0, 0.4223187983, 0, 0.4223187983]),
    ("softpick", {}, [0.1132393841, 0, 0.4210559441, 0.0187180372, 0.4210559441]),
    ("clipped-softmax", {"gamma": -0.1, "zeta": 1.0},
     [0.0542331308, 0, 0.3192491168, 0, 0.3192491168]),
    ("clipped-softmax", {"alpha": 0.5}, [0.0542331308, 0, 0.3192491168, 0, 0.3192491168]),
    ("sigmoid", {}, [0.3521874284, 0.1081828847, 0.5964180031, 0.2043316714, 0.5964180031]),
    ("sigmoid", {"bias": -math.log(5)},
     [0.3521874284, 0.1081828847, 0.5964180031, 0.2043316714, 0.5964180031]),
    ("relu", {}, [0.2, 0, 0.4, 0.05, 0.4]),
    ("threshold-softmax", {"lam": 0.1}, [0.1553624035, 0, 0.4223187983, 0, 0.4223187983]),
    # kept from 2 + log(a / 5) on: 0.3906, 0.7960 and 2
    ("max-gap", {"a": 1.0}, [0.1553624035, 0, 0.4223187983, 0, 0.4223187983]),
    ("max-gap", {"a": 5.0}, [0, 0, 0.5, 0, 0.5]),
    # the entropy is 1.2989308831, beta 1.6640572638
    ("adaptive-temperature", {},
     [0.0838162675, 0.0069070402, 0.4426079437, 0.0240608049, 0.4426079437]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "params", "expected"), FIELD, ids=str)
def test_values_to_ten_digits(name, params, expected):
    """From a float64 program that shares nothing with this library."""
    spec, z = get_spec(name, sink="sink" in params), torch.tensor(FIVE, dtype=torch.float64)
    assert_close(spec.function(z, **params), torch.tensor(expected, dtype=torch.float64), **TEN)
