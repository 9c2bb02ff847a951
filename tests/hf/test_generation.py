"""Generation does not depend on the cache or on left padding."""

import pytest
import torch
from transformers import StaticCache

from sparse_attn import patch_model

from .families import BY_NAME, padding, tokens
from .helpers import CACHE, FEW, assert_near, generate_greedily, mapping_id, patch

GPT2 = BY_NAME["gpt2"]
LLAMA = BY_NAME["llama"]

SOME = [("softmax", {}), *FEW, ("entmax", {"alpha": 1.5}), ("normalized-relu", {})]
DECODERS = ["llama", "gpt2", "gemma2", "gpt-oss"]
NEW = 6
ROUNDING = 1e-4  # of logits after several layers and tokens, computed in another order


def generate(model, ids, mask, **options):
    """Greedy tokens (batch, NEW) and their logits (batch, NEW, vocabulary)."""
    result = generate_greedily(
        model, ids, mask, NEW, output_logits=True, return_dict_in_generate=True, **options
    )
    return result.sequences[:, -NEW:], torch.stack(result.logits, dim=1)


@pytest.mark.parametrize("mapping", SOME, ids=mapping_id)
@pytest.mark.parametrize("name", [*DECODERS, "t5", "bart"])
def test_every_cache_agrees(name, mapping):
    """Of decoders under left padding."""
    family = BY_NAME[name]
    model = patch(family.build(family.head), mapping)
    ids, mask, caches = tokens(), padding(), [{"use_cache": True}]
    if name in DECODERS:
        mask, caches = mask.flip(-1), [*caches, {"cache_implementation": "static"}]
    expected_ids, expected = generate(model, ids, mask, use_cache=False)
    for options in caches:
        actual_ids, actual = generate(model, ids, mask, **options)
        assert_near(actual, expected, ROUNDING)
        assert torch.equal(actual_ids, expected_ids)


@pytest.mark.parametrize("mapping", SOME, ids=mapping_id)
@pytest.mark.parametrize("name", DECODERS)
def test_left_padding_does_not_change_the_text(name, mapping):
    family = BY_NAME[name]
    model = patch(family.build(family.head), mapping)
    ids, mask = tokens(), padding().flip(-1)
    batch_ids, batch = generate(model, ids, mask)
    for row, length in enumerate(mask.sum(-1).tolist()):
        alone = ids[row : row + 1, -length:]
        row_ids, row_logits = generate(model, alone, torch.ones_like(alone))
        assert_near(batch[row], row_logits[0], ROUNDING)
        assert torch.equal(batch_ids[row], row_ids[0])


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("name", [*DECODERS, "mistral"])
def test_softmax_generates_as_eager(name, static):
    family = BY_NAME[name]
    ids, mask = tokens(), padding().flip(-1)
    options = {"cache_implementation": "static"} if static else {}
    expected_ids, expected = generate(
        family.build(family.head, attn_implementation="eager"), ids, mask, **options
    )
    actual_ids, actual = generate(
        patch_model(family.build(family.head), "softmax"), ids, mask, **options
    )
    assert_near(actual, expected, ROUNDING)
    assert torch.equal(actual_ids, expected_ids)


def test_prompt_into_a_long_static_cache_without_mask():
    """Keys are then longer than queries: the empty slots at the end must not be attended to."""
    model = patch_model(LLAMA.build(LLAMA.head), "normalized-sigmoid")
    ids = tokens()
    with torch.no_grad():
        expected = model(input_ids=ids, use_cache=False).logits
        cache = StaticCache(config=model.config, max_cache_len=20)
        actual = model(input_ids=ids, **{CACHE: cache}).logits
    assert_near(actual, expected, ROUNDING)


def test_packed_sequences_do_not_see_each_other():
    model = patch_model(LLAMA.build(), "r-softmax", r=0.3)
    ids = tokens(rows=1)
    positions = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3]])
    with torch.no_grad():
        packed = model(input_ids=ids, position_ids=positions, use_cache=False).last_hidden_state
        first = model(input_ids=ids[:, :5]).last_hidden_state
        second = model(input_ids=ids[:, 5:]).last_hidden_state
    assert_near(packed, torch.cat([first, second], dim=1), ROUNDING)


def test_beam_search_runs_with_cache_reordering():
    model = patch_model(GPT2.build(GPT2.head), "sparsemax")
    ids, mask = tokens(), padding().flip(-1)
    options = {"num_beams": 3, "max_new_tokens": NEW, "do_sample": False}
    cached = model.generate(input_ids=ids, attention_mask=mask, use_cache=True, **options)
    plain = model.generate(input_ids=ids, attention_mask=mask, use_cache=False, **options)
    assert torch.equal(cached, plain)
