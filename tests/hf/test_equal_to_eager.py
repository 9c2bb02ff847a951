"""Softmax through the plug-in is Transformers' own, in every module."""

import pytest
import torch
from torch import nn

from sparse_attn import Mapping, patch_model
from sparse_attn.hf.attention import sparse_attention
from sparse_attn.kernels import dispatch

from .families import BY_NAME, FAMILIES, HEADS
from .helpers import assert_near

BERT = BY_NAME["bert"]


@pytest.fixture(params=["reference", "fused"])
def tolerance(request, monkeypatch):
    """Relative error: of the same operations, or of kernels that add up in another order."""
    if request.param == "fused":
        return 5e-6
    monkeypatch.setattr(dispatch, "AUTOMATIC", {})
    return 1e-6


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_softmax_is_eager(family, masked, tolerance):
    inputs = family.inputs() if masked else family.unmasked()
    model = family.build(attn_implementation="eager")
    expected = family.hidden(model, inputs)
    patch_model(model, "softmax")
    assert_near(family.hidden(model, inputs), expected, tolerance)


@pytest.mark.parametrize("kind", ["bool", "float"])
@pytest.mark.parametrize("family", [f for f in FAMILIES if f.mask_4d], ids=str)
def test_softmax_is_eager_with_own_4d_mask(family, kind, tolerance):
    inputs = family.inputs()
    name = next(n for n in ("decoder_attention_mask", "attention_mask") if n in inputs)
    length = inputs[name].shape[1]
    mask = torch.rand(3, 1, length, length) < 0.6
    mask |= torch.eye(length, dtype=torch.bool)
    if family.causal or name.startswith("decoder"):
        mask = mask.tril()
    additive = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)
    model = family.build(attn_implementation="eager")
    with torch.no_grad():
        expected = family.run(model, {**inputs, name: additive})
        patch_model(model, "softmax")
        given = mask if kind == "bool" else additive
        actual = family.run(model, {**inputs, name: given})
    assert_near(actual, expected, tolerance)


def test_additive_bias_of_a_float_mask_is_kept(tolerance):
    bias = torch.randn(3, 4, 9, 9)
    bias[..., 5:] = -torch.inf
    inputs = {**BERT.inputs(), "attention_mask": bias}
    model = BERT.build(attn_implementation="eager")
    with torch.no_grad():
        expected = BERT.run(model, inputs)
        actual = BERT.run(patch_model(model, "softmax"), inputs)
    assert_near(actual, expected, tolerance)


def attention_module():
    """A module with a mapping and no model around it."""
    module = nn.Module()
    module.sparse_attn = Mapping("softmax")
    return module


@pytest.mark.parametrize("causal", [None, True, False])
@pytest.mark.parametrize("own", [True, False])
def test_argument_is_causal_beats_the_module(causal, own):
    module = attention_module()
    module.is_causal = own
    query, key = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 7, 8)
    _, weights = sparse_attention(
        module, query, key, key, None, is_causal=causal, output_attentions=True
    )
    expected = own if causal is None else causal
    assert bool((weights.triu(1) == 0).all()) == expected
    assert (weights.tril() > 0).sum() == 2 * 4 * (1 + 2 + 3 + 4 + 5)


def test_gpt2_with_its_own_eager_attention_is_patched_too():
    """reorder_and_upcast_attn has a softmax of its own, which eager uses and a patch must not."""
    family = BY_NAME["gpt2"]
    changes = {"reorder_and_upcast_attn": True, "scale_attn_by_inverse_layer_idx": True}
    expected = family.hidden(family.build(**changes, attn_implementation="eager"))
    model = patch_model(family.build(**changes), "softmax")
    assert_near(family.hidden(model), expected)
    with torch.no_grad():
        output = patch_model(model, "sparsemax")(**family.example, output_attentions=True)
    # 36 of 81 pairs are not causal
    assert all((w[0] == 0).sum() > HEADS * 36 for w in output.attentions)
