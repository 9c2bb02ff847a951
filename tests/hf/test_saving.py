"""What was saved comes back with the same outputs."""

import copy
import re

import pytest
import torch
import transformers
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification

from sparse_attn import load_pretrained, patch_model, unpatch_model
from sparse_attn.hf.attention import NAME
from sparse_attn.hf.patching import is_patched

from .families import BY_NAME, FAMILIES
from .helpers import MAPPINGS, jitter, learned, learning, mapping_id, mappings_of, patch

BERT, VIT = BY_NAME["bert"], BY_NAME["vit"]
TASK = AutoModelForSequenceClassification


def assert_same(loaded, model, family=BERT):
    assert torch.equal(family.hidden(loaded), family.hidden(model))


@pytest.mark.parametrize("mapping", MAPPINGS, ids=mapping_id)
def test_every_mapping_comes_back(mapping, tmp_path):
    model = patch(BERT.build(), mapping)
    # which a load would leave uninitialised
    assert not any(NAME in name for name, _ in model.named_non_persistent_buffers())
    model.save_pretrained(tmp_path)
    loaded = AutoModel.from_pretrained(tmp_path)
    assert_same(loaded, model)
    assert loaded.config.sparse_attn == model.config.sparse_attn


def test_a_config_from_before_a_parameter_existed(tmp_path):
    """Spherical softmax had no center."""
    model = patch_model(BERT.build(), "spherical-softmax", eps=0.3)
    model.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    text = path.read_text()
    path.write_text(re.sub(r'"center": 0\.0,\s*', "", text))
    assert path.read_text() != text
    assert_same(AutoModel.from_pretrained(tmp_path), model)


@pytest.mark.parametrize("per", ["layer", "head"])
@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_learned_parameters_come_back_in_every_family(family, per, tmp_path):
    model = learning(family.build(), per=per)
    assert all(p.shape == ((4,) if per == "head" else (1,)) for p in learned(model).values())
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    assert_same(loaded, model, family)
    assert learned(loaded).keys() == learned(model).keys()
    assert len(learned(loaded)) == family.modules
    assert all(p.requires_grad for p in learned(loaded).values())


@pytest.fixture
def several():
    """One model with a fixed mapping, one learned a head, values by head, and plain softmax."""
    model = BERT.build("BertForSequenceClassification", num_hidden_layers=4)
    patch_model(model, "r-softmax", r=[0.1, 0.2, 0.3, 0.4], per="head", layers=[0])
    patch_model(model, "t-softmax", learn="t", per="head", layers=[1])
    patch_model(model, "plif", knots=12, bound=6.0, layers=[2])
    jitter(model)
    return model


def test_several_mappings_in_one_model_come_back_twice_from_shards(several, tmp_path):
    model = several
    for folder in (tmp_path / "once", tmp_path / "again"):
        model.save_pretrained(folder, max_shard_size="4KB")
        assert len(list(folder.glob("*.safetensors"))) > 2
        model = TASK.from_pretrained(folder)
        names = [mapping.name for mapping in mappings_of(model)]
        assert names == ["r-softmax", "t-softmax", "plif", "softmax"]
        with torch.no_grad():
            assert torch.equal(model(**BERT.example).logits, several(**BERT.example).logits)


def test_base_class_from_a_task_checkpoint_and_back(several, tmp_path):
    several.save_pretrained(tmp_path / "task")
    several.bert.save_pretrained(tmp_path / "part")
    for folder in ("task", "part"):
        base = AutoModel.from_pretrained(tmp_path / folder)
        assert_same(base, several.bert)
    base.save_pretrained(tmp_path / "base")
    assert_same(TASK.from_pretrained(tmp_path / "base").bert, several.bert)


def test_renamed_weights_of_a_task_checkpoint(tmp_path):
    """Transformers saves ViT under its old names: learned parameters too."""
    model = learning(VIT.build("ViTForImageClassification"))
    model.save_pretrained(tmp_path)
    base = AutoModel.from_pretrained(tmp_path, add_pooling_layer=False)
    task = transformers.ViTForImageClassification.from_pretrained(tmp_path)
    for loaded in (base, task.vit):
        assert_same(loaded, model.vit, VIT)


def test_options_of_from_pretrained(tmp_path):
    model = learning(BERT.build())
    model.save_pretrained(tmp_path)
    assert load_pretrained(TASK, tmp_path, num_labels=5).classifier.out_features == 5
    loaded, information = load_pretrained(AutoModel, tmp_path, output_loading_info=True)
    assert is_patched(loaded)
    assert not information["missing_keys"]
    assert not information["unexpected_keys"]  # which Transformers would print
    config = AutoConfig.from_pretrained(tmp_path)
    load_pretrained(AutoModel, tmp_path, config=config)
    assert config.sparse_attn == model.config.sparse_attn  # the caller's config is not changed


def test_other_files_bring_their_own_learned_parameters(tmp_path):
    usual, ema, pickled = (learning(BERT.build()) for _ in range(3))
    usual.save_pretrained(tmp_path)
    ema.save_pretrained(tmp_path, variant="ema", max_shard_size="4KB")
    torch.save(pickled.state_dict(), tmp_path / "pytorch_model.bin")
    assert_same(AutoModel.from_pretrained(tmp_path), usual)
    assert_same(AutoModel.from_pretrained(tmp_path, variant="ema"), ema)
    assert_same(AutoModel.from_pretrained(tmp_path, use_safetensors=False), pickled)


@pytest.mark.parametrize("dtype", ["auto", torch.bfloat16])
def test_learned_parameters_stay_in_float32(dtype, tmp_path):
    model = learning(BERT.build()).to(torch.bfloat16)
    model.save_pretrained(tmp_path)
    loaded = AutoModel.from_pretrained(tmp_path, dtype=dtype)
    assert loaded.dtype == torch.bfloat16
    assert all(p.dtype == torch.float32 for p in learned(loaded).values())
    assert all(torch.equal(p, learned(model)[n]) for n, p in learned(loaded).items())
    assert AutoModel.from_pretrained(tmp_path, dtype=torch.float32).dtype == torch.float32


@pytest.mark.parametrize("name", ["bert", "t5", "clip"])
def test_unpatching_a_loaded_model_leaves_a_plain_one(name, tmp_path):
    family = BY_NAME[name]
    plain = family.build()
    plain.save_pretrained(tmp_path / "plain")
    learning(plain).save_pretrained(tmp_path / "patched")
    plain = type(plain).from_pretrained(tmp_path / "plain")
    loaded = unpatch_model(type(plain).from_pretrained(tmp_path / "patched"))
    assert_same(loaded, plain, family)
    assert list(loaded.state_dict()) == list(plain.state_dict())
    texts = []
    for model in (loaded, plain):
        model.config._name_or_path = ""
        texts.append(model.config.to_json_string(use_diff=False))
    assert texts[0] == texts[1]
    assert NAME not in texts[0]


@pytest.mark.parametrize("name", ["bert", "t5", "gpt2"])
def test_config_output_attentions_survives(name, tmp_path):
    """Transformers allows it with eager attention alone: it neither loads nor saves another."""
    family = BY_NAME[name]
    inputs, key = family.example, "decoder_attentions" if name == "t5" else "attentions"
    family.build().save_pretrained(tmp_path / "plain")
    model = AutoModel.from_pretrained(tmp_path / "plain", output_attentions=True)
    for layer in (0, 1):
        patch_model(model, "sparsemax", layers=[layer])
    expected = getattr(model(**inputs), key)
    assert (expected[0][0] == 0).any()
    assert getattr(model(**inputs, output_attentions=False), key, None) is None
    model.save_pretrained(tmp_path / "patched")
    for loaded in (AutoModel.from_pretrained(tmp_path / "patched"), copy.deepcopy(model)):
        assert torch.equal(getattr(loaded(**inputs), key)[0], expected[0])
        unpatch_model(loaded)
        assert loaded.config.output_attentions is True
        assert not loaded._forward_pre_hooks
        assert (getattr(loaded(**inputs), key)[0][0] > 0).sum() > (expected[0][0] > 0).sum()
