"""Gradient checkpointing of models that return attention weights.

These models do not pass `output_attentions` down to their attention. Transformers collects the
weights, but not while a layer is recomputed.
"""

import pytest
import torch

from sparse_attn import Mapping, patch_model

from .families import BY_NAME, LLAMA, Family, tokens
from .helpers import gradients
from .test_compile import checkpoint

GPT = BY_NAME["gpt2"].config
MODELS = [
    (BY_NAME["gpt2"], {"attn_pdrop": 0.3}),
    (BY_NAME["opt"], {"attention_dropout": 0.3}),
    (Family("gpt-bigcode", "GPTBigCodeModel", GPT, 2), {"attn_pdrop": 0.3}),
    *(
        (Family(name.lower(), f"{name}Model", {**LLAMA, "num_key_value_heads": 4}, 2),
         {"attention_dropout": 0.3})
        for name in ("StableLm", "Nemotron", "Persimmon")
    ),
]  # fmt: skip
reentrant = pytest.mark.parametrize("reentrant", [False, True])


def trained(model, ids, weight=0.0):
    """Gradients of a loss of the output and, times `weight`, of the attention weights."""
    torch.manual_seed(3)
    model.zero_grad()
    output = model(input_ids=ids, output_attentions=True, use_cache=False)
    assert all(weights is not None for weights in output.attentions)
    loss = output.last_hidden_state.square().mean()
    if weight:
        loss = loss + weight * sum(weights.square().mean() for weights in output.attentions)
    loss.backward()
    return gradients(model)


def assert_same(actual, expected):
    largest = max(gradient.abs().max() for gradient in expected.values())
    assert actual.keys() == expected.keys()
    for name, gradient in actual.items():
        assert (gradient - expected[name]).abs().max() < 1e-5 * largest, name


@reentrant
@pytest.mark.parametrize(
    ("family", "dropout"), MODELS, ids=lambda value: getattr(value, "name", "")
)
def test_gradients_are_those_without_checkpointing(family, dropout, reentrant):
    model = patch_model(family.build(**dropout).train(), "t-softmax", t=1.2, learn="t")
    ids = tokens()
    expected = trained(model, ids)
    checkpoint(model, reentrant)
    assert_same(trained(model, ids), expected)


def test_a_loss_of_the_weights_reaches_the_layers():
    """Under checkpointing without reentrance, the only one whose weights have a gradient."""
    family, dropout = MODELS[0]
    model = patch_model(family.build(**dropout).train(), "t-softmax", t=1.2, learn="t")
    ids = tokens()
    expected, without = trained(model, ids, weight=10.0), trained(model, ids)
    slope = "h.1.attn.sparse_attn.raw_t"
    assert (expected[slope] - without[slope]).abs().max() > 1e-3 * without[slope].abs().max()
    checkpoint(model, reentrant=False)
    assert_same(trained(model, ids, weight=10.0), expected)


def test_a_second_derivative_needs_a_hook_on_the_mapping():
    model = patch_model(BY_NAME["gpt2"].build(), "t-softmax", t=1.2)
    for module in model.modules():
        if type(module) is Mapping:
            module.register_forward_hook(lambda *_: None)
    hidden = torch.randn(1, 5, 16, requires_grad=True)
    output = model(inputs_embeds=hidden, output_attentions=True).last_hidden_state
    (slope,) = torch.autograd.grad(output.square().sum(), hidden, create_graph=True)
    (curvature,) = torch.autograd.grad(slope.sum(), hidden)
    assert curvature.isfinite().all()
    assert curvature.any()
