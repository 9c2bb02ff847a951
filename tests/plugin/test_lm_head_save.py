"""A patched head comes back from disk, alone or with patched attention, or an error says how."""

import json
import shutil

import pytest
import torch
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM

from sparse_attn import load_pretrained, patch_model, unpatch_model
from sparse_attn.attention import NAME
from sparse_attn.heads import patch_lm_head, unpatch_lm_head
from sparse_attn.patch_config import HEAD
from sparse_attn.patching import is_patched

from .families import BY_NAME
from .helpers import jitter
from .lm_heads import BY_MODEL, MODELS, run

KINDS = {
    "fixed": {"mapping": "temperature-softmax", "temperature": 0.7},
    "learned": {"mapping": "plif", "knots": 12, "bound": 6.0},
    "mixture": {"mapping": "sigsoftmax", "components": 3, "prior": "softmax", "learn": "bias"},
}


def patched(model, kind):
    """A model whose head is not as it starts."""
    result = patch_lm_head(model.build(), **KINDS[kind])
    with torch.no_grad():
        for name, parameter in result.get_output_embeddings().named_parameters():
            if name not in ("weight", "bias"):
                parameter.add_(torch.randn_like(parameter).mul(0.5))
    return result


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model", MODELS, ids=str)
def test_head_comes_back(model, kind, tmp_path):
    inputs = model.inputs()
    first = patched(model, kind)
    expected = run(first, inputs)
    for folder in (tmp_path / "one", tmp_path / "two"):
        first.save_pretrained(folder)
        first = load_pretrained(type(first), folder)
        actual = run(first, inputs)
        assert torch.equal(actual.logits, expected.logits)
        assert torch.equal(actual.loss, expected.loss)
        assert first.config._attn_implementation == "sdpa"
        head = first.get_output_embeddings()
        assert (head.weight is first.get_input_embeddings().weight) == model.tied
    assert getattr(first.config, HEAD)["mapping"] == KINDS[kind]["mapping"]


@pytest.mark.parametrize("name", ["gpt2", "bert", "t5", "llama"])
@pytest.mark.parametrize("kind", KINDS)
def test_head_and_attention_come_back_together(name, kind, tmp_path):
    model = BY_MODEL[name]
    inputs = model.inputs()
    first = patch_model(patched(model, kind), "t-softmax", t=1.5, learn="t")
    jitter(first)
    first.save_pretrained(tmp_path, max_shard_size="4KB")
    loaded = load_pretrained(type(first), tmp_path)
    assert is_patched(loaded)
    assert torch.equal(run(loaded, inputs).logits, run(first, inputs).logits)
    for twin in (first, loaded):
        unpatch_model(unpatch_lm_head(twin))
    assert torch.equal(run(loaded, inputs).logits, run(first, inputs).logits)
    assert NAME not in loaded.config.to_json_string(use_diff=False)


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_plain_from_pretrained_raises_at_the_first_call(model, tmp_path):
    patched(model, "fixed").save_pretrained(tmp_path)
    plain = type(model.build()).from_pretrained(tmp_path)
    with pytest.raises(RuntimeError, match=r"holds no mapping.*sparse_attn\.load_pretrained"):
        plain(**model.inputs())
    for patch in (patch_model, patch_lm_head):
        with pytest.raises(
            ValueError, match=r"a patched head, which was not loaded; use sparse_attn\.load_pre"
        ):
            patch(plain, "sparsemax" if patch is patch_model else "sigsoftmax")


def test_saved_config_asks_for_this_package(tmp_path):
    """test_traps_save.py: without it from_pretrained then refuses, in a fresh process."""
    model = patched(BY_MODEL["gpt2"], "learned")
    for _ in range(2):
        model.save_pretrained(tmp_path)
        assert json.loads((tmp_path / "config.json").read_text())["attn_implementation"] == NAME
        model = load_pretrained(type(model), tmp_path)


def test_unpatched_checkpoint_is_the_plain_one(tmp_path):
    model = BY_MODEL["bert"].build()
    model.save_pretrained(tmp_path / "before")
    patch_lm_head(model, "sigsoftmax").save_pretrained(tmp_path / "patched")
    unpatch_lm_head(model).save_pretrained(tmp_path / "after")
    texts = [(tmp_path / n / "config.json").read_text() for n in ("before", "patched", "after")]
    assert texts[0] == texts[2]
    assert NAME not in texts[0]
    assert HEAD in texts[1]
    tensors = [(tmp_path / n / "model.safetensors").read_bytes() for n in ("before", "after")]
    assert tensors[0] == tensors[1]


@pytest.mark.parametrize("attention", [False, True])
def test_class_without_a_head_leaves_it_out(attention, tmp_path):
    family = BY_NAME["bert"]
    first = patched(BY_MODEL["bert"], "learned")
    if attention:
        patch_model(first, "sparsemax")
    first.save_pretrained(tmp_path / "model")
    base = load_pretrained(AutoModel, tmp_path / "model", add_pooling_layer=False)
    inputs = family.inputs()
    assert torch.equal(family.hidden(base, inputs), family.hidden(first.bert, inputs))
    assert not hasattr(base.config, HEAD)
    base.save_pretrained(tmp_path / "base")
    if not attention:
        AutoModel.from_pretrained(tmp_path / "base")(**inputs)


def test_other_class_with_a_head_takes_it(tmp_path):
    model = BY_MODEL["bert"]
    first = patched(model, "learned")
    first.save_pretrained(tmp_path)
    other = load_pretrained(AutoModelForCausalLM, tmp_path, is_decoder=True)
    assert other.get_output_embeddings().mapping.name == "plif"
    slopes = [m.get_output_embeddings().mapping.raw_slopes for m in (first, other)]
    assert torch.equal(*slopes)


def test_options_of_from_pretrained(tmp_path):
    first = patched(BY_MODEL["llama"], "mixture")
    first.save_pretrained(tmp_path)
    half = load_pretrained(AutoModelForCausalLM, tmp_path, dtype=torch.bfloat16,
                           attn_implementation="eager")  # fmt: skip
    head = half.get_output_embeddings()
    assert half.config._attn_implementation == "eager"
    assert head.latent.weight.dtype == torch.bfloat16
    assert torch.equal(head.latent.weight, first.lm_head.latent.weight.to(torch.bfloat16))
    assert head.mapping.raw_bias.dtype == torch.float32
    assert torch.equal(head.mapping.raw_bias, first.lm_head.mapping.raw_bias)


def edit(folder, change):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))


def test_record_of_another_version_is_refused(tmp_path):
    patched(BY_MODEL["bert"], "fixed").save_pretrained(tmp_path)
    edit(tmp_path, lambda config: config[HEAD].update(version=99))
    with pytest.raises(RuntimeError, match=f"config.{HEAD}: expected version 1, got 99"):
        load_pretrained(AutoModelForMaskedLM, tmp_path)


def test_missing_learned_parameters_are_refused(tmp_path):
    BY_MODEL["gpt2"].build().save_pretrained(tmp_path / "plain")
    patched(BY_MODEL["gpt2"], "learned").save_pretrained(tmp_path / "patched")
    shutil.copy(tmp_path / "plain" / "model.safetensors", tmp_path / "patched")
    with pytest.raises(RuntimeError, match=r"lacks the learned parameters.*raw_slopes"):
        load_pretrained(AutoModelForCausalLM, tmp_path / "patched")


@pytest.mark.parametrize("patch", [patch_lm_head, patch_model])
def test_record_of_a_model_that_went_on_with_softmax_is_refused(patch, tmp_path):
    patch(BY_MODEL["gpt2"].build(), "sigsoftmax").save_pretrained(tmp_path / "patched")
    cls = AutoModelForCausalLM
    plain = cls.from_pretrained(tmp_path / "patched", attn_implementation="eager")
    plain.save_pretrained(tmp_path / "plain")
    with pytest.raises(ValueError, match=rf"does not ask for attn_implementation='{NAME}'.*softm"):
        load_pretrained(cls, tmp_path / "plain")
    edit(tmp_path / "plain", lambda config: config.update(attn_implementation=NAME))
    load_pretrained(cls, tmp_path / "plain")


def test_unpatched_save_is_refused(tmp_path):
    BY_MODEL["gpt2"].build().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=rf"neither '{NAME}' nor '{HEAD}'.*or patch_lm_head"):
        load_pretrained(AutoModelForCausalLM, tmp_path)


def test_config_of_a_model_in_memory_is_taken(tmp_path):
    first = patched(BY_MODEL["gpt2"], "learned")
    first.save_pretrained(tmp_path)
    loaded = load_pretrained(AutoModelForCausalLM, tmp_path, config=first.config)
    assert loaded.lm_head.mapping.name == "plif"
