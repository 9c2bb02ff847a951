"""Trap 8: what was saved comes back with the same outputs, or an error says how to load it."""

import copy
import json
import shutil

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification

from sparse_attn import load_pretrained, patch_model, patched, unpatch_model
from sparse_attn.attention import NAME
from sparse_attn.inspection import record_attention
from sparse_attn.patching import is_patched

from .families import BY_NAME, FAMILIES
from .helpers import MAPPINGS, jitter, mapping_id, mappings_of, patch, python, run_valid


def learned(model):
    return {n: p for n, p in model.state_dict().items() if f".{NAME}." in n}


@pytest.mark.parametrize("mapping", MAPPINGS, ids=mapping_id)
def test_every_mapping_comes_back(mapping, tmp_path):
    family = BY_NAME["bert"]
    inputs = family.inputs()
    model = patch(family.build(), mapping)
    model.save_pretrained(tmp_path)
    loaded = load_pretrained(AutoModel, tmp_path)
    assert torch.equal(run_valid(loaded, inputs, family), run_valid(model, inputs, family))
    assert loaded.config.sparse_attn == model.config.sparse_attn


@pytest.mark.parametrize("per", ["layer", "head"])
@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_learned_parameters_come_back_in_every_family(family, per, tmp_path):
    inputs = family.inputs()
    model = patch_model(family.build(), "t-softmax", t=2.0, learn="t", per=per)
    jitter(model)
    assert all(p.shape == ((4,) if per == "head" else (1,)) for p in learned(model).values())
    expected = run_valid(model, inputs, family)
    model.save_pretrained(tmp_path)
    loaded = load_pretrained(type(model), tmp_path)
    assert torch.equal(run_valid(loaded, inputs, family), expected)
    assert learned(loaded).keys() == learned(model).keys()
    assert len(learned(loaded)) == family.modules
    assert all(p.requires_grad for n, p in loaded.named_parameters() if NAME in n)


def several(family):
    """One model with a fixed mapping, one learned a head, values by head, and plain softmax."""
    changes = {"num_hidden_layers": 4}
    model = patch_model(family.build("BertForSequenceClassification", **changes), "r-softmax",
                        r=[0.1, 0.2, 0.3, 0.4], per="head", layers=[0])  # fmt: skip
    patch_model(model, "t-softmax", learn="t", per="head", layers=[1])
    patch_model(model, "plif", knots=12, bound=6.0, layers=[2])
    jitter(model)
    return model


def test_several_mappings_in_one_model_come_back(tmp_path):
    family = BY_NAME["bert"]
    inputs = family.inputs()
    model = several(family)
    model.save_pretrained(tmp_path)
    loaded = load_pretrained(AutoModelForSequenceClassification, tmp_path)
    names = [mapping.name for mapping in mappings_of(loaded)]
    assert names == ["r-softmax", "t-softmax", "plif", "softmax"]
    with torch.no_grad():
        assert torch.equal(loaded(**inputs).logits, model(**inputs).logits)
    # and a second round from the loaded one
    loaded.save_pretrained(tmp_path / "again")
    again = load_pretrained(AutoModelForSequenceClassification, tmp_path / "again")
    with torch.no_grad():
        assert torch.equal(again(**inputs).logits, model(**inputs).logits)


def test_sharded_checkpoint(tmp_path):
    family = BY_NAME["bert"]
    inputs = family.inputs()
    model = several(family)
    model.save_pretrained(tmp_path, max_shard_size="4KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    loaded = load_pretrained(AutoModelForSequenceClassification, tmp_path)
    with torch.no_grad():
        assert torch.equal(loaded(**inputs).logits, model(**inputs).logits)


def test_base_class_from_a_task_checkpoint_and_back(tmp_path):
    family = BY_NAME["bert"]
    inputs = family.inputs()
    model = several(family)
    model.save_pretrained(tmp_path / "task")
    base = load_pretrained(AutoModel, tmp_path / "task")
    expected = run_valid(model.bert, inputs, family)
    assert torch.equal(run_valid(base, inputs, family), expected)
    base.save_pretrained(tmp_path / "base")
    task = load_pretrained(AutoModelForSequenceClassification, tmp_path / "base")
    assert torch.equal(run_valid(task.bert, inputs, family), expected)


def test_submodel_saved_alone(tmp_path):
    family = BY_NAME["bert"]
    inputs = family.inputs()
    model = several(family)
    model.bert.save_pretrained(tmp_path)
    loaded = load_pretrained(AutoModel, tmp_path)
    expected = run_valid(model.bert, inputs, family)
    assert torch.equal(run_valid(loaded, inputs, family), expected)


def test_renamed_weights_of_a_task_checkpoint(tmp_path):
    """Transformers saves ViT under its old names: learned parameters too."""
    family = BY_NAME["vit"]
    inputs = family.inputs()
    model = patch_model(family.build("ViTForImageClassification"), "t-softmax", learn="t")
    jitter(model)
    expected = run_valid(model.vit, inputs, family)
    model.save_pretrained(tmp_path)
    loaded = load_pretrained(AutoModel, tmp_path, add_pooling_layer=False)
    assert torch.equal(run_valid(loaded, inputs, family), expected)
    task = load_pretrained(transformers.ViTForImageClassification, tmp_path)
    assert torch.equal(run_valid(task.vit, inputs, family), expected)


def test_options_of_from_pretrained(tmp_path):
    model = patch_model(BY_NAME["bert"].build(), "t-softmax", learn="t")
    jitter(model)
    model.save_pretrained(tmp_path)
    half = load_pretrained(AutoModel, tmp_path, dtype=torch.bfloat16)
    assert half.embeddings.word_embeddings.weight.dtype == torch.bfloat16
    for name, parameter in learned(half).items():
        assert parameter.dtype == torch.float32
        assert torch.equal(parameter, model.state_dict()[name])
    config = AutoConfig.from_pretrained(tmp_path)
    load_pretrained(AutoModel, tmp_path, config=config)
    assert config.sparse_attn == model.config.sparse_attn  # the caller's config is not changed


def test_number_of_labels_is_passed_on(tmp_path):
    patch_model(BY_NAME["bert"].build(), "sparsemax").save_pretrained(tmp_path)
    task = load_pretrained(AutoModelForSequenceClassification, tmp_path, num_labels=5)
    assert task.classifier.out_features == 5


def test_loading_information_is_passed_on(tmp_path):
    patch_model(BY_NAME["bert"].build(), "sparsemax").save_pretrained(tmp_path)
    model, information = load_pretrained(AutoModel, tmp_path, output_loading_info=True)
    assert is_patched(model)
    assert not information["missing_keys"]


def test_unpatching_a_loaded_model_leaves_a_plain_one(tmp_path):
    for name in ("bert", "t5", "clip"):
        family = BY_NAME[name]
        inputs = family.inputs()
        family.build().save_pretrained(tmp_path / "plain")
        patch_model(family.build(), "t-softmax", learn="t").save_pretrained(tmp_path / "patched")
        plain = type(family.build()).from_pretrained(tmp_path / "plain")
        loaded = unpatch_model(load_pretrained(type(plain), tmp_path / "patched"))
        assert torch.equal(run_valid(loaded, inputs, family), run_valid(plain, inputs, family))
        assert list(loaded.state_dict()) == list(plain.state_dict())
        texts = []
        for model in (loaded, plain):
            model.config._name_or_path = ""
            texts.append(model.config.to_json_string(use_diff=False))
        assert texts[0] == texts[1]
        assert NAME not in texts[0]


@pytest.mark.parametrize("name", ["bert", "roberta", "gpt2", "t5", "llama", "clip", "vit"])
@pytest.mark.parametrize("learn", [(), "t"])
def test_plain_from_pretrained_raises_at_the_first_call(name, learn, tmp_path):
    family = BY_NAME[name]
    patch_model(family.build(), "t-softmax", learn=learn).save_pretrained(tmp_path)
    with pytest.raises(RuntimeError, match=r"holds no mapping.*sparse_attn\.load_pretrained"):
        AutoModel.from_pretrained(tmp_path)(**family.inputs())


def test_load_pretrained_of_a_plain_model_says_so(tmp_path):
    BY_NAME["bert"].build().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="nothing was patched when it was saved; use from_pretr"):
        load_pretrained(AutoModel, tmp_path)


def test_other_class_with_other_attention_is_refused(tmp_path):
    patch_model(BY_NAME["t5"].build(), "sparsemax").save_pretrained(tmp_path)
    with pytest.raises(RuntimeError, match="describes 6 attention modules, but T5EncoderModel has"):
        load_pretrained(transformers.T5EncoderModel, tmp_path)


def test_record_of_another_version_is_refused(tmp_path):
    patch_model(BY_NAME["bert"].build(), "sparsemax").save_pretrained(tmp_path)
    edit(tmp_path, lambda config: config[NAME].update(version=99))
    with pytest.raises(RuntimeError, match="expected version 1, got 99"):
        load_pretrained(AutoModel, tmp_path)


def test_learned_parameters_come_from_safetensors_alone(tmp_path):
    model = patch_model(BY_NAME["bert"].build(), "t-softmax", learn="t")
    model.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(RuntimeError, match=r"has no model\.safetensors.* by save_pretrained"):
        load_pretrained(AutoModel, tmp_path)


def test_missing_learned_parameters_are_refused(tmp_path):
    family = BY_NAME["bert"]
    family.build().save_pretrained(tmp_path / "plain")
    patch_model(family.build(), "t-softmax", learn="t").save_pretrained(tmp_path / "patched")
    shutil.copy(tmp_path / "plain" / "model.safetensors", tmp_path / "patched")
    with pytest.raises(RuntimeError, match=r"lacks the learned parameters.*raw_t"):
        load_pretrained(AutoModel, tmp_path / "patched")


def edit(folder, change):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))


FRESH = """
import sys, torch
from transformers import AutoModel
folder = sys.argv[1]
try:
    AutoModel.from_pretrained(folder + "/model")
except ValueError as error:
    print(error)
assert "sparse_attn" not in sys.modules

from sparse_attn import load_pretrained
model = load_pretrained(AutoModel, folder + "/model")
inputs = torch.load(folder + "/inputs.pt")
with torch.no_grad():
    torch.save(model(**inputs).last_hidden_state, folder + "/outputs.pt")
"""


def test_fresh_process_never_passes_silently_and_loads_the_same(tmp_path):
    family = BY_NAME["bert"]
    inputs = family.inputs()
    model = patch_model(family.build(), "t-softmax", t=2.0, learn="t", per="head")
    jitter(model)
    model.save_pretrained(tmp_path / "model")
    torch.save(inputs, tmp_path / "inputs.pt")
    fresh = python(FRESH, str(tmp_path))
    assert fresh.returncode == 0, fresh.stderr
    assert f'attn_implementation="{NAME}"` is not supported' in fresh.stdout
    with torch.no_grad():
        expected = model(**inputs).last_hidden_state
    torch.testing.assert_close(torch.load(tmp_path / "outputs.pt"), expected)


@pytest.mark.parametrize("name", ["bert", "t5", "clip"])
@pytest.mark.parametrize("mapping", ["t-softmax", "plif"])
@pytest.mark.parametrize("implementation", [None, "eager"])
def test_learned_parameters_that_a_plain_load_dropped_are_not_replaced(
    name, mapping, implementation, tmp_path
):
    family = BY_NAME[name]
    arguments = {"learn": "t"} if mapping == "t-softmax" else {"knots": 12}
    patch_model(family.build(), mapping, **arguments).save_pretrained(tmp_path)
    kwargs = {} if implementation is None else {"attn_implementation": implementation}
    plain = AutoModel.from_pretrained(tmp_path, **kwargs)
    with pytest.raises(ValueError, match=rf"a learned {mapping}.*load_pretrained\(cls, path\)"):
        patch_model(plain, mapping, **arguments)
    assert not is_patched(plain)


def test_two_models_of_one_config_both_start_to_learn():
    first = patch_model(BY_NAME["t5"].build(), "t-softmax", learn="t")
    second = patch_model(type(first)(copy.deepcopy(first.config)), "t-softmax", learn="t")
    assert learned(second).keys() == learned(first).keys()


def test_fixed_parameters_may_be_patched_again_after_a_plain_load(tmp_path):
    family = BY_NAME["bert"]
    inputs = family.inputs()
    model = patch_model(family.build(), "r-softmax", r=0.3)
    model.save_pretrained(tmp_path)
    again = patch_model(AutoModel.from_pretrained(tmp_path), "r-softmax", r=0.3)
    assert torch.equal(run_valid(again, inputs, family), run_valid(model, inputs, family))


def test_a_plainly_loaded_model_stays_refused_after_a_block(tmp_path):
    family = BY_NAME["t5"]
    patch_model(family.build(), "sparsemax").save_pretrained(tmp_path)
    plain = AutoModel.from_pretrained(tmp_path)
    with pytest.raises(RuntimeError, match="holds no mapping"), record_attention(plain):
        pass
    with patched(plain, "entmax"):
        plain(**family.inputs())
    with pytest.raises(RuntimeError, match="holds no mapping"):
        plain(**family.inputs())
    assert plain.config.sparse_attn["mappings"][0]["mapping"] == "sparsemax"


@pytest.mark.parametrize("family", [BY_NAME[n] for n in ("bert", "t5", "clip", "vit")], ids=str)
def test_a_model_loaded_already_is_completed_in_place(family, tmp_path):
    inputs = family.inputs()
    model = patch_model(family.build(), "t-softmax", t=2.0, learn="t", per="head")
    jitter(model)
    expected = run_valid(model, inputs, family)
    model.save_pretrained(tmp_path)
    plain = type(model).from_pretrained(tmp_path)
    assert load_pretrained(plain, tmp_path) is plain
    assert torch.equal(run_valid(plain, inputs, family), expected)
    with pytest.raises(ValueError, match="patched already; call unpatch_model first"):
        load_pretrained(plain, tmp_path)
    with pytest.raises(TypeError, match="dtype: expected none but cache_dir"):
        load_pretrained(unpatch_model(plain), tmp_path, dtype="auto")


@pytest.mark.parametrize("dtype", ["auto", "bfloat16", torch.bfloat16])
def test_dtype_reaches_from_pretrained(dtype, tmp_path):
    family = BY_NAME["bert"]
    model = patch_model(family.build(), "t-softmax", learn="t").to(torch.bfloat16)
    model.save_pretrained(tmp_path)
    loaded = load_pretrained(AutoModel, tmp_path, dtype=dtype)
    assert loaded.dtype == torch.bfloat16
    assert all(p.dtype == torch.float32 for p in learned(loaded).values())
    assert load_pretrained(AutoModel, tmp_path, dtype=torch.float32).dtype == torch.float32


@pytest.mark.parametrize("name", ["bert", "t5", "gpt2"])
def test_config_output_attentions_survives(name, tmp_path):
    """Transformers allows it with eager attention alone: it neither loads nor saves another."""
    family = BY_NAME[name]
    inputs = family.inputs()
    key = "decoder_attentions" if name == "t5" else "attentions"
    family.build().save_pretrained(tmp_path / "plain")
    model = AutoModel.from_pretrained(tmp_path / "plain", output_attentions=True)
    patch_model(model, "sparsemax", layers=[0])
    patch_model(model, "sparsemax", layers=[1])
    expected = getattr(model(**inputs), key)
    assert (expected[0][0] == 0).any()
    assert getattr(model(**inputs, output_attentions=False), key, None) is None
    model.save_pretrained(tmp_path / "patched")
    plain = AutoModel.from_pretrained(tmp_path / "patched")
    for loaded in (
        load_pretrained(AutoModel, tmp_path / "patched"),
        load_pretrained(plain, tmp_path / "patched"),
        copy.deepcopy(model),
    ):
        assert torch.equal(getattr(loaded(**inputs), key)[0], expected[0])
        unpatch_model(loaded)
        assert loaded.config.output_attentions is True
        assert not loaded._forward_pre_hooks
        assert (getattr(loaded(**inputs), key)[0][0] > 0).sum() > (expected[0][0] > 0).sum()


def test_output_attentions_of_load_pretrained(tmp_path):
    family = BY_NAME["bert"]
    patch_model(family.build(), "sparsemax").save_pretrained(tmp_path)
    loaded = load_pretrained(AutoModel, tmp_path, output_attentions=True)
    assert len(loaded(**family.inputs()).attentions) == 2
    assert load_pretrained(AutoModel, tmp_path)(**family.inputs()).attentions is None


def two_towers():
    """CLIP, whose text part alone is patched, with a learned parameter."""
    family = BY_NAME["clip"]
    model = family.build()
    patch_model(model.text_model, "t-softmax", t=2.0, learn="t", per="head")
    jitter(model)
    return family, model


@pytest.mark.parametrize("in_place", [False, True])
def test_a_patched_part_comes_back_with_its_whole(in_place, tmp_path):
    family, model = two_towers()
    inputs = family.inputs()
    expected = run_valid(model, inputs, family)
    model.save_pretrained(tmp_path)
    plain = transformers.CLIPModel.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"learned t-softmax.* delete text_model\.config"):
        patch_model(plain, "t-softmax", learn="t")
    loaded = load_pretrained(plain if in_place else transformers.CLIPModel, tmp_path)
    assert torch.equal(run_valid(loaded, inputs, family), expected)
    assert is_patched(loaded.text_model)
    assert [type(m) for m in (loaded.text_model, loaded.vision_model)] == [
        transformers.CLIPTextModel,
        transformers.CLIPVisionModel,
    ]
    unpatch_model(loaded.text_model)
    assert NAME not in loaded.config.to_json_string(use_diff=False)


@pytest.mark.parametrize("part", ["text_model", "vision_model"])
def test_a_whole_whose_parts_cannot_be_completed_stays_as_it_was(part, tmp_path):
    """Both parts have learned parameters, of which the checkpoint lacks those of one."""
    _, model = two_towers()
    patch_model(model.vision_model, "t-softmax", t=2.0, learn="t")
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


def test_parts_loaded_plainly_go_on_raising(tmp_path):
    """Each stack of an encoder-decoder was saved patched; the whole knows nothing of it."""
    for name in ("encoder", "decoder"):
        patch_model(BY_NAME["bert"].build(), "sparsemax").save_pretrained(tmp_path / name)
    whole = transformers.EncoderDecoderModel.from_encoder_decoder_pretrained(
        tmp_path / "encoder", tmp_path / "decoder"
    )
    records = [vars(c).get(NAME) for c in (whole.config, whole.config.encoder)]
    inputs = {"input_ids": torch.ones(1, 3).long(), "decoder_input_ids": torch.ones(1, 3).long()}
    with pytest.raises(RuntimeError, match="holds no mapping"), record_attention(whole):
        pass
    with patched(whole, "entmax"):
        whole(**inputs)
    with pytest.raises(RuntimeError, match="holds no mapping"):
        whole(**inputs)
    assert [vars(c).get(NAME) for c in (whole.config, whole.config.encoder)] == records
    assert records[1]["mappings"][0]["mapping"] == "sparsemax"


def test_completing_from_another_folder_leaves_the_model_as_it_was(tmp_path):
    family = BY_NAME["bert"]
    for name, mapping in (("right", "t-softmax"), ("wrong", "r-softmax")):
        arguments = {"learn": "t"} if name == "right" else {}
        patch_model(family.build(), mapping, **arguments).save_pretrained(tmp_path / name)
    plain = AutoModel.from_pretrained(tmp_path / "right")
    with pytest.raises(ValueError, match="give the folder that the model was loaded from"):
        load_pretrained(plain, tmp_path / "wrong")
    shutil.copytree(tmp_path / "right", tmp_path / "empty")
    family.build().save_pretrained(tmp_path / "plain")
    shutil.copy(tmp_path / "plain" / "model.safetensors", tmp_path / "empty")
    with pytest.raises(RuntimeError, match="lacks the learned parameters"):
        load_pretrained(plain, tmp_path / "empty")
    assert not is_patched(plain)
    with pytest.raises(RuntimeError, match="holds no mapping"):
        plain(**family.inputs())
    assert is_patched(load_pretrained(plain, tmp_path / "right"))


def test_a_refused_completion_does_not_disarm_the_refusal(tmp_path):
    patch_model(BY_NAME["bert"].build(), "t-softmax", learn="t").save_pretrained(tmp_path)
    plain = AutoModel.from_pretrained(tmp_path, attn_implementation="eager")
    with pytest.raises(ValueError, match="was loaded by from_pretrained with another one"):
        load_pretrained(plain, tmp_path)
    with pytest.raises(ValueError, match="a learned t-softmax"):
        patch_model(plain, "t-softmax", learn="t")


def test_the_remedy_of_lost_parameters_names_every_config(tmp_path):
    family = BY_NAME["t5"]
    patch_model(family.build(), "t-softmax", learn="t").save_pretrained(tmp_path)
    plain = AutoModel.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match="delete config") as raised:
        patch_model(plain, "t-softmax", learn="t")
    for place in str(raised.value).rpartition("delete ")[2].split(", "):
        holder = plain
        *path, last = place.split(".")
        for name in path:
            holder = getattr(holder, name)
        delattr(holder, last)
    patch_model(plain, "t-softmax", learn="t")(**family.inputs())
