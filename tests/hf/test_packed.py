"""Packed sequences: Transformers' own boundaries keep them apart, forward and backward."""

from functools import partial

import pytest
import torch
from transformers import DataCollatorWithFlattening

from sparse_attn import patch_model
from sparse_attn.inspection import record_attention

from .families import BY_NAME, LENGTHS, padding, tokens
from .helpers import CACHE, FEW, assert_near, gradients, mapping_id, patch
from .test_padding import ROUNDING

NAMES = (
    "bert", "roberta", "distilbert", "albert", "electra", "modernbert", "gpt2", "opt", "llama",
    "mistral", "gemma2", "gemma3", "gpt-oss",
)  # fmt: skip
BERT, MODERNBERT, LLAMA = map(BY_NAME.get, ("bert", "modernbert", "llama"))


def both_forms(family):
    """The same sequences packed, as the collator does it, and padded."""
    ids = tokens()
    first = 2 if family.name == "roberta" else 0
    collate = DataCollatorWithFlattening(return_flash_attn_kwargs=True, position_ids_start=first)
    sequences = [{"input_ids": row[:n]} for row, n in zip(ids, LENGTHS, strict=True)]
    packed = {k: v for k, v in collate(sequences).items() if k != "labels"}
    return packed, {"input_ids": ids, "attention_mask": padding()}


def outcome(model, inputs, upstream, keep):
    """Hidden states of the tokens, one after another, and all gradients."""
    model.zero_grad()
    hidden = model(**inputs).last_hidden_state[keep]
    (hidden * upstream).sum().backward()
    return hidden.detach(), gradients(model)


@pytest.mark.parametrize("mapping", FEW, ids=mapping_id)
@pytest.mark.parametrize("name", NAMES)
def test_packed_equals_padded(name, mapping):
    family = BY_NAME[name]
    model = patch(family.build(), mapping)
    packed, padded = both_forms(family)
    upstream = torch.randn(sum(LENGTHS), model.config.hidden_size)
    hidden, by_packed = outcome(model, packed, upstream, torch.ones(1, sum(LENGTHS)).bool())
    expected, by_padded = outcome(model, padded, upstream, padding().bool())
    assert_near(hidden, expected, ROUNDING)
    assert by_packed.keys() == by_padded.keys()
    largest = max(gradient.abs().max() for gradient in by_padded.values())
    for parameter, gradient in by_padded.items():
        error = (by_packed[parameter] - gradient).abs().max()
        assert error <= 10 * ROUNDING * largest, parameter


@pytest.mark.parametrize("family", [BERT, MODERNBERT, LLAMA], ids=str)
def test_boundaries_matter(family):
    """The test above can fail."""
    model = patch_model(family.build(), "sparsemax")
    packed, _ = both_forms(family)
    own = family.hidden(model, packed)
    packed["cu_seq_lens_q"] = packed["cu_seq_lens_k"] = torch.tensor([0, sum(LENGTHS)])
    joined = family.hidden(model, packed)
    assert (own - joined)[LENGTHS[0] :].abs().max() > 0.1


def test_weights_and_records_are_of_each_sequence():
    model = patch_model(MODERNBERT.build(), "sparsemax")
    packed, padded = both_forms(MODERNBERT)
    with torch.no_grad():
        for weights in model(**packed, output_attentions=True).attentions:
            for start, length in zip((0, 9, 15), LENGTHS, strict=True):
                own = weights[..., start : start + length, start : start + length].sum(-1)
                torch.testing.assert_close(own, torch.ones_like(own))
        found = []
        for inputs in (packed, padded):
            with record_attention(model) as record:
                model(**inputs)
            found.append(record)
    for name in ("zeros", "support", "entropy", "support_by_position"):
        packed_one, padded_one = (getattr(record, name) for record in found)
        torch.testing.assert_close(packed_one, padded_one)


@pytest.mark.slow
def test_one_graph():
    model = patch_model(MODERNBERT.build(), "r-softmax", r=0.3)
    packed, _ = both_forms(MODERNBERT)
    expected = MODERNBERT.hidden(model, packed)
    fast = torch.compile(partial(model, **packed), backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        assert_near(fast().last_hidden_state[0], expected)


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"cu_seq_lens_k": None}, NotImplementedError, "LlamaAttention passes packed.*alike"),
        ({"cu_seq_lens_q": None}, NotImplementedError, "LlamaAttention passes packed.*alike"),
        ({"cu_seq_lens_k": torch.tensor([0, 9, 17])}, NotImplementedError, "keys are not those"),
        ({"cu_seq_lens_k": torch.tensor([0, 8, 15, 17])}, NotImplementedError, "not those"),
        ({"input_ids": tokens(2, 17)}, ValueError, "cu_seqlens: expected a batch of 1"),
        ({"input_ids": tokens(1, 16)}, ValueError, r"cu_seqlens: .*length of query, 16.*15, 17\]"),
    ],
)
def test_boundaries_of_other_sequences_are_refused(changes, error, says):
    model = patch_model(LLAMA.build(), "sparsemax")
    packed, _ = both_forms(LLAMA)
    packed.pop("position_ids")
    with pytest.raises(error, match=says):
        model(**{**packed, **changes})


def test_keys_of_a_cache_are_refused():
    model = patch_model(LLAMA.build(), "sparsemax")
    packed, _ = both_forms(LLAMA)
    cache = getattr(model(**packed), CACHE)
    with pytest.raises(ValueError, match="cu_seqlens: expected a batch of 1 and a key for each"):
        model(**packed, **{CACHE: cache})
