"""Patched heads leave no trace when they are taken out; copies are patched too."""

import copy
import pickle

import pytest
import torch
from peft import LoraConfig, get_peft_model

from sparse_attn import patch_model, unpatch_model
from sparse_attn.heads import (
    MultiLabelHead,
    patch_lm_head,
    patch_multilabel_head,
    unpatch_lm_head,
    unpatch_multilabel_head,
)
from sparse_attn.hf.config import MULTILABEL

from .heads import fingerprint
from .helpers import case_id, peft_warns
from .lm_heads import BY_MODEL, run
from .multilabel_models import BERT, GPT2, KINDS, MODELS, patched_model, without_labels


@pytest.mark.parametrize("problem_type", [None, "regression"])
@pytest.mark.parametrize("model", MODELS, ids=case_id)
def test_unpatch_restores_everything(model, problem_type):
    inputs, plain = model.inputs(), model.build(problem_type=problem_type)
    before = fingerprint(plain, without_labels(inputs))
    patch_multilabel_head(plain, "softmax")
    assert plain.config.problem_type == "single_label_classification"
    assert run(plain, inputs).loss.isfinite()
    patch_multilabel_head(plain, "r-softmax", sparsity="predicted")
    assert [type(m) for m in plain.modules()].count(MultiLabelHead) == 1
    assert unpatch_multilabel_head(plain) is plain
    assert fingerprint(plain, without_labels(inputs)) == before
    with pytest.raises(ValueError, match=f"head of {model.cls} is not patched; call patch_multi"):
        unpatch_multilabel_head(plain)


def test_unpatch_keeps_what_was_trained():
    inputs, model = BERT.inputs(), BERT.build()
    patch_multilabel_head(model, "sparsemax")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model.classifier.weight.clone()
    model(**inputs).loss.backward()
    optimizer.step()
    hidden = torch.randn(2, 16)
    scores = model.classifier.scores(hidden)
    unpatch_multilabel_head(model)
    assert not torch.equal(model.classifier.weight, before)
    assert torch.equal(model.classifier(hidden), scores)


LANGUAGE = [(BY_MODEL[name], patch_lm_head, unpatch_lm_head) for name in ("gpt2", "bert", "t5")]
CLASSES = [(model, patch_multilabel_head, unpatch_multilabel_head) for model in (BERT, GPT2)]
each = pytest.mark.parametrize(("model", "patch", "unpatch"), [*LANGUAGE, *CLASSES], ids=case_id)


@each
def test_attention_and_head_are_patched_apart(model, patch, unpatch):
    inputs, plain = without_labels(model.inputs()), model.build()
    before = fingerprint(plain, inputs)
    patch(plain, "sigsoftmax")
    assert plain.config._attn_implementation == "sdpa"
    run(plain, inputs)
    head_only = fingerprint(plain, inputs)
    patch_model(plain, "entmax")
    unpatch(plain)
    assert plain.config._attn_implementation == "sparse_attn"
    assert plain.config.attn_implementation == "sparse_attn"
    run(patch(plain, "sigsoftmax"), inputs)
    assert fingerprint(unpatch_model(plain), inputs) == head_only
    assert fingerprint(unpatch(plain), inputs) == before


@each
def test_wrapped_models_are_patched_inside(model, patch, unpatch):
    inputs, plain = model.inputs(), model.build()
    kinds = [type(module) for module in plain.modules()]
    wrapped = torch.nn.DataParallel(plain)
    assert patch(wrapped, "sigsoftmax") is wrapped
    assert [type(module) for module in plain.modules()] != kinds
    assert run(wrapped.module, inputs).loss == run(plain, inputs).loss
    unpatch(wrapped)
    assert [type(module) for module in plain.modules()] == kinds


@pytest.mark.parametrize("kind", KINDS)
def test_copies_are_patched_and_have_a_record_of_their_own(kind):
    inputs = BERT.inputs()
    model = patched_model(BERT, kind)
    expected = run(model, inputs)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(run(twin, inputs).loss, expected.loss)
        twin.classifier.threshold = 0.7
        assert getattr(twin.config, MULTILABEL)["head"]["threshold"] == 0.7
        assert getattr(model.config, MULTILABEL)["head"]["threshold"] != 0.7
        unpatch_multilabel_head(twin)
    assert torch.equal(run(model, inputs).loss, expected.loss)


def test_what_a_head_refuses_leaves_the_model_alone():
    inputs, model = BERT.inputs(), BERT.build()
    before = fingerprint(model, without_labels(inputs))
    for arguments in ({"mapping": "sparsecone"}, {"loss": "bce"}, {"threshold": 2}):
        with pytest.raises(ValueError, match=r"zeros|loss=|threshold="):
            patch_multilabel_head(model, **arguments)
    with pytest.raises(ValueError, match="has an unpatchable head"):
        patch_lm_head(model, "softmax")
    assert fingerprint(model, without_labels(inputs)) == before


@peft_warns
def test_a_layer_that_peft_wraps_is_refused():
    for options in ({"modules_to_save": ["classifier"]}, {"target_modules": ["classifier"]}):
        options = {"target_modules": ["query"], **options}
        wrapped = get_peft_model(BERT.build(), LoraConfig(r=2, **options))
        with pytest.raises(ValueError, match=r"wrapped by PEFT \(classifier\..*patch before wrapp"):
            patch_multilabel_head(wrapped, "sparsemax")
