"""The maps alone: keys and values are unit vectors, so the queries are the scores, the output p."""

import math

import numpy as np
import pytest
import torch

from sparse_attn import Mapping
from sparse_attn.kernels import attention
from sparse_attn.mappings import get_spec
from tests.mappings.cases import CASES

from .backends import CPU, CUDA, REFERENCE, TRITON, each, over
from .problems import DISTRIBUTIONS, SETTINGS, SOLVERS, rows_call

ROWS = [
    case
    for case in CASES
    if (kernel := get_spec(case.name).kernel) and not case.params.keys() & {*kernel.constants}
]
SPARSE = [s for s in SETTINGS if s[0] in ("t-softmax", "r-softmax", "entmax")] + [
    s for s in SETTINGS if s[0].startswith("sparse")
]
GOLDEN = [1.0, 0.2, -1.5, 0.7]


def expected_rows(case, scores):
    """The numpy reference of tests/mappings, float64."""
    return case.log_rows(scores.cpu()).exp()


@each()
@pytest.mark.parametrize("case", ROWS, ids=str)
def test_rows_equal_the_independent_reference(backend, case):
    """Also where the library's own reference is of no help: numpy shares no code with it."""
    scores = (3 * torch.randn(7, 64, dtype=torch.float64)).float().to(backend.device)
    p, _ = rows_call(scores, Mapping(case.name, **case.params), backend.impl)
    torch.testing.assert_close(p.double().cpu(), expected_rows(case, scores), rtol=3e-5, atol=3e-7)


@each()
@pytest.mark.parametrize("case", ROWS, ids=str)
def test_golden_row(backend, case):
    """The row of spec.md section 9, padded by a mask."""
    scores = torch.zeros(1, 16, device=backend.device)
    scores[0, :4] = torch.tensor(GOLDEN)
    mask = torch.arange(16, device=backend.device) < 4
    p, _ = rows_call(scores, Mapping(case.name, **case.params), backend.impl, mask=mask)
    expected = torch.zeros(16, dtype=torch.float64)
    expected[:4] = torch.from_numpy(np.exp(case.log_row(np.float64(np.float32(GOLDEN)))))
    torch.testing.assert_close(p[0].detach().double().cpu(), expected, rtol=3e-6, atol=2e-7)


@each()
@pytest.mark.parametrize("keys", [2, 33])
@pytest.mark.parametrize(("name", "params"), SPARSE)
def test_zeros_are_where_the_reference_has_them(backend, name, params, keys):
    """Entries within rounding of the threshold, none or few, may fall on either side."""
    scores = torch.randn(16, keys, device=backend.device)
    mapping = Mapping(name, **params)
    p, _ = rows_call(scores, mapping, backend.impl)
    truth, _ = rows_call(scores.double(), mapping, "reference")
    clear = (truth == 0) | (truth > 1e-6)
    assert clear.float().mean() > 0.9
    assert torch.equal((p == 0)[clear], (truth == 0)[clear])
    torch.testing.assert_close(p.sum(-1), torch.ones_like(p[:, 0]), rtol=1e-5, atol=0)
    assert (p >= 0).all()


@over("r", [(r,) for r in (0.0, 0.1, 0.25, 0.3, 0.5, 0.75, 0.9, 1.0)], [(0.0,), (0.3,), (1.0,)])
def test_r_softmax_gives_the_exact_number_of_zeros(backend, r):
    """floor(r (n - 1)) + 1 of the n valid keys of a padded batch, for every n; for r = 1 n - 1."""
    for keys in (1, 5, 32, 63):
        scores = torch.randn(8, keys, device=backend.device)
        for valid in {1, keys // 3, keys} & set(range(1, keys + 1)):
            lengths = torch.tensor([valid], device=backend.device)
            mapping = Mapping("r-softmax", r=r)
            p, _ = rows_call(scores, mapping, backend.impl, key_lengths=lengths)
            zeros = (p[:, :valid] == 0).sum(-1)
            # position r (n - 1) in float32, as the mapping counts it
            low = int(torch.tensor(r) * (valid - 1))
            wanted = 0 if valid == 1 else min(low + 1, valid - 1)
            assert (zeros == wanted).all(), (keys, valid, zeros.tolist(), wanted)
            assert (p[:, valid:] == 0).all()


@each()
@pytest.mark.parametrize(("name", "params"), SETTINGS)
def test_ties_are_exact(backend, name, params):
    """Small integers: equal scores are equal in every precision, and share."""
    scores = torch.randint(-2, 3, (12, 32), device=backend.device).float()
    mapping = Mapping(name, **params)
    p, gradient = rows_call(scores, mapping, backend.impl)
    truth, _ = rows_call(scores.double(), mapping, "reference")
    torch.testing.assert_close(p.double(), truth, rtol=2e-6, atol=2e-7)
    assert torch.equal(p == 0, truth == 0)
    for value in range(-2, 3):
        for row, weights in zip(scores, p, strict=True):
            same = weights[row == value]
            assert (same == same[:1]).all()
    assert gradient.isfinite().all()


@each()
@pytest.mark.parametrize(("name", "params"), SPARSE)
def test_gradients_at_ties_are_subgradients(backend, name, params):
    """p does not change with a common shift, and zeros keep their distance to the support.

    Only the threshold's own entries of the quantile may be pulled from outside.
    """
    if name in ("sparsecone", "sparsehourglass"):
        pytest.skip(f"{name} changes with a common shift")
    scores = torch.randint(-2, 3, (12, 32), device=backend.device).float()
    p, gradient = rows_call(scores, Mapping(name, **params), backend.impl)
    torch.testing.assert_close(gradient.sum(-1), torch.zeros_like(p[:, 0]), rtol=0, atol=1e-5)
    outside = (gradient != 0) & (p == 0)
    owners = 2 if name == "r-softmax" else 0
    assert (outside.sum(-1) <= owners).all()


# scores that are hard for a number format, and rtol and atol of their p
HARD = {
    "equal": (lambda: torch.full((3, 13), 1.0), 1e-5, 0.0),
    # 0/0 of some mappings: no positive score, no temperature, a quantile equal to the top
    "equal to 0": (lambda: torch.zeros(3, 13), 1e-5, 0.0),
    "equal below 0": (lambda: torch.full((3, 13), -3.0), 1e-5, 0.0),
    # by a few roundings, as after a bad start: the threshold is no further off
    "nearly equal": (lambda: 1 + torch.randint(0, 4, (6, 32)) * 2.0**-23, 1e-4, 1e-6),
    # nothing overflows that need not
    "1e3": (lambda: 1e3 * torch.randn(6, 32), 1e-4, 1e-6),
    "1e30": (lambda: 1e30 * torch.randn(6, 32), 1e-4, 1e-6),
    "1e37": (lambda: 1e37 * torch.randn(6, 32), 1e-4, 1e-6),
}


@over(
    "name params kind",
    [(*s, kind) for s in SETTINGS for kind in HARD],
    [(*s, kind) for s in SETTINGS for kind in HARD if s in SOLVERS or kind not in ("1e3", "1e30")],
)
def test_hard_scores(backend, name, params, kind):
    if kind == "nearly equal" and "scaled" in name:
        pytest.skip("scaled scores are rounded once more")
    make, rtol, atol = HARD[kind]
    scores, mapping = make().to(backend.device), Mapping(name, **params)
    upstream = torch.randn_like(scores)
    p, gradient = rows_call(scores, mapping, backend.impl, upstream)
    truth, wanted = rows_call(scores.double(), mapping, "reference", upstream)
    torch.testing.assert_close(p.double(), truth, rtol=rtol, atol=atol)
    assert gradient.isfinite().all()
    if kind.startswith("1e"):
        torch.testing.assert_close(gradient.double(), wanted, rtol=1e-3, atol=1e-5)
    if kind.startswith("equal") and (name, params) in DISTRIBUTIONS:
        torch.testing.assert_close(p, torch.full_like(p, 1 / 13), rtol=1e-5, atol=0)


@each()
@pytest.mark.parametrize(("name", "params"), DISTRIBUTIONS)
def test_tiny_scores(backend, name, params):
    """The squares of these scores underflow; weights and gradients stay finite."""
    scores = 1e-30 * torch.randn(4, 16, device=backend.device)
    p, gradient = rows_call(scores, Mapping(name, **params), backend.impl)
    assert p.isfinite().all()
    torch.testing.assert_close(p.sum(-1), torch.ones_like(p[:, 0]), rtol=1e-5, atol=0)
    assert gradient.isfinite().all()


def test_subnormal_scores_of_spherical_softmax():
    """On the CPU; Triton counts them as 0."""
    scores = torch.tensor([[1e-41, 5e-42, 0.0], [1e-45, 0.0, 0.0]])
    one = torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    p, gradient = rows_call(scores, Mapping("spherical-softmax", eps=0.0), "cpu", one)
    expected = torch.tensor([[0.8, 0.2, 0.0], [1.0, 0.0, 0.0]])
    torch.testing.assert_close(p, expected, rtol=1e-3, atol=0)
    assert gradient.isfinite().all()


@each()
def test_t_softmax_at_its_ends(backend):
    scores = torch.randn(4, 16, device=backend.device)
    dense, _ = rows_call(scores, Mapping("t-softmax", t=math.inf), backend.impl)
    torch.testing.assert_close(dense, scores.softmax(-1), rtol=1e-5, atol=1e-7)
    hard, gradient = rows_call(scores, Mapping("t-softmax", t=0.0), backend.impl)
    assert torch.equal(hard.argmax(-1), scores.argmax(-1))
    assert (hard.amax(-1) == 1).all()
    assert (gradient == 0).all()


NO_TEMPERATURE = [
    ("sparsecone", 0.0, [[-1.0, -1.0, -1.0], [2.0, 2.0, -5.0], [0.0, 0.0, 0.0]]),
    ("sparsecone", 0.5, [[-0.5, -0.5, -0.5], [2.0, 2.0, -8.0], [1.0, -1.0, -1.5]]),
    ("sparsehourglass", 0.0, [[0.0, 0.0, 0.0], [2.0, 2.0, -4.0], [2.0, -1.0, -1.0]]),
    # a temperature below the smallest normal number is none
    ("sparsecone", 0.0, [[1e-39, 5e-40, 0.0], [1e-39, 1e-39, 0.0]]),
    ("sparsehourglass", 0.0, [[1e-39, 1e-39, 0.0], [-1e-39, 5e-40, 5e-40]]),
]


@each(REFERENCE, CPU, TRITON, CUDA)
@pytest.mark.parametrize(("name", "q", "rows"), NO_TEMPERATURE)
def test_shared_maxima_are_constant(backend, name, q, rows):
    """Where sparsecone and sparsehourglass have no temperature, no score and no q moves p."""
    scores = torch.tensor(rows, device=backend.device)
    mapping = Mapping(name, q=q, learn="q" if q else ()).to(backend.device)
    p, gradient = rows_call(scores, mapping, backend.impl)
    top = scores == scores.amax(-1, keepdim=True)
    torch.testing.assert_close(p, top / top.sum(-1, keepdim=True), rtol=1e-6, atol=0)
    for found in (gradient, *(parameter.grad for parameter in mapping.parameters())):
        assert (found == 0).all()


@pytest.mark.parametrize("score", [-3.0, -9.0, -15.0, -20.0])
def test_softpick_keeps_the_digits_of_small_slopes(score):
    """d/dx of a score x < 0 is e^(x - s) delta / sum."""
    scores, upstream = torch.tensor([[1.0, 0.5, score]]), torch.tensor([[1.0, -2.0, 3.0]])
    found = [rows_call(scores, Mapping("softpick"), i, upstream)[1] for i in ("cpu", "reference")]
    torch.testing.assert_close(*found, rtol=1e-5, atol=0.0)


def test_learned_alpha_that_rounds_to_one():
    """Forward is softmax then, and backward a root's."""
    scores, upstream, found = torch.randn(6, 8), torch.randn(6, 8), []
    for impl in ("cpu", "reference"):
        mapping = Mapping("entmax", alpha=1.5, learn="alpha")
        with torch.no_grad():
            mapping.raw_alpha.fill_(-40.0)
        assert mapping.value("alpha") == 1
        _, gradient = rows_call(scores, mapping, impl, upstream)
        found.append([gradient, mapping.raw_alpha.grad])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-6)


def test_float64_keeps_its_parameter():
    """0.7 in float32 is below 0.7, which drops one key fewer of eleven."""
    scores = torch.randn(8, 11, dtype=torch.float64)
    for r in (0.7, 0.9):
        got, _ = rows_call(scores, Mapping("r-softmax", r=r), "cpu")
        want, _ = rows_call(scores, Mapping("r-softmax", r=r), "reference")
        assert ((got == 0) == (want == 0)).all()


@each(REFERENCE, CPU, TRITON, CUDA)
@pytest.mark.parametrize(
    ("name", "params"), [("t-softmax", {"t": 1e-39}), ("r-softmax", {"r": 0.25})]
)
def test_a_subnormal_t_counts_as_0(backend, name, params):
    scores = torch.tensor([[1e-39, 5e-40, 0.0], [-1e-39, 0.0, -2e-39]], device=backend.device)
    p, gradient = rows_call(scores, Mapping(name, **params), backend.impl)
    assert p.tolist() == [[1, 0, 0], [0, 1, 0]]
    assert (gradient == 0).all()


@each(REFERENCE, CPU)
@pytest.mark.parametrize("name", ["sparsecone", "sparsehourglass"])
def test_terms_of_a_gradient_add_up_before_they_overflow(backend, name):
    """1 / temperature is 4e37 here: infinity less infinity would be NaN."""
    scores = torch.tensor([[2.0**-125, 2.0**-133], [2.0**-125, 2.0**-125]])
    upstream = torch.tensor([[300.0, -300.0], [0.0, 3.0]])

    def gradient(impl, dtype):
        leaf = scores.to(dtype).requires_grad_()
        zero, unit = torch.zeros(1, 1, 2, 1, dtype=dtype), torch.eye(2, dtype=dtype)[None, None]
        p = attention(zero, zero, unit, Mapping(name, q=0.0), bias=leaf, impl=impl)
        return torch.autograd.grad(p[0, 0], leaf, upstream.to(dtype))[0]

    wanted = gradient("reference", torch.float64)
    assert (wanted.abs() < 1e39).tolist() == [[True, False], [True, True]]
    torch.testing.assert_close(
        gradient(backend.impl, torch.float32), wanted.float(), rtol=1e-4, atol=0
    )


DEGENERATE = [
    ("t-softmax", {"t": 0.0}),
    ("r-softmax", {"r": 1.0}),
    ("sparsecone", {"q": 0.0}),
    ("sparsehourglass", {"q": 0.0}),
]


@over(
    "setting keys biased",
    [(s, keys, biased) for s in DEGENERATE for keys in (60, 300) for biased in (False, True)],
    [(s, keys, biased) for s in DEGENERATE for keys in (20, 150) for biased in (False, True)],
)
def test_a_near_tie_at_a_degenerate_end_is_none(backend, setting, keys, biased):
    """Only the maximum has weight and, where it is alone, no score has a gradient."""
    name, params = setting
    gap = 2.0**-18
    key = torch.zeros(keys, 16)
    key[[3, 11, 5, 8]] = torch.eye(16)[:4]
    # scores whose sum is 0 in any order, so that sparsecone and sparsehourglass have temperature 0
    query = torch.zeros(4, 16)
    query[:, :4] = torch.tensor([1.0 - gap, 1.0, -1.0, gap - 1.0])
    query[1, :4] = torch.tensor([1.0, 1.0, -1.0, -1.0])  # a tie
    query[2:] *= 256.0
    weights = torch.zeros(4, keys, dtype=torch.float64)
    weights[:, 11] = 1.0
    weights[1, [3, 11]] = 0.5
    value, upstream = torch.randn(keys, 16), torch.randn(4, 16)

    leaves = [t.to(backend.device)[None, None].requires_grad_() for t in (query, key, value)]
    bias = torch.zeros(keys, device=backend.device) if biased else None
    mapping = Mapping(name, **params)
    output = attention(*leaves, mapping, scale=1.0, impl=backend.impl, bias=bias)
    output.backward(upstream.to(output)[None, None])

    expected = (weights @ value.double(), weights.mT @ upstream.double())
    for got, wanted in zip((output.detach(), leaves[2].grad), expected, strict=True):
        torch.testing.assert_close(got[0, 0].cpu().double(), wanted, rtol=2e-6, atol=2e-6)
    assert leaves[0].grad[0, 0, [0, 2, 3]].abs().max() < 1e-5
