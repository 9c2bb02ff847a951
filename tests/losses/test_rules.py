"""What holds for every loss: forms of the target, masks, order of classes, reductions, autocast."""

import math

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparse_attn import losses
from tests.losses.cases import CASES, Z, assert_close, batches, every_case

BOUNDS = {
    f"bound {xi} {alpha}": lambda z, y, xi=xi, alpha=alpha, **options: losses.bouchard_bound(
        z, xi, alpha, **options
    ).mean()
    for xi in ("shared", "per_class", 1.5)
    for alpha in (None, 0.4)
}
SEVERAL = torch.tensor([[1.0, 0.0, 0.0, 1.0, 0.0], [0.0, 1.0, 1.0, 1.0, 0.0]])


def random_scores():
    return torch.randn(2, 5, dtype=torch.float64)


@every_case
def test_a_class_is_its_one_hot_row(case):
    z, c = random_scores(), torch.tensor([3, 0])
    one_hot = torch.nn.functional.one_hot(c, 5)
    for target in (c.int(), one_hot, one_hot.bool(), one_hot.half()):
        assert_close(
            case(z, target, reduction="none"), case(z, c, reduction="none").numpy(), 0, 1e-14
        )


@pytest.mark.parametrize("loss", (CASES | BOUNDS).values(), ids=CASES | BOUNDS)
def test_a_masked_row_is_the_row_without_those_classes(loss):
    """Value and gradient, whatever stands under the mask; a score of -inf acts as a mask."""
    keep = [0, 2, 3]
    z, y = random_scores()[:1], torch.tensor([[1.0, 0.0, 0.0, 1.0, 0.0]])
    short = z[:, keep].clone().requires_grad_()
    expected = loss(short, y[:, keep])
    expected.backward()
    mask = torch.zeros(1, 5, dtype=torch.bool)
    mask[0, keep] = True
    unders = [(fill, mask) for fill in (math.nan, math.inf, -math.inf, 1e30)]
    for under, given_mask in (*unders, (-math.inf, None)):
        long = z.masked_fill(~mask, under).requires_grad_()
        found = loss(long, y, mask=given_mask)
        found.backward()
        assert_close(found, expected.item(), 0, 1e-12)
        assert_close(long.grad[:, keep], short.grad.numpy(), 0, 1e-12)
        assert (long.grad[~mask] == 0).all()


@every_case
@pytest.mark.parametrize("target", [torch.tensor([2, 3]), SEVERAL], ids=["class", "several"])
def test_a_label_with_a_score_of_minus_infinity_is_infinite(case, target):
    z = random_scores()
    z[0, [0, 2]] = -math.inf
    z.requires_grad_()
    rows = case(z, target, reduction="none")
    rows.sum().backward()
    assert rows[0] == math.inf
    assert rows[1].isfinite()
    assert z.grad.isfinite().all()


@every_case
@given(data=st.data())
@settings(max_examples=10)
def test_the_order_of_classes_does_not_matter(case, data):
    batch = data.draw(batches(case))
    n = batch.scores.shape[-1]
    order = torch.tensor(data.draw(st.permutations(range(n))))
    mask = torch.ones_like(batch.scores).bool() if batch.mask is None else batch.mask
    weights = torch.tensor(batch.weights)
    weights[~mask.any(-1)] = 0
    grads = []
    for turn in (torch.arange(n), order):
        z = batch.scores[..., turn].clone().requires_grad_()
        worked = mask & (weights > 0).any(-1, keepdim=True)
        rows = case(z, weights[..., turn], mask=worked[..., turn], reduction="none")
        rows.sum().backward()
        grads.append((rows.detach(), z.grad))
    assert_close(grads[1][0], grads[0][0].numpy(), 1e-9, 1e-9)
    if case.loss is not losses.r_softmax_multilabel_loss:  # whose quantile is one of tied scores
        assert_close(grads[1][1], grads[0][1][..., order].numpy(), 1e-9, 1e-9)


@every_case
def test_autocast_and_half_precision_compute_in_float32(case):
    z = torch.randn(2, 5).bfloat16()
    expected = case(z.float(), SEVERAL)
    with torch.autocast("cpu", torch.bfloat16):
        assert case(z.float(), SEVERAL).equal(expected)
    assert case(z, SEVERAL).equal(expected)
    assert expected.dtype == torch.float32


WEIGHTED = [3.0, 0.0, 1.0, 0.0, 0.5]
CONVEX = {
    name: WEIGHTED
    for name in CASES
    if name.startswith(("sparsemax", "entmax", "sparsegen", "squared")) or name == "softmax"
}
CONVEX |= {f"hourglass {q}": [1.0, 0.0, 1.0, 0.0, 1.0] for q in (0.5, 10.0)}


@pytest.mark.parametrize(("name", "weights"), CONVEX.items(), ids=CONVEX)
@given(seed=st.integers(0, 2**32 - 1), share=st.floats(0, 1))
def test_convex(name, weights, seed, share):
    generator = torch.Generator().manual_seed(seed)
    one, two = 3 * torch.randn(2, 20, 5, dtype=torch.float64, generator=generator)
    target = torch.tensor(weights).expand(20, 5)
    between, *ends = (
        CASES[name](z, target, reduction="none")
        for z in (share * one + (1 - share) * two, one, two)
    )
    assert (between <= share * ends[0] + (1 - share) * ends[1] + 1e-12).all()


def test_hinges_take_no_memory_of_pairs():
    """30,000 classes would be 900 million pairs; the value is that of sorted sums in numpy."""
    z = torch.randn(30_000, dtype=torch.float64)
    y = torch.zeros(30_000, dtype=torch.float64).index_fill(0, torch.arange(0, 30_000, 10_000), 1.0)
    d = y.numpy() / 3.0 - z.numpy()
    expected = sum(numpy.maximum(0, d[i] - d).sum() for i in range(0, 30_000, 10_000))
    assert_close(losses.sparsegen_hinge_loss(z, y), expected, 1e-9)


FAR = {
    name: CASES[name]
    for name in ("sparsemax", "entmax 1.5", "sparsegen 0.5", "r 0.5", "t 3.0",
                 "bouchard shared", "bouchard per_class", "bouchard 1.5")
}  # fmt: skip
FAR["hourglass"] = lambda z, y: losses.sparsehourglass_loss(z, y, 1e12)  # sum z does not matter


@pytest.mark.parametrize("loss", FAR.values(), ids=FAR)
def test_float32_keeps_its_digits_far_from_0(loss):
    z, y = torch.tensor(Z) + 2.0**20, torch.tensor([1, 0, 1, 1])
    assert_close(loss(z, y), loss(z.double(), y).item(), 1e-5, 1e-7)


MOST = torch.finfo(torch.float32).max


@pytest.mark.parametrize("q", [1e300, MOST])
def test_a_huge_q_is_sparsemax(q):
    z, y = torch.tensor(Z), torch.tensor([1, 0, 1, 1])
    expected = losses.sparsegen_hinge_loss(z, y).item()
    assert_close(losses.sparsehourglass_loss(z, y, q), expected, 1e-6)
