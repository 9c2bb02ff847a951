"""patch_model: which layers, which values, what it returns and what it writes down."""

import json

import pytest
import torch
import transformers
from torch import nn

from sparse_attn import MappingSpec, functional, patch_model, patched, unpatch_model
from sparse_attn.hf.layers import attention_layers
from sparse_attn.hf.patching import is_patched, set_parameter
from sparse_attn.mappings import registry

from .families import BY_NAME, FAMILIES, HEADS
from .helpers import assert_near, mappings_of
from .test_restoring import fingerprint

BERT, T5 = BY_NAME["bert"], BY_NAME["t5"]


def names(model):
    return [mapping.name for mapping in mappings_of(model)]


def test_returns_the_model_and_records_the_mapping():
    model = BERT.build()
    assert patch_model(model, "r-softmax", r=0.3) is model
    assert is_patched(model)
    record = json.loads(model.config.to_json_string())["sparse_attn"]
    assert record == model.config.sparse_attn
    table = {"mapping": "r-softmax", "params": {"r": 0.3}, "learn": [], "per": "layer"}
    places = [f"encoder.layer.{i}.attention.self" for i in (0, 1)]
    assert record == {"version": 2, "mappings": dict.fromkeys(places, table)}
    assert "r-softmax" in repr(model)


def test_layers_that_no_call_names_compute_softmax():
    model = patch_model(BERT.build(num_hidden_layers=4), "sparsemax", layers=[1, 3])
    assert names(model) == ["softmax", "sparsemax", "softmax", "sparsemax"]
    patch_model(model, "t-softmax", layers=range(2))
    assert names(model) == ["t-softmax", "t-softmax", "softmax", "sparsemax"]
    patch_model(model, "r-softmax")
    assert names(model) == ["r-softmax"] * 4


def test_a_second_patch_keeps_the_originals():
    model = BERT.build()
    expected = BERT.hidden(model)
    weights = {name: id(p) for name, p in model.named_parameters()}
    patch_model(model, "sparsemax")
    once = BERT.hidden(model)
    patch_model(model, "r-softmax", r=0.3)
    patch_model(model, "sparsemax")
    assert torch.equal(BERT.hidden(model), once)
    unpatch_model(model)
    assert torch.equal(BERT.hidden(model), expected)
    assert {name: id(p) for name, p in model.named_parameters()} == weights


def test_a_layer_number_selects_it_in_both_stacks():
    model = patch_model(T5.build(), "sparsemax", layers=[1])
    for layer in attention_layers(model):
        expected = "sparsemax" if layer.block == 1 else "softmax"
        assert layer.module.sparse_attn.name == expected, layer.name
    assert names(model).count("sparsemax") == 3


@pytest.mark.parametrize(
    "family", [f for f in FAMILIES if f.name != "albert" and f.modules > 1], ids=str
)
def test_layers_work_in_every_family(family):
    model = patch_model(family.build(), "softmax")
    softmax = family.hidden(model)
    patch_model(model, "sparsemax", layers=[0])
    first = family.hidden(model)
    patch_model(model, "sparsemax", layers=[1])
    both = family.hidden(model)
    assert (softmax - first).abs().max() > 1e-4
    assert (first - both).abs().max() > 1e-4


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_values_by_head(family):
    """Head 0 alone is near softmax: its zeros are fewer than those of head 3."""
    inputs, zeros = family.unmasked(), []
    model = patch_model(family.build(), "r-softmax", r=[0.0, 0.2, 0.4, 0.9], per="head")
    for mapping in mappings_of(model):
        mapping.register_forward_hook(lambda *call: zeros.append((call[2] == 0).sum((0, 2, 3))))
    family.hidden(model, inputs)
    assert len(zeros) == family.modules * (2 if family.name == "albert" else 1)
    for counts in zeros:
        assert counts.shape == (HEADS,)
        assert (counts.diff() >= 0).all()
        assert counts[3] > counts[0]


def test_learned_values_by_layer_and_by_head_train():
    inputs = BERT.inputs()
    model = patch_model(BERT.build(), "t-softmax", t=1.2, learn="t", layers=[0])
    patch_model(model, "t-softmax", t=[1.0, 1.2, 1.5, 2.0], learn="t", per="head", layers=[1])
    model(**inputs).last_hidden_state.square().sum().sqrt().backward()
    layer, head = (mapping.raw_t for mapping in mappings_of(model))
    assert layer.shape == (1,)
    assert head.shape == (HEADS,)
    assert layer.grad.ne(0).all()
    assert head.grad.ne(0).all()
    starts = [mapping.value("t").tolist() for mapping in mappings_of(model)]
    assert starts == [pytest.approx([1.2]), pytest.approx([1.0, 1.2, 1.5, 2.0])]


class Wrapper(nn.Module):
    """Holds a model as DistributedDataParallel does."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, **inputs):
        return self.module(**inputs)


def test_wrapped_models():
    plain = BERT.hidden(BERT.build())
    expected = BERT.hidden(patch_model(BERT.build(), "sparsemax"))
    model = Wrapper(Wrapper(BERT.build()))
    assert patch_model(model, "sparsemax") is model
    assert torch.equal(BERT.hidden(model), expected)
    with patched(model, "softmax"):
        assert_near(BERT.hidden(model), plain)
    assert torch.equal(BERT.hidden(model), expected)
    assert torch.equal(BERT.hidden(unpatch_model(model)), plain)


def test_a_part_of_a_model_is_patched_alone():
    model = T5.build()
    plain = T5.hidden(model)
    patch_model(model.encoder, "sparsemax")
    assert names(model.encoder) == names(model) == ["sparsemax"] * 2
    assert (T5.hidden(model) - plain).abs().max() > 1e-4
    unpatch_model(model.encoder)
    assert torch.equal(T5.hidden(model), plain)


def test_a_part_of_a_patched_model_is_refused():
    """It would switch the other's mappings to softmax."""
    model = BERT.build("BertForSequenceClassification")
    plain = BERT.hidden(model.bert)
    patch_model(model, "sparsemax")
    with pytest.raises(ValueError, match=r"BertModel.*already patched"):
        patch_model(model.bert, "r-softmax", r=0.3, layers=[0])
    assert names(model) == ["sparsemax"] * 2
    unpatch_model(model)
    assert torch.equal(BERT.hidden(model.bert), plain)


@pytest.mark.parametrize("name", ["t5", "clip"])
def test_a_whole_may_be_patched_after_a_part_of_it(name):
    family = BY_NAME[name]
    model = family.build()
    before = fingerprint(model, family)
    part = model.encoder if name == "t5" else model.text_model
    patch_model(part, "sparsemax")
    patch_model(model, "r-softmax", r=0.3, layers=[0])
    assert names(part) == ["r-softmax", "sparsemax"]
    assert set(names(model)) == {"r-softmax", "sparsemax", "softmax"}
    family.hidden(model)
    unpatch_model(model)
    assert fingerprint(model, family) == before


def test_digits_in_a_name_are_no_block_number():
    model = transformers.Wav2Vec2ForCTC(BY_NAME["wav2vec2"].make_config())
    assert [layer.block for layer in attention_layers(model)] == [0, 1]
    assert names(patch_model(model, "sparsemax", layers=[1])) == ["softmax", "sparsemax"]


def test_fixed_parameter_is_set_and_checked():
    model = patch_model(BERT.build(), "r-softmax", r=0.3, layers=[0])
    patch_model(model, "r-softmax", r=[0.1, 0.2, 0.3, 0.4], per="head", layers=[1])
    set_parameter(model, "r", 0.5)
    assert [mapping.value("r") for mapping in mappings_of(model)] == [0.5, 0.5]
    with pytest.raises(ValueError, match=r"r=1\.5 is out of range"):
        set_parameter(model, "r", 1.5)
    with pytest.raises(ValueError, match=r"parameter='t': the model's mappings \(r-softmax\)"):
        set_parameter(model, "t", 1.0)
    with pytest.raises(ValueError, match="no mapping at all"):
        set_parameter(unpatch_model(model), "r", 0.1)


def test_registered_mapping_gets_the_mask(monkeypatch):
    def floored(scores, *, mask=None, dim=-1, log=False):
        p = torch.relu(scores) + 0.1
        p = p if mask is None else p * mask
        p = p / p.sum(dim, keepdim=True)
        return p.log() if log else p

    monkeypatch.setattr(registry, "_SPECS", dict(registry._SPECS))
    registry.register_mapping(MappingSpec("floored", floored))
    model = patch_model(BERT.build(), "floored")
    inputs = BERT.inputs()
    other = {**inputs, "input_ids": inputs["input_ids"].where(inputs["attention_mask"] == 1, 7)}
    assert_near(BERT.hidden(model, other), BERT.hidden(model, inputs))
    registry.register_mapping(MappingSpec("my-map", functional.sparsemax, zeros=True))
    expected = BERT.hidden(patch_model(BERT.build(), "sparsemax"))
    assert_near(BERT.hidden(patch_model(BERT.build(), "my-map")), expected)


def test_training_mode_follows_the_model():
    model = patch_model(BERT.build(), "t-softmax", learn="t")
    assert not any(module.training for module in model.modules())
    assert all(module.training for module in model.train().modules())
