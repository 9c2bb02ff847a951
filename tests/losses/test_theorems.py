"""What the papers prove about the losses, on random rows."""

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from sparse_attn import losses
from sparse_attn.functional import entmax, sparsegen, sparsehourglass
from tests.losses import oracle
from tests.losses.cases import BOTH, CASES, Eta, Row, assert_close

SHIFTLESS = [
    k for k, c in CASES.items() if k.startswith(("sparsemax", "entmax", "sparsegen", "r "))
]


@pytest.mark.parametrize("name", [*SHIFTLESS, "softmax"])
@given(z=Row, shift=st.integers(-3200, 3200))
def test_a_common_shift_changes_nothing(name, z, shift):
    y, z = torch.tensor(BOTH), (64 * z).round()  # so that ties stay ties
    assert_close(CASES[name]((z + shift) / 64, y), CASES[name](z / 64, y).numpy())


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
@given(z=Row, eta=Eta)
def test_fenchel_young_losses_are_0_where_p_is_eta_and_slope_p_minus_eta(alpha, z, eta):
    scores = z.clone().requires_grad_()
    loss = losses.entmax_loss(scores, eta, alpha)
    loss.backward()
    p = entmax(z, alpha)
    assert_close(scores.grad, p - eta, 0, 1e-9)
    assert loss >= -1e-12
    assert (loss <= 1e-9) or (p - eta).abs().max() > 1e-9
    assert_close(losses.entmax_loss(z, p, alpha), 0.0)


@given(z=Row, c=st.integers(0, 3))
def test_sparsemax_loss_is_0_from_a_margin_of_1_on(z, c):
    others = z[torch.arange(4) != c].max()
    margin = (z[c] - others).item()
    assume(abs(margin - 1) > 1e-4)
    assert (losses.sparsemax_loss(z, torch.tensor(c)) < 1e-10) == (margin > 1)


@pytest.mark.parametrize(("alpha", "margin"), [(2.0, 1.0), (1.5, 2.0), (1.2, 5.0)])
def test_entmax_loss_is_0_from_a_margin_of_1_over_alpha_less_1_on(alpha, margin):
    gaps = torch.tensor([margin / 2, margin, margin + 0.1, margin + 30], dtype=torch.float64)
    scores = torch.stack([gaps, torch.zeros(4), torch.full((4,), -2.0)], -1).double()
    found = losses.entmax_loss(scores, torch.zeros(4).long(), alpha, reduction="none")
    assert found[0] > 1e-3
    assert_close(found[1:], [0.0, 0.0, 0.0], 0, 1e-12)


@given(top=st.floats(-50, 50), margin=st.floats(-5, 5))
def test_sparsemax_loss_of_two_classes_is_the_huber_loss(top, margin):
    huber = 0.0 if margin >= 1 else -margin if margin <= -1 else (1 - margin) ** 2 / 4
    z = torch.tensor([top, top - margin], dtype=torch.float64)
    assert_close(losses.sparsemax_loss(z, torch.tensor(0)), huber, 0, 1e-11)


@given(eta=Eta, slack=st.floats(0, 3), shift=st.floats(-3, 3), lam=st.sampled_from([0, 0.5, -1]))
def test_sparsegen_hinge_is_0_where_positives_are_eta_apart(eta, slack, shift, lam):
    z = (1 - lam) * (torch.where(eta > 0, eta, -slack) + shift)
    assert_close(losses.sparsegen_hinge_loss(z, eta, lam=lam), 0.0)
    assert_close(sparsegen(z, lam), eta.numpy())


@pytest.mark.parametrize(
    ("loss", "mapping", "parameter"),
    [
        (losses.sparsegen_hinge_loss, sparsegen, 0.5),
        (losses.sparsehourglass_loss, sparsehourglass, 0.5),
        (losses.sparsehourglass_loss, sparsehourglass, 10.0),
    ],
)
@given(z=Row, eta=Eta)
def test_hinges_are_0_only_where_the_mapping_gives_the_target(loss, mapping, parameter, z, eta):
    away = (mapping(z, parameter) - eta).abs().max()
    assert loss(z, eta, parameter) > 1e-3 * away or away < 1e-9


@given(labels=st.integers(1, 3), slack=st.floats(0, 0.5), q=st.sampled_from([0.5, 2.0, 10.0]))
def test_sparsehourglass_hinge_is_0_at_the_target(labels, slack, q):
    eta = (torch.arange(4) < labels).double() / labels
    z = torch.where(eta > 0, eta, -slack)
    assert_close(losses.sparsehourglass_loss(z, eta, q=q), 0.0)
    assert_close(sparsehourglass(z, q), eta.numpy())


@given(z=Row, y=Eta)
def test_one_formula_two_names(z, y):
    """entmax ends at sparsemax and at softmax, whose nll has the entropy of eta besides."""
    assert_close(losses.entmax_loss(z, y, 2.0), losses.sparsemax_loss(z, y).numpy())
    near = losses.entmax_loss(z, y, 1 + 1e-6)
    assert_close(losses.entmax_loss(z, y, 1.0), near.numpy(), 0, 1e-4)
    entropy = oracle.tsallis_entropy(y.tolist(), 1)
    assert_close(
        losses.entmax_loss(z, y, 1.0) + entropy, losses.mapping_nll(z, y, "softmax").numpy()
    )
    far = losses.sparsehourglass_loss(z, y, q=1e9)
    assert_close(far, losses.sparsegen_hinge_loss(z, y).numpy(), 1e-6, 1e-6)
