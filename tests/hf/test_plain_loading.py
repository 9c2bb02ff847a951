"""A patched model that a plain from_pretrained has loaded: refused, or completed in place."""

import copy
import json
import shutil

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModel

from sparse_attn import load_pretrained, patch_model, patched, unpatch_model
from sparse_attn.hf.attention import NAME
from sparse_attn.hf.patching import is_patched
from sparse_attn.inspection import record_attention

from .families import BY_NAME
from .helpers import learned, learning

BERT, CLIP, T5 = BY_NAME["bert"], BY_NAME["clip"], BY_NAME["t5"]


def assert_raises_at_its_call(model, inputs):
    with pytest.raises(RuntimeError, match=r"holds no mapping.*sparse_attn\.load_pretrained"):
        model(**inputs)


@pytest.mark.parametrize("name", ["bert", "roberta", "gpt2", "t5", "llama", "clip", "vit"])
@pytest.mark.parametrize("learn", [(), "t"])
def test_it_raises_at_the_first_call(name, learn, tmp_path):
    family = BY_NAME[name]
    patch_model(family.build(), "t-softmax", learn=learn).save_pretrained(tmp_path)
    assert_raises_at_its_call(AutoModel.from_pretrained(tmp_path), family.inputs())


@pytest.mark.parametrize("name", ["bert", "t5", "clip"])
@pytest.mark.parametrize("mapping", ["t-softmax", "plif"])
@pytest.mark.parametrize("implementation", [None, "eager"])
def test_learned_parameters_that_it_dropped_are_not_replaced(
    name, mapping, implementation, tmp_path
):
    arguments = {"learn": "t"} if mapping == "t-softmax" else {"knots": 12}
    patch_model(BY_NAME[name].build(), mapping, **arguments).save_pretrained(tmp_path)
    plain = AutoModel.from_pretrained(tmp_path)
    if implementation is not None:
        plain.config._attn_implementation = implementation  # its setter raises
    if implementation == "eager":  # and a refused completion changes nothing of that
        with pytest.raises(ValueError, match="was loaded by from_pretrained with another one"):
            load_pretrained(plain, tmp_path)
    with pytest.raises(ValueError, match=rf"a learned {mapping}.*load_pretrained\(cls, path\)"):
        patch_model(plain, mapping, **arguments)
    assert not is_patched(plain)


def test_the_remedy_of_lost_parameters_names_every_config(tmp_path):
    learning(T5.build()).save_pretrained(tmp_path)
    plain = AutoModel.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match="delete config") as raised:
        patch_model(plain, "t-softmax", learn="t")
    for place in str(raised.value).rpartition("delete ")[2].split(", "):
        holder = plain
        *path, last = place.split(".")
        for name in path:
            holder = getattr(holder, name)
        delattr(holder, last)
    patch_model(plain, "t-softmax", learn="t")(**T5.inputs())


def test_two_models_of_one_config_both_start_to_learn():
    first = patch_model(T5.build(), "t-softmax", learn="t")
    second = patch_model(type(first)(copy.deepcopy(first.config)), "t-softmax", learn="t")
    assert learned(second).keys() == learned(first).keys()


def test_fixed_parameters_may_be_patched_again(tmp_path):
    plain = BERT.build()
    model = patch_model(BERT.build(), "r-softmax", r=0.3)
    model.save_pretrained(tmp_path)
    again = patch_model(AutoModel.from_pretrained(tmp_path), "r-softmax", r=0.3)
    assert torch.equal(BERT.hidden(again), BERT.hidden(model))
    torch.testing.assert_close(BERT.hidden(unpatch_model(again)), BERT.hidden(plain))


def test_it_stays_refused_after_a_block(tmp_path):
    patch_model(T5.build(), "sparsemax").save_pretrained(tmp_path)
    plain = AutoModel.from_pretrained(tmp_path)
    with pytest.raises(RuntimeError, match="holds no mapping"), record_attention(plain):
        pass
    with patched(plain, "entmax"):
        plain(**T5.inputs())
    assert_raises_at_its_call(plain, T5.inputs())
    assert plain.config.sparse_attn["mappings"][0]["mapping"] == "sparsemax"


def test_parts_stay_refused_after_a_block(tmp_path):
    """Each stack of an encoder-decoder was saved patched; the whole knows nothing of it."""
    for name in ("encoder", "decoder"):
        patch_model(BERT.build(), "sparsemax").save_pretrained(tmp_path / name)
    whole = transformers.EncoderDecoderModel.from_encoder_decoder_pretrained(
        tmp_path / "encoder", tmp_path / "decoder"
    )
    saved = [vars(c).get(NAME) for c in (whole.config, whole.config.encoder)]
    inputs = {"input_ids": torch.ones(1, 3).long(), "decoder_input_ids": torch.ones(1, 3).long()}
    with pytest.raises(RuntimeError, match="holds no mapping"), record_attention(whole):
        pass
    with patched(whole, "entmax"):
        whole(**inputs)
    assert_raises_at_its_call(whole, inputs)
    assert [vars(c).get(NAME) for c in (whole.config, whole.config.encoder)] == saved
    assert saved[1]["mappings"][0]["mapping"] == "sparsemax"


@pytest.mark.parametrize("family", [BY_NAME[n] for n in ("bert", "t5", "clip", "vit")], ids=str)
def test_it_is_completed_in_place(family, tmp_path):
    model = learning(family.build(), per="head")
    model.save_pretrained(tmp_path)
    plain = type(model).from_pretrained(tmp_path)
    assert load_pretrained(plain, tmp_path) is plain
    assert torch.equal(family.hidden(plain), family.hidden(model))
    with pytest.raises(ValueError, match="already patched; call unpatch_model first"):
        load_pretrained(plain, tmp_path)
    with pytest.raises(TypeError, match="dtype: expected none but cache_dir"):
        load_pretrained(unpatch_model(plain), tmp_path, dtype="auto")


def test_completing_from_another_folder_leaves_it_as_it_was(tmp_path):
    learning(BERT.build()).save_pretrained(tmp_path / "right")
    patch_model(BERT.build(), "r-softmax").save_pretrained(tmp_path / "wrong")
    plain = AutoModel.from_pretrained(tmp_path / "right")
    with pytest.raises(ValueError, match="give the folder that the model was loaded from"):
        load_pretrained(plain, tmp_path / "wrong")
    shutil.copytree(tmp_path / "right", tmp_path / "empty")
    BERT.build().save_pretrained(tmp_path / "plain")
    shutil.copy(tmp_path / "plain" / "model.safetensors", tmp_path / "empty")
    for model in (plain, AutoModel):
        with pytest.raises(RuntimeError, match=r"lacks the learned parameters.*raw_t"):
            load_pretrained(model, tmp_path / "empty")
    assert not is_patched(plain)
    assert_raises_at_its_call(plain, BERT.inputs())
    assert is_patched(load_pretrained(plain, tmp_path / "right"))


@pytest.mark.parametrize("in_place", [False, True])
def test_a_patched_part_comes_back_with_its_whole(in_place, tmp_path):
    model = CLIP.build()
    learning(model.text_model, per="head")
    model.save_pretrained(tmp_path)
    plain = transformers.CLIPModel.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"learned t-softmax.* delete text_model\.config"):
        patch_model(plain, "t-softmax", learn="t")
    loaded = load_pretrained(plain if in_place else transformers.CLIPModel, tmp_path)
    assert torch.equal(CLIP.hidden(loaded), CLIP.hidden(model))
    assert is_patched(loaded.text_model)
    assert not is_patched(loaded.vision_model)
    unpatch_model(loaded.text_model)
    assert NAME not in loaded.config.to_json_string(use_diff=False)


@pytest.mark.parametrize("part", ["text_model", "vision_model"])
def test_a_whole_whose_parts_cannot_be_completed_stays_as_it_was(part, tmp_path):
    """Both parts have learned parameters, of which the checkpoint lacks those of one."""
    model = CLIP.build()
    learning(model.text_model)
    learning(model.vision_model)
    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    left = {n: t for n, t in tensors.items() if not (n.startswith(part) and NAME in n)}
    save_file(left, tmp_path / "model.safetensors", {"format": "pt"})
    plain = transformers.CLIPModel.from_pretrained(tmp_path)
    before = plain.config.to_json_string(use_diff=False)
    with pytest.raises(RuntimeError, match=rf"lacks the learned parameters.*{part}"):
        load_pretrained(plain, tmp_path)
    assert not is_patched(plain.text_model)
    assert not is_patched(plain.vision_model)
    assert plain.config.to_json_string(use_diff=False) == before


def test_a_plain_model_is_refused(tmp_path):
    BERT.build().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="If nothing was patched when it was saved, use"):
        load_pretrained(AutoModel, tmp_path)


def test_another_class_with_other_attention_is_refused(tmp_path):
    patch_model(T5.build(), "sparsemax").save_pretrained(tmp_path)
    with pytest.raises(RuntimeError, match="describes 6 attention modules, but T5EncoderModel has"):
        load_pretrained(transformers.T5EncoderModel, tmp_path)


def test_another_version_is_refused(tmp_path):
    patch_model(BERT.build(), "sparsemax").save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    config[NAME]["version"] = 99
    path.write_text(json.dumps(config))
    with pytest.raises(RuntimeError, match="expected version 1, got 99"):
        load_pretrained(AutoModel, tmp_path)


def test_learned_parameters_come_from_safetensors_alone(tmp_path):
    model = learning(BERT.build())
    model.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(RuntimeError, match=r"has no model\.safetensors.* with save_pretrained"):
        load_pretrained(AutoModel, tmp_path)
