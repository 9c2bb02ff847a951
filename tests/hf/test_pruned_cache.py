"""Layers whose caches hold different numbers of keys, as after pruning a cache by layer."""

import pytest
import torch
from transformers import DynamicCache

from sparse_attn import patch_model

from .families import BY_NAME, tokens
from .helpers import CACHE, assert_near

LLAMA = BY_NAME["llama"]
PRUNED = [(0, 3), (3, 0)]  # keys that each of the two layers loses


def pruned(model, ids, lost):
    """A cache of the tokens, without the first keys of each layer."""
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(input_ids=ids, **{CACHE: cache})
    for layer, number in zip(cache.layers, lost, strict=True):
        layer.keys, layer.values = layer.keys[:, :, number:], layer.values[:, :, number:]
    return cache


def logits(model, ids, lost, chunk, **inputs):
    cache = pruned(model, ids[:, :6], lost)
    positions = torch.arange(6, 6 + chunk)[None].expand(len(ids), -1)
    with torch.no_grad():
        return model(
            input_ids=ids[:, 6 : 6 + chunk], position_ids=positions, **{CACHE: cache}, **inputs
        ).logits


@pytest.mark.parametrize("lost", PRUNED)
def test_a_chunk_of_tokens_raises(lost):
    """Its mask is for one layer: cropped for another, early tokens would see later ones."""
    model = patch_model(LLAMA.build(LLAMA.head), "softmax")
    message = r"attention_mask: expected .* LlamaAttention .* same number"
    with pytest.raises(ValueError, match=message):
        logits(model, tokens(), lost, chunk=3)


@pytest.mark.parametrize("lost", PRUNED)
def test_one_token_sees_all_keys(lost):
    """As with SDPA, which gets no mask then."""
    model, ids = LLAMA.build(LLAMA.head, attn_implementation="sdpa"), tokens()
    expected = logits(model, ids, lost, chunk=1)
    assert_near(logits(patch_model(model, "softmax"), ids, lost, chunk=1), expected, 1e-5)


@pytest.mark.parametrize("lost", PRUNED)
def test_one_token_beside_padding_raises(lost):
    model, ids = patch_model(LLAMA.build(LLAMA.head), "softmax"), tokens()
    keys = 6 - lost[0] + 1  # of the first layer, which the mask is made for
    padding = torch.ones(len(ids), keys, dtype=torch.long)
    padding[1, 0] = 0
    with pytest.raises(ValueError, match="attention_mask: expected"):
        logits(model, ids, lost, chunk=1, attention_mask=padding)


def test_layers_of_equal_length_continue():
    model, ids = LLAMA.build(LLAMA.head, attn_implementation="eager"), tokens()
    expected = logits(model, ids, (2, 2), chunk=3)
    assert_near(logits(patch_model(model, "softmax"), ids, (2, 2), chunk=3), expected, 1e-5)
