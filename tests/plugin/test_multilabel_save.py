"""A multi-label head comes back from disk whole, or an error says how; what is set later too."""

import json
import shutil

import pytest
import torch
from transformers import (
    AutoModel,
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
)

from sparse_attn import SparsitySchedule, load_pretrained, patch_model, unpatch_model
from sparse_attn.attention import NAME
from sparse_attn.heads import patch_lm_head, patch_multilabel_head, unpatch_multilabel_head
from sparse_attn.patch_config import HEAD, MULTILABEL

from .families import BY_NAME
from .helpers import jitter
from .lm_heads import BY_MODEL, run
from .multilabel_models import (
    BERT,
    GPT2,
    KINDS,
    MODELS,
    RESNET_MODEL,
    VIT,
    patched_model,
    without_labels,
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model", MODELS, ids=str)
def test_head_comes_back(model, kind, tmp_path):
    inputs, first = model.inputs(), patched_model(model, kind)
    model.head(first).threshold = 0.23
    expected = run(first, inputs)
    for folder in (tmp_path / "one", tmp_path / "two"):
        first.save_pretrained(folder)
        first = load_pretrained(type(first), folder)
        actual = run(first, inputs)
        assert torch.equal(actual.logits, expected.logits)
        assert torch.equal(actual.loss, expected.loss)
        assert model.head(first).threshold == 0.23
        assert first.config.problem_type == "single_label_classification"
        assert first.config._attn_implementation in ("sdpa", "eager")
    plain = model.build()
    with torch.no_grad():
        model.head(plain).load_state_dict(model.head(first).state_dict(), strict=False)
    unpatch_multilabel_head(first)
    assert first.config.problem_type is None
    assert MULTILABEL not in first.config.to_json_string()
    assert NAME not in first.config.to_json_string()
    assert torch.equal(run(first, without_labels(inputs)).logits,
                       run(plain, without_labels(inputs)).logits)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model", [BERT, GPT2, VIT], ids=str)
def test_head_and_attention_come_back_together(model, kind, tmp_path):
    inputs = model.inputs()
    first = patch_model(patched_model(model, kind), "entmax", learn="alpha")
    jitter(first)
    first.save_pretrained(tmp_path, max_shard_size="4KB")
    loaded = load_pretrained(type(first), tmp_path)
    assert torch.equal(run(loaded, inputs).logits, run(first, inputs).logits)
    for twin in (first, loaded):
        unpatch_model(unpatch_multilabel_head(twin))
    assert torch.equal(run(loaded, without_labels(inputs)).logits,
                       run(first, without_labels(inputs)).logits)  # fmt: skip
    assert NAME not in loaded.config.to_json_string(use_diff=False)


@pytest.mark.parametrize("model", MODELS[:-1], ids=str)
def test_plain_from_pretrained_raises_at_the_first_call(model, tmp_path):
    patched_model(model, "softmax").save_pretrained(tmp_path)
    plain = type(model.build()).from_pretrained(tmp_path)
    with pytest.raises(RuntimeError, match=r"holds no mapping.*sparse_attn\.load_pretrained"):
        plain(**model.inputs())
    for patch in (patch_model, patch_multilabel_head):
        with pytest.raises(ValueError, match=r"a patched head, which was not loaded.*multilabel"):
            patch(plain, "sparsemax")


@pytest.mark.parametrize("auto", [AutoModelForImageClassification, AutoModel])
def test_plain_from_pretrained_raises_at_once_without_attention(auto, tmp_path):
    patched_model(RESNET_MODEL, "softmax").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"sparse_attn\.load_pretrained.* is not supported"):
        auto.from_pretrained(tmp_path)
    plain = auto.from_pretrained(tmp_path, attn_implementation="eager")
    plain.save_pretrained(tmp_path / "plain")
    with pytest.raises(ValueError, match=rf"does not ask for.*delete '{MULTILABEL}' from its"):
        load_pretrained(auto, tmp_path / "plain")


def test_unpatched_checkpoint_is_the_plain_one(tmp_path):
    model = RESNET_MODEL.build()
    model.save_pretrained(tmp_path / "before")
    patch_multilabel_head(model, "sparsemax").save_pretrained(tmp_path / "patched")
    unpatch_multilabel_head(model).save_pretrained(tmp_path / "after")
    for file in ("config.json", "model.safetensors"):
        before, after = ((tmp_path / folder / file).read_bytes() for folder in ("before", "after"))
        assert before == after
    assert MULTILABEL in (tmp_path / "patched" / "config.json").read_text()


def test_what_is_set_after_patching_is_saved(tmp_path):
    inputs = BERT.inputs()
    model = patched_model(BERT, "r-softmax")
    SparsitySchedule("r", 0.0, 0.8).apply(model.classifier, 1.0)
    model.classifier.threshold = 0.15
    model.save_pretrained(tmp_path)
    record = json.loads((tmp_path / "config.json").read_text())[MULTILABEL]
    assert record == {
        "version": 1, "problem_type": None, "head": {
            "mapping": "r-softmax", "params": {"r": 0.8}, "learn": [], "sparsity": "fixed",
            "loss": "r-softmax", "threshold": 0.15,
        },
    }  # fmt: skip
    loaded = load_pretrained(AutoModelForSequenceClassification, tmp_path)
    assert loaded.classifier.threshold == 0.15
    assert torch.equal(run(loaded, inputs).logits, run(model, inputs).logits)


@pytest.mark.parametrize("model", [BERT, RESNET_MODEL], ids=str)
def test_class_without_a_head_leaves_it_out(model, tmp_path):
    patched_model(model, "t-softmax-learned").save_pretrained(tmp_path / "model")
    base = load_pretrained(AutoModel, tmp_path / "model")
    assert not hasattr(base.config, MULTILABEL)
    assert base.config.problem_type is None
    base.save_pretrained(tmp_path / "base")
    AutoModel.from_pretrained(tmp_path / "base")(**without_labels(model.inputs()))


def test_options_of_from_pretrained(tmp_path):
    first = patched_model(GPT2, "t-softmax-predicted")
    first.save_pretrained(tmp_path)
    half = load_pretrained(AutoModelForSequenceClassification, tmp_path, dtype=torch.bfloat16,
                           config=first.config, attn_implementation="eager")  # fmt: skip
    assert half.config._attn_implementation == "eager"
    predictor = half.score.predictor.weight
    assert torch.equal(predictor, first.score.predictor.weight.to(torch.bfloat16))


def test_records_that_do_not_fit_are_refused(tmp_path):
    cls = AutoModelForSequenceClassification
    BERT.build().save_pretrained(tmp_path / "plain")
    with pytest.raises(ValueError, match=rf"neither '{NAME}' nor '{HEAD}' nor '{MULTILABEL}'"):
        load_pretrained(cls, tmp_path / "plain")
    patched_model(BERT, "t-softmax-learned").save_pretrained(tmp_path / "patched")
    shutil.copy(tmp_path / "plain" / "model.safetensors", tmp_path / "patched")
    with pytest.raises(RuntimeError, match=r"lacks the learned parameters.*classifier.*raw_t"):
        load_pretrained(cls, tmp_path / "patched")
    path = tmp_path / "patched" / "config.json"
    config = json.loads(path.read_text())
    config[MULTILABEL]["version"] = 9
    path.write_text(json.dumps(config))
    with pytest.raises(RuntimeError, match=f"config.{MULTILABEL}: expected version 1, got 9"):
        load_pretrained(cls, tmp_path / "patched")


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
