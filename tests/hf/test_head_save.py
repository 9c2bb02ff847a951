"""A patched head comes back from disk, alone or with patched attention, or an error says how."""

import json
import shutil

import pytest
import torch
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
)

from sparse_attn import SparsitySchedule, load_pretrained, patch_model, unpatch_model
from sparse_attn.heads import (
    patch_lm_head,
    patch_multilabel_head,
    unpatch_lm_head,
    unpatch_multilabel_head,
)
from sparse_attn.hf.attention import NAME
from sparse_attn.hf.config import HEAD, MULTILABEL
from sparse_attn.hf.patching import is_patched

from . import lm_heads, multilabel_models
from .families import BY_NAME
from .helpers import case_id, jitter
from .lm_heads import BY_MODEL, LanguageModel, patched_lm, run
from .multilabel_models import BERT, GPT2, RESNET_MODEL, VIT, patched_model, without_labels

CASES = [
    (model, kind)
    for models, kinds in (
        (lm_heads.MODELS, lm_heads.KINDS),
        (multilabel_models.MODELS, multilabel_models.KINDS),
    )
    for model in models
    for kind in kinds
]
cases = pytest.mark.parametrize(("model", "kind"), CASES, ids=case_id)


def patched(model, kind):
    """A model whose head is not as it starts."""
    return (patched_lm if isinstance(model, LanguageModel) else patched_model)(model, kind)


def unpatch(model):
    return (unpatch_lm_head if hasattr(model.config, HEAD) else unpatch_multilabel_head)(model)


def plain_output(model, inputs):
    return run(model, without_labels(inputs)).logits


@cases
def test_head_comes_back(model, kind, tmp_path):
    inputs, first = model.inputs(), patched(model, kind)
    language = isinstance(model, LanguageModel)
    if not language:
        model.head(first).threshold = 0.23
    expected = run(first, inputs)
    for folder in (tmp_path / "one", tmp_path / "two"):
        first.save_pretrained(folder)
        first = load_pretrained(type(first), folder)
        actual = run(first, inputs)
        assert torch.equal(actual.logits, expected.logits)
        assert torch.equal(actual.loss, expected.loss)
        assert first.config._attn_implementation in ("sdpa", "eager")
        if language:
            tied = first.get_output_embeddings().weight is first.get_input_embeddings().weight
            assert tied == model.tied
            assert getattr(first.config, HEAD)["mapping"] == lm_heads.KINDS[kind]["mapping"]
        else:
            assert model.head(first).threshold == 0.23
            assert first.config.problem_type == "single_label_classification"
    plain = model.build()
    plain.load_state_dict(first.state_dict(), strict=False)
    assert torch.equal(plain_output(unpatch(first), inputs), plain_output(plain, inputs))


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        case
        for case in CASES
        if case[0] in (*map(BY_MODEL.get, ("gpt2", "bert", "t5", "llama")), BERT, GPT2, VIT)
    ],
    ids=case_id,
)
def test_head_and_attention_come_back_together(model, kind, tmp_path):
    inputs = model.inputs()
    first = patch_model(patched(model, kind), "t-softmax", t=1.5, learn="t")
    jitter(first)
    first.save_pretrained(tmp_path, max_shard_size="4KB")
    loaded = load_pretrained(type(first), tmp_path)
    assert is_patched(loaded)
    assert torch.equal(run(loaded, inputs).logits, run(first, inputs).logits)
    for twin in (first, loaded):
        unpatch_model(unpatch(twin))
    assert torch.equal(plain_output(loaded, inputs), plain_output(first, inputs))
    assert NAME not in loaded.config.to_json_string(use_diff=False)


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        *((model, "fixed") for model in lm_heads.MODELS),
        *((model, "softmax") for model in multilabel_models.MODELS[:-1]),
    ],
    ids=case_id,
)
def test_plain_from_pretrained_raises_at_the_first_call(model, kind, tmp_path):
    patched(model, kind).save_pretrained(tmp_path)
    plain = type(model.build()).from_pretrained(tmp_path)
    with pytest.raises(RuntimeError, match=r"holds no mapping.*sparse_attn\.load_pretrained"):
        plain(**model.inputs())
    for patch in (patch_model, patch_lm_head if kind == "fixed" else patch_multilabel_head):
        message = r"a patched head, which was not loaded; use sparse_attn\.load_pretrained"
        with pytest.raises(ValueError, match=message):
            patch(plain, "sigsoftmax")


@pytest.mark.parametrize("auto", [AutoModelForImageClassification, AutoModel])
def test_plain_from_pretrained_raises_at_once_without_attention(auto, tmp_path):
    patched_model(RESNET_MODEL, "softmax").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"sparse_attn\.load_pretrained.* is not supported"):
        auto.from_pretrained(tmp_path)
    edit(tmp_path, lambda config: config.pop("attn_implementation"))
    with pytest.raises(
        ValueError, match=rf"lacks attn_implementation.*delete '{MULTILABEL}' from its"
    ):
        load_pretrained(auto, tmp_path)


def test_saved_config_asks_for_this_package(tmp_path):
    """Without it from_pretrained then refuses, in a fresh process."""
    model = patched_lm(BY_MODEL["gpt2"], "learned")
    for _ in range(2):
        model.save_pretrained(tmp_path)
        assert json.loads((tmp_path / "config.json").read_text())["attn_implementation"] == NAME
        model = load_pretrained(type(model), tmp_path)


@pytest.mark.parametrize(
    ("model", "patch", "unpatch", "key"),
    [
        (BY_MODEL["bert"], patch_lm_head, unpatch_lm_head, HEAD),
        (RESNET_MODEL, patch_multilabel_head, unpatch_multilabel_head, MULTILABEL),
        (BERT, patch_model, unpatch_model, NAME),
    ],
    ids=case_id,
)
def test_unpatched_checkpoint_is_the_plain_one(model, patch, unpatch, key, tmp_path):
    model = model.build()
    model.save_pretrained(tmp_path / "before")
    patch(model, "sigsoftmax").save_pretrained(tmp_path / "patched")
    unpatch(model).save_pretrained(tmp_path / "after")
    for file in ("config.json", "model.safetensors"):
        before, after = ((tmp_path / folder / file).read_bytes() for folder in ("before", "after"))
        assert before == after
    assert key in (tmp_path / "patched" / "config.json").read_text()
    assert NAME not in (tmp_path / "after" / "config.json").read_text()


def test_what_is_set_after_patching_is_saved(tmp_path):
    inputs = BERT.inputs()
    model = patched_model(BERT, "r-softmax")
    SparsitySchedule("r", 0.0, 0.8).apply(model.classifier, 1.0)
    model.classifier.threshold = 0.15
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())[MULTILABEL] == {
        "version": 1, "problem_type": None, "head": {
            "mapping": "r-softmax", "params": {"r": 0.8}, "learn": [], "sparsity": "fixed",
            "loss": "r-softmax", "threshold": 0.15,
        },
    }  # fmt: skip
    loaded = load_pretrained(AutoModelForSequenceClassification, tmp_path)
    assert loaded.classifier.threshold == 0.15
    assert torch.equal(run(loaded, inputs).logits, run(model, inputs).logits)


@pytest.mark.parametrize("attention", [False, True])
@pytest.mark.parametrize(
    ("model", "kind", "key"),
    [
        (BY_MODEL["bert"], "learned", HEAD),
        (BERT, "t-softmax-learned", MULTILABEL),
        (RESNET_MODEL, "t-softmax-learned", MULTILABEL),
    ],
    ids=case_id,
)
def test_class_without_a_head_leaves_it_out(model, kind, key, attention, tmp_path):
    first = patched(model, kind)
    if attention and model is not RESNET_MODEL:
        patch_model(first, "sparsemax")
    first.save_pretrained(tmp_path / "model")
    inputs = without_labels(model.inputs())
    pooled = {"add_pooling_layer": False} if key == HEAD else {}
    base = load_pretrained(AutoModel, tmp_path / "model", **pooled)
    if model is not RESNET_MODEL:
        family = BY_NAME["bert"]
        assert torch.equal(family.hidden(base, inputs), family.hidden(first.bert, inputs))
    assert not hasattr(base.config, key)
    assert base.config.problem_type is None
    base.save_pretrained(tmp_path / "base")
    if not attention:
        AutoModel.from_pretrained(tmp_path / "base")(**inputs)


def test_other_class_with_a_head_takes_it(tmp_path):
    first = patched_lm(BY_MODEL["bert"], "learned")
    first.save_pretrained(tmp_path)
    other = load_pretrained(AutoModelForCausalLM, tmp_path, is_decoder=True)
    assert other.get_output_embeddings().mapping.name == "plif"
    slopes = [m.get_output_embeddings().mapping.raw_slopes for m in (first, other)]
    assert torch.equal(*slopes)


def test_other_heads_keep_their_own_records(tmp_path):
    """A language model that is loaded for classification, and the other way round."""
    patch_lm_head(BY_MODEL["bert"].build(), "sigsoftmax").save_pretrained(tmp_path / "lm")
    model = load_pretrained(AutoModelForSequenceClassification, tmp_path / "lm", num_labels=5)
    assert type(model.classifier) is torch.nn.Linear
    patch_multilabel_head(model, "sparsemax")
    assert run(model, BERT.inputs()).loss.isfinite()
    model.save_pretrained(tmp_path / "classifier")
    language = load_pretrained(type(BY_MODEL["bert"].build()), tmp_path / "classifier")
    assert not hasattr(language.config, MULTILABEL)
    run(language, BY_NAME["bert"].inputs())


@pytest.mark.parametrize(
    ("model", "kind", "auto", "added"),
    [
        (BY_MODEL["llama"], "mixture", AutoModelForCausalLM, "lm_head.latent"),
        (GPT2, "t-softmax-predicted", AutoModelForSequenceClassification, "score.predictor"),
    ],
    ids=case_id,
)
def test_options_of_from_pretrained(model, kind, auto, added, tmp_path):
    first = patched(model, kind)
    first.save_pretrained(tmp_path)
    half = load_pretrained(auto, tmp_path, dtype=torch.bfloat16, config=first.config,
                           attn_implementation="eager")  # fmt: skip
    assert half.config._attn_implementation == "eager"
    weight = half.get_submodule(added).weight
    assert torch.equal(weight, first.get_submodule(added).weight.to(torch.bfloat16))
    for raw, other in zip(first.parameters(), half.parameters(), strict=True):
        if other.dtype == torch.float32:  # of the mapping
            assert torch.equal(raw, other)
    if kind == "mixture":
        assert half.lm_head.mapping.raw_bias.dtype == torch.float32


def edit(folder, change):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("model", "kind", "key", "auto", "lost"),
    [
        (BY_MODEL["bert"], "learned", HEAD, AutoModelForMaskedLM, "raw_slopes"),
        (BERT, "t-softmax-learned", MULTILABEL, AutoModelForSequenceClassification,
         "classifier.*raw_t"),
    ],
    ids=case_id,
)  # fmt: skip
def test_configs_that_do_not_fit_are_refused(model, kind, key, auto, lost, tmp_path):
    model.build().save_pretrained(tmp_path / "plain")
    with pytest.raises(ValueError, match=rf"neither '{NAME}' nor '{HEAD}' nor '{MULTILABEL}'"):
        load_pretrained(auto, tmp_path / "plain")
    patched(model, kind).save_pretrained(tmp_path / "patched")
    shutil.copy(tmp_path / "plain" / "model.safetensors", tmp_path / "patched")
    with pytest.raises(RuntimeError, match=rf"lacks the learned parameters.*{lost}"):
        load_pretrained(auto, tmp_path / "patched")
    edit(tmp_path / "patched", lambda config: config[key].update(version=99))
    with pytest.raises(RuntimeError, match=rf"config\.{key}: expected version 1, got 99"):
        load_pretrained(auto, tmp_path / "patched")


@pytest.mark.parametrize("patch", [patch_lm_head, patch_model])
def test_config_of_a_model_that_went_on_with_softmax_is_refused(patch, tmp_path):
    patch(BY_MODEL["gpt2"].build(), "sigsoftmax").save_pretrained(tmp_path / "patched")
    cls = AutoModelForCausalLM
    plain = cls.from_pretrained(tmp_path / "patched")
    with pytest.raises(ValueError, match=r"attn_implementation='eager': config\..*for which this"):
        plain.set_attn_implementation("eager")
    plain.config._attn_implementation = "eager"
    plain.save_pretrained(tmp_path / "plain")
    with pytest.raises(ValueError, match=rf"lacks attn_implementation='{NAME}'.*softm"):
        load_pretrained(cls, tmp_path / "plain")
    edit(tmp_path / "plain", lambda config: config.update(attn_implementation=NAME))
    load_pretrained(cls, tmp_path / "plain")
