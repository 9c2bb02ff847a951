"""The output layer g:ReLU of Kanai et al. 2018, with an epsilon."""

import pytest
import torch

import experiments.language_modeling.mappings  # noqa: F401
from sparse_attn import Mapping
from sparse_attn.heads import LinearHead


def test_relu_eps_is_its_formula():
    z = torch.tensor([1.0, 0.2, -1.5, 0.7], dtype=torch.float64)
    relu = Mapping("relu-eps")
    expected = torch.tensor([0.526316, 0.105263, 0.0, 0.368421], dtype=torch.float64)
    torch.testing.assert_close(relu(z), expected, rtol=0, atol=1e-6)
    assert relu.log(z)[2].item() == pytest.approx(torch.log(torch.tensor(1e-8 / 1.9)).item())
    torch.testing.assert_close(relu.log(z).exp(), relu(z))


def test_relu_eps_trains_by_likelihood():
    head = LinearHead(4, 7, "relu-eps")
    loss = head.loss(torch.randn(5, 4), torch.tensor([0, 1, 2, 3, 6]))
    loss.backward()
    assert loss.isfinite()
    assert head.weight.grad.isfinite().all()
