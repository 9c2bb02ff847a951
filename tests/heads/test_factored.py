"""The factored layer against a dense one that plain SGD trains, step by step."""

import math

import pytest
import torch
from torch.nn import functional as F

from sparse_attn import functional
from sparse_attn.heads import factored_matrix
from sparse_attn.heads.factored import FactoredSphericalHead
from sparse_attn.losses.bouchard import shared_bouchard_optimum

OBJECTIVES = ("spherical", "taylor", "mse", "bouchard")
EPS = 0.3
VOCAB, HIDDEN = 17, 6


def bouchard_loss(scores, targets):
    """B - z_c by the sum over classes that defines B, at the optimum."""
    with torch.no_grad():
        mean, variance = scores.mean(-1), scores.var(-1, correction=0)
        xi, alpha = shared_bouchard_optimum(mean, variance, scores.shape[-1])
        xi, alpha = xi.unsqueeze(-1), alpha.unsqueeze(-1)
        curvature = torch.tanh(xi / 2) / (4 * xi)
    away = scores - alpha
    terms = (away - xi) / 2 + curvature * (away.square() - xi**2) + F.softplus(xi)
    return (alpha.squeeze(-1) + terms.sum(-1)).mean() - scores.gather(-1, targets[:, None]).mean()


DENSE_LOSS = {
    "spherical": lambda z, c: F.nll_loss(functional.spherical_softmax(z, EPS, log=True), c),
    "taylor": lambda z, c: F.nll_loss(functional.taylor_softmax(z, log=True), c),
    "mse": lambda z, c: (z - F.one_hot(c, z.shape[-1])).square().sum(-1).mean() / 2,
    "bouchard": bouchard_loss,
}


class Dense:
    """The same layer with W in full, by autograd and torch.optim.SGD."""

    def __init__(self, head, dtype=torch.float64, weight_decay=0.0):
        self.loss, self.bias = DENSE_LOSS[head.objective], head.bias
        self.weight = head.W.to(dtype).requires_grad_()
        self.sgd = torch.optim.SGD([self.weight], lr=1.0, weight_decay=weight_decay)

    def backward(self, hidden, targets):
        """The loss and the gradient of hidden; that of the weight is in place."""
        rows = hidden.detach().to(self.weight.dtype).requires_grad_()
        full = F.pad(rows, (0, 1), value=1.0) if self.bias else rows
        loss = self.loss(full @ self.weight.T, targets)
        loss.backward()
        return loss.detach(), rows.grad

    def step(self, lr, max_norm=math.inf):
        norm = torch.nn.utils.clip_grad_norm_([self.weight], max_norm)
        self.sgd.param_groups[0]["lr"] = lr
        self.sgd.step()
        self.sgd.zero_grad()
        return norm


def make(objective, **options):
    return FactoredSphericalHead(HIDDEN, VOCAB, objective, eps=EPS, **options).double()


def batch(rows=5, repeated=True):
    hidden = torch.randn(rows, HIDDEN, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(VOCAB, (rows,))
    if repeated and rows > 1:
        targets[1] = targets[0]
    return hidden, targets


def assert_same(head, dense, tolerance=1e-9):
    weight = dense.weight.detach()
    close = {"rtol": tolerance, "atol": tolerance}
    torch.testing.assert_close(head.W, weight, **close)
    torch.testing.assert_close(head.matrix.Q, weight.T @ weight, **close)
    torch.testing.assert_close(head.matrix.w_bar, weight.sum(0), **close)
    inverse = head.matrix.U_inv_T.T @ head.matrix.U
    torch.testing.assert_close(inverse, torch.eye(len(inverse)).to(inverse), **close)


@pytest.mark.slow
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("bias", [False, True])
def test_equals_dense_sgd(objective, bias):
    head = make(objective, bias=bias)
    dense = Dense(head)
    for step in range(60):
        # fewer and more rows than columns, each at each rate
        hidden, targets = batch(rows=(1, 2, 5, 6, 7, 13)[step % 6])
        lr = 0.02 * (1 + step % 7)
        found = head(hidden, targets)
        found.backward()
        expected, grad = dense.backward(hidden, targets)
        torch.testing.assert_close(found.detach(), expected, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(hidden.grad, grad, rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(head.grad_norm(), dense.weight.grad.norm(), rtol=1e-9, atol=0)
        head.step(lr)
        dense.step(lr)
        assert_same(head, dense)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_clipping_and_weight_decay_are_those_of_torch(objective):
    head = make(objective, bias=True)
    dense = Dense(head, weight_decay=0.3)
    clipped = 0
    for step in range(30):
        hidden, targets = batch()
        head(hidden, targets).backward()
        dense.backward(hidden, targets)
        norm = dense.step(0.1 + 0.01 * step, max_norm=0.5)
        found = head.step(0.1 + 0.01 * step, max_norm=0.5, weight_decay=0.3)
        torch.testing.assert_close(found, norm, rtol=1e-8, atol=0)
        clipped += norm.item() > 0.5
        assert_same(head, dense)
    assert clipped > 0


def test_gradients_of_several_backwards_add_up():
    head = make("taylor")
    dense = Dense(head)
    for _ in range(5):
        for weight in (0.5, 2.0, -0.25):
            hidden, targets = batch()
            (weight * head(hidden, targets)).backward()
            expected = torch.autograd.grad(
                weight * dense.loss(hidden @ dense.weight.T, targets), (hidden, dense.weight)
            )
            torch.testing.assert_close(hidden.grad, expected[0])
            known = dense.weight.grad
            dense.weight.grad = expected[1] if known is None else known + expected[1]
        head.step(0.05)
        dense.step(0.05)
        assert_same(head, dense)


def test_ignored_targets_and_leading_dimensions():
    head = make("spherical")
    dense = Dense(head)
    hidden = torch.randn(2, 3, HIDDEN, dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([[3, -1, 3], [-1, 0, 16]])
    loss = head(hidden, targets, ignore_index=-1)
    loss.backward()
    kept = targets != -1
    expected, grad = dense.backward(hidden[kept], targets[kept])
    torch.testing.assert_close(loss.detach(), expected)
    torch.testing.assert_close(hidden.grad[kept], grad)
    assert (hidden.grad[~kept] == 0).all()
    head.step(0.2)
    dense.step(0.2)
    assert_same(head, dense)


def test_nothing_to_count_is_nan_and_no_step():
    head = make("spherical")
    before = head.W
    hidden = torch.randn(2, HIDDEN, dtype=torch.float64, requires_grad=True)
    loss = head(hidden, torch.full((2,), -100))
    loss.backward()
    assert loss.isnan()
    assert (hidden.grad == 0).all()
    assert head.step(0.1) == 0
    assert torch.equal(head.W, before)


# Numerical stability


def steep_batch(dtype):
    """Hidden states that share a direction, as those of rectifiers do."""
    hidden = 1 + 0.3 * torch.randn(8, HIDDEN, dtype=torch.float64)
    return hidden.to(dtype), torch.randint(VOCAB, (8,))


def error_after(steps, dtype, objective, lr):
    """Largest error of W and of Q, relative to their norms, against dense float64."""
    torch.manual_seed(1)
    head = make(objective).to(dtype)
    dense = Dense(head)
    for _ in range(steps):
        hidden, targets = steep_batch(dtype)
        head(hidden, targets).backward()
        dense.backward(hidden, targets)
        head.step(lr)
        dense.step(lr)
    weight = dense.weight.detach()
    pairs = ((head.W, weight), (head.matrix.Q, weight.T @ weight))
    errors = [((x - y).norm() / y.norm()).nan_to_num(math.inf).item() for x, y in pairs]
    return max(errors)


# Measured over 600 steps: 2e-6 to 7e-6 in float32, where dense SGD has 3e-7 to 9e-6, and 1e-14 to
# 3e-14 in float64; no more than twice as much over 2000.
FLOAT32, FLOAT64 = (torch.float32, 5e-5), (torch.float64, 5e-13)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("objective", "lr", "steps", "dtype", "most"),
    [
        ("mse", 0.1, 50, *FLOAT64),
        ("bouchard", 0.3, 100, *FLOAT32),
        ("taylor", 0.5, 150, *FLOAT64),
        ("spherical", 4.0, 300, *FLOAT32),
    ],
)
def test_errors_do_not_grow(objective, lr, steps, dtype, most, monkeypatch):
    """In as many steps as lose the run without stabilisation."""
    assert error_after(steps, dtype, objective, lr) < most
    monkeypatch.setattr(factored_matrix, "FAR", math.inf)
    assert error_after(steps, dtype, objective, lr) > 0.01


def test_a_step_that_makes_u_singular_is_exact():
    """lr times curvature = 1 removes a direction of W, which U could not give back."""
    head = make("mse")
    dense = Dense(head)
    for _ in range(3):
        hidden, targets = batch(rows=1)
        lr = 1 / hidden.detach().square().sum().item()
        head(hidden, targets).backward()
        dense.backward(hidden, targets)
        head.step(lr)
        dense.step(lr)
        assert_same(head, dense)
    assert torch.equal(head.matrix.U, torch.eye(HIDDEN).double())


# Values
