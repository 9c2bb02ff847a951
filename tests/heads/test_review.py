"""What a review found in the heads: each of these went wrong once."""

import warnings

import pytest
import torch
from torch import nn

from sparse_attn import Mapping
from sparse_attn.heads import AdaptiveHead, LinearHead, MixtureHead
from sparse_attn.heads.base import positive
from sparse_attn.mappings.monotone import _plif_function

POINTWISE = [
    "softmax",
    "sigsoftmax",
    "taylor-softmax",
    "spherical-softmax",
    "softmax-abs",
    "normalized-sigmoid",
    "temperature-softmax",
    "plif",
    "monotone",
]


@pytest.mark.parametrize("name", POINTWISE)
def test_a_bias_of_minus_infinity_bans_a_word(name):
    head = LinearHead(4, 7, name).double()
    with torch.no_grad():
        head.bias[2] = -torch.inf
    hidden, targets = torch.randn(5, 4, dtype=torch.double), torch.tensor([0, 1, 3, 4, 6])
    plain = -head.log_prob(hidden).gather(-1, targets[:, None]).mean()
    loss = head.nll(hidden, targets)
    torch.testing.assert_close(loss, plain, rtol=1e-6, atol=1e-9)
    parameters = [head.weight, *head.mapping.parameters()]
    found = torch.autograd.grad(loss, parameters)
    for gradient, expected in zip(found, torch.autograd.grad(plain, parameters), strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-8)


@pytest.mark.filterwarnings("ignore:.*of the scores lie outside")
@pytest.mark.parametrize("name", POINTWISE)
def test_an_overflow_is_not_hidden(name):
    head = LinearHead(1, 3, name, bias=False)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[1e38], [0.5], [-0.5]]))
    losses = head.nll(torch.tensor([[1e10], [1e-30]]), torch.tensor([1, 1]), reduction="none")
    assert losses[0].isnan()
    assert losses[1].isfinite()


def test_an_ignored_token_may_hold_nan_in_a_mixture():
    head = MixtureHead(4, 7, components=3, dropout=0.5)
    hidden = torch.randn(2, 3, 4)
    hidden[0, 1] = torch.nan
    targets = torch.tensor([[1, -100, 3], [4, 5, 6]])
    head.nll(hidden, targets).backward()
    for parameter in head.parameters():
        assert parameter.grad.isfinite().all()


@pytest.mark.parametrize(("knots", "spread"), [(1000, 0.02), (1000, 0.5), (10, 1.0)])
def test_plif_slopes_get_exact_gradients_in_float32(knots, spread):
    torch.manual_seed(0)
    z, raw = spread * torch.randn(64, 33_278), torch.zeros(knots, requires_grad=True)
    grad = z.softmax(-1)
    grad[torch.arange(64), torch.randint(33_278, (64,))] -= 1

    def gradient(dtype):
        f = _plif_function(z.to(dtype), raw.to(dtype), 20.0)
        return torch.autograd.grad(f, raw, grad.to(dtype))[0]

    expected = gradient(torch.float64)
    assert (gradient(torch.float32) - expected).norm() < 1e-3 * expected.norm() + 1e-6


def test_log_prob_warns_of_a_narrow_plif():
    linear = LinearHead(4, 50, Mapping("plif", knots=10, bound=1e-3))
    with pytest.warns(UserWarning, match="of the scores lie outside"):
        linear.log_prob(torch.randn(3, 4))
    mixture = MixtureHead(4, 50, Mapping("plif", knots=10, bound=1e-3))
    with pytest.warns(UserWarning, match="of the scores lie outside"):
        mixture.log_prob(torch.randn(3, 4))


def test_the_share_outside_is_that_of_the_whole_call():
    head = LinearHead(1, 10, Mapping("plif", knots=10, bound=5.0), bias=False)
    with torch.no_grad():
        head.weight.fill_(1.0)
    hidden = torch.zeros(1000, 1)
    hidden[0] = 100.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        head.nll(hidden, torch.zeros(1000, dtype=torch.long), chunk=2)
        head.mapping.set_value("bound", 1e3)
        head.watch.calls = 0
        head.nll(torch.full((10, 1), 100.0), torch.zeros(10, dtype=torch.long))


def test_a_half_precision_mixture_sums_to_one():
    head = MixtureHead(8, 500, components=3).bfloat16()
    total = head.log_prob(torch.randn(20, 8, dtype=torch.bfloat16)).exp().sum(-1)
    torch.testing.assert_close(total, torch.ones(20), rtol=0, atol=1e-5)


def test_a_frozen_sparse_head_is_measured_without_no_grad():
    head = LinearHead(4, 7, "sparsemax").requires_grad_(False)
    hidden, targets = torch.randn(3, 4), torch.tensor([0, 1, 2])
    assert (head.nll(hidden, targets) >= 0).all()
    with pytest.raises(ValueError, match="exact zeros"):
        head.nll(hidden.requires_grad_(), targets)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch, to itself
def test_a_compiled_model_is_not_compiled_anew_at_every_step():
    head = LinearHead(4, 7, Mapping("plif", knots=10))
    body = nn.Linear(4, 4)
    frames = []

    def backend(graph, inputs):
        frames.append(graph)
        return graph

    @torch.compile(backend=backend)
    def loss(x, targets):
        return head.nll(body(x), targets)

    targets = torch.tensor([0, 1, 2])
    loss(torch.randn(3, 4), targets).backward()
    first = len(frames)
    for _ in range(4):
        loss(torch.randn(3, 4), targets).backward()
    assert len(frames) == first


def test_heads_are_made_on_the_meta_device():
    with torch.device("meta"):
        assert MixtureHead(4, 7, "spherical-softmax").weight.is_meta
        assert AdaptiveHead(16, 20, [5, 10], "spherical-softmax").shortlist.weight.is_meta
    learned = Mapping("spherical-softmax", learn="eps").to("meta")
    assert LinearHead(4, 7, learned).to("meta").weight.is_meta


def test_whether_zeros_can_occur_follows_the_parameters():
    assert positive(Mapping("spherical-softmax", eps=0.1))
    assert not positive(Mapping("spherical-softmax", eps=0.0))
    assert positive(Mapping("weighted-softmax", weights=[1.0, 2.0]))
    assert not positive(Mapping("weighted-softmax", weights=[1.0, 0.0]))
    assert positive(Mapping("mixed-sparsemax", mix=0.5))
    assert not positive(Mapping("mixed-sparsemax", mix=1.0))
    assert not positive(Mapping("normalized-relu"))


def test_what_is_no_mapping_is_named():
    with pytest.raises(TypeError, match="mapping: expected a registered name"):
        LinearHead(4, 7, nn.Softmax(-1))
    with pytest.raises(ValueError, match=r"prior: .* for each of 3 attention heads"):
        MixtureHead(4, 7, prior=Mapping("t-softmax", t=[1.0, 2.0, 3.0], num_heads=3))
    with pytest.raises(TypeError, match=r"hidden: expected torch.float32.*use hidden\.to"):
        LinearHead(4, 7).nll(torch.randn(2, 4, dtype=torch.double), torch.tensor([0, 1]))


def test_rows_of_a_flat_batch_have_dropout_masks_of_their_own():
    head = MixtureHead(6, 5, components=2, dropout=0.5)
    hidden = torch.ones(200, 6)
    kept = head.latents(hidden) != 0
    assert len(kept.flatten(1).unique(dim=0)) > 100
    sequences = head.latents(hidden.view(4, 50, 6)) != 0
    assert (sequences == sequences[:, :1]).all()


def test_a_second_derivative_is_refused():
    head, hidden = LinearHead(4, 7), torch.randn(3, 4, requires_grad=True)
    for reduction in ("mean", "none"):
        loss = head.nll(hidden, torch.tensor([0, 1, 2]), reduction=reduction).sum()
        with pytest.raises(RuntimeError, match="no second derivative"):
            torch.autograd.grad(loss, hidden, create_graph=True)
