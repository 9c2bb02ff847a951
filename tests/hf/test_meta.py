"""Patched models on the meta device: shapes without numbers, and the fixed values kept."""

import pytest
import torch
import transformers
from torch.utils.flop_counter import FlopCounterMode

from sparse_attn import Mapping, patch_lm_head, patch_model

from .families import BATCH, BY_NAME, HEADS, LENGTH, padding, tokens
from .helpers import mappings_of

BERT = BY_NAME["bert"]
VALUES = [0.1, 0.2, 0.3, 0.4]
OPTIONS = {
    "r-softmax": {"r": VALUES, "per": "head"},
    "t-softmax": {"t": 2.0, "learn": "t", "per": "head"},
    "plif": {"knots": 12},
}
# parameters to learn are refused on the meta device; patched before, they move there
WAYS = [
    ("r-softmax", "inside"),
    ("r-softmax", "outside"),
    ("t-softmax", "moved"),
    ("plif", "moved"),
]


def on_meta(family, mapping, way):
    with torch.device("cpu" if way == "moved" else "meta"):
        model = getattr(transformers, family.model)(family.make_config()).eval()
        if way == "inside":
            patch_model(model, mapping, **OPTIONS[mapping])
    if way != "inside":
        patch_model(model, mapping, **OPTIONS[mapping])
    return model.to("meta")


@pytest.mark.parametrize(("mapping", "way"), WAYS)
@pytest.mark.parametrize("name", ["bert", "t5", "llama"])
def test_forward_on_the_meta_device(name, mapping, way):
    model = on_meta(BY_NAME[name], mapping, way)
    ids = tokens().to("meta")
    inputs = {"input_ids": ids, **({"decoder_input_ids": ids} if name == "t5" else {})}
    for more in ({}, {"attention_mask": padding().to("meta"), "output_attentions": True}):
        output = model(**inputs, **more)
        assert output.last_hidden_state.is_meta
        assert output.last_hidden_state.shape == (BATCH, LENGTH, 16)
    attentions = output.encoder_attentions if name == "t5" else output.attentions
    assert all(a.is_meta and a.shape == (BATCH, HEADS, LENGTH, LENGTH) for a in attentions)
    assert {m.name for m in mappings_of(model)} == {mapping}
    assert mapping in repr(model)


@pytest.mark.parametrize(("mapping", "way"), WAYS)
def test_numbers_loaded_afterwards(mapping, way):
    """The way of large models: made on the meta device, `to_empty`, then a state dict."""
    plain = patch_model(BERT.build(), mapping, **OPTIONS[mapping])
    model = on_meta(BERT, mapping, way)
    assert all(p.is_meta for p in model.parameters())
    model.to_empty(device="cpu")
    for key in ("position_ids", "token_type_ids"):  # buffers that a state dict lacks
        setattr(model.embeddings, key, getattr(plain.embeddings, key))
    model.load_state_dict(plain.state_dict())
    assert torch.equal(BERT.hidden(model), BERT.hidden(plain))


def test_fixed_values_survive_moves_and_learned_ones_are_made_on_the_device_in_force():
    mapping = Mapping("r-softmax", r=VALUES, num_heads=4)
    for moved in (mapping.to("meta"), mapping.to_empty(device="cpu"), mapping.half()):
        assert torch.equal(moved.r, torch.tensor(VALUES, dtype=torch.float64))
    with torch.device("meta"):
        assert Mapping("t-softmax", learn="t").raw_t.is_meta


def test_flops_of_a_patched_model_are_those_of_the_plain_one():
    counts = []
    for model in (BERT.build(attn_implementation="eager"), patch_model(BERT.build(), "r-softmax")):
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(**BERT.example)
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1]


@pytest.mark.parametrize("mapping", ["sigsoftmax", "sparsemax"])
def test_head_on_the_meta_device(mapping):
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(BY_NAME["llama"].make_config()).eval()
    patch_lm_head(model, mapping)
    assert model(input_ids=tokens().to("meta")).logits.is_meta
