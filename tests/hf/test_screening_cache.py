"""Generation with a `ScreeningCache` is that with a `DynamicCache`."""

import copy

import pytest
import torch
from transformers import DynamicCache

from sparse_attn import ScreeningCache, patch_model
from sparse_attn.hf.attention import INT8_KEYS
from sparse_attn.kernels.cpu.int8_keys import empty_int8

from .families import BY_NAME, tokens
from .helpers import CACHE, assert_near, generate_greedily

PROMPT, NEW = 1150, 6  # keys are screened from 1,024 on,
SIZE = 32  # and in heads of 32 or more
MAPPINGS = {"sparsemax": {}, "entmax": {"alpha": 1.5}, "max-gap": {"a": 64.0}}


@pytest.fixture(params=MAPPINGS)
def model(request):
    """A Llama of two query heads per key head, whose attention is sharp."""
    family = BY_NAME["llama"]
    model = family.build(
        family.head, vocab_size=97, hidden_size=4 * SIZE, max_position_embeddings=2048
    )
    return patch_model(model, request.param, **MAPPINGS[request.param])


def prompt(rows=2):
    ids = torch.randint(3, 97, (rows, PROMPT), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1:, :60] = 0
    return ids, mask


def generate(model, kind, ids, mask, **options):
    cache = kind(config=model.config)
    return generate_greedily(model, ids, mask, NEW, past_key_values=cache, **options), cache


@pytest.mark.parametrize("beams", [1, 3])
def test_generate(model, beams):
    """Of a batch with left padding."""
    given = prompt()
    expected, _ = generate(model, DynamicCache, *given, num_beams=beams)
    actual, cache = generate(model, ScreeningCache, *given, num_beams=beams)
    assert torch.equal(actual, expected)
    used = empty_int8(torch.zeros(1, 1, 64, SIZE)) is not None
    assert all(hasattr(layer.keys, INT8_KEYS) == used for layer in cache.layers)


def crop(cache):
    cache.crop(-100)


def crop_and_change(cache):
    cache.crop(-1)
    for layer in cache.layers:
        layer.keys.mul_(0.5)


def repeat(cache):
    cache.batch_repeat_interleave(2)


def select(cache):
    cache.batch_select_indices(torch.tensor([1]))


def reorder(cache):
    cache.reorder_cache(torch.tensor([1, 1]))


def replace(cache):
    for layer in cache.layers:
        layer.keys, layer.values = layer.keys[:, :, 1:], layer.values[:, :, 1:]


@torch.no_grad()
@pytest.mark.parametrize("change", [crop, crop_and_change, repeat, select, reorder, replace])
def test_changed_caches(model, change):
    """Then one token, several, and one again; also of a copy of the cache."""
    ids, _ = prompt()
    caches = [DynamicCache(config=model.config), ScreeningCache(model.config)]
    for cache in caches:
        with torch.inference_mode():
            model(ids, **{CACHE: cache})
            model(ids[:, :1], **{CACHE: cache})
            change(cache)
    caches.append(copy.deepcopy(caches[1]))
    for new in (1, 3, 1):
        rows = len(caches[0].layers[0].keys)
        expected, *actual = (model(ids[:1, :new].repeat(rows, 1), **{CACHE: c}) for c in caches)
        for output in actual:
            assert_near(output.logits, expected.logits, 1e-4)


@torch.no_grad()
def test_reset(model):
    ids, _ = prompt()
    cache = ScreeningCache()
    model(ids, **{CACHE: cache})
    cache.reset()
    assert cache.get_seq_length() == 0
    assert_near(model(ids, **{CACHE: cache}).logits, model(ids).logits, 1e-5)
    assert cache.get_seq_length() == PROMPT


def test_gradients_through_a_cache(model):
    ids, _ = prompt(1)
    gradients = []
    for cache in (DynamicCache(config=model.config), ScreeningCache(model.config)):
        model.zero_grad()
        for part in (ids[:, :8], ids[:, 8:16], ids[:, 16:17]):
            logits = model(part, **{CACHE: cache}).logits
        logits.sum().backward()
        gradients.append(model.model.layers[0].self_attn.k_proj.weight.grad.clone())
    assert torch.equal(*gradients)


@pytest.mark.parametrize("name", ["gemma2", "mistral", "gpt2"])
def test_other_layers_stay_those_of_transformers(name):
    family = BY_NAME[name]
    model = patch_model(family.build(family.head), "sparsemax")
    ids = tokens()
    expected, plain = generate(model, DynamicCache, ids, torch.ones_like(ids))
    actual, cache = generate(model, ScreeningCache, ids, torch.ones_like(ids))
    assert torch.equal(actual, expected)
    for layer, other in zip(cache.layers, plain.layers, strict=True):
        assert layer.is_sliding == other.is_sliding


@torch.no_grad()
def test_half_precision_keeps_no_int8(model):
    ids, mask = prompt()
    model.bfloat16()
    expected, _ = generate(model, DynamicCache, ids, mask)
    actual, cache = generate(model, ScreeningCache, ids, mask)
    assert torch.equal(actual, expected)
    assert not hasattr(cache.layers[0].keys, INT8_KEYS)
