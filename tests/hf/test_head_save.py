"""A saved head is loaded by Transformers' plain classes, alone or with attention, or it raises."""

import copy

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification

from sparse_attn import (
    SparsitySchedule,
    patch_lm_head,
    patch_model,
    patch_multilabel_head,
    unpatch_model,
)
from sparse_attn.hf.config import HEAD, MULTILABEL
from sparse_attn.hf.patching import is_patched

from . import lm_heads, multilabel_models
from .families import BY_NAME, tokens
from .heads import run, shared, unlabelled
from .helpers import case_id, jitter
from .lm_heads import BY_MODEL
from .multilabel_models import BERT, GPT2, RESNET_MODEL, VIT

CASES = [
    (model, kind)
    for model in (*lm_heads.MODELS, *multilabel_models.MODELS)
    for kind in model.kinds
    if kind != "zeros" or model.dispatches
]
WITH_ATTENTION = [BY_MODEL["gpt2"], BY_MODEL["bert"], BY_MODEL["t5"], BERT, GPT2, VIT]
# one head with fixed and one with learned values
FEW = [
    (BY_MODEL["llama"], "fixed"),
    (BY_MODEL["gpt2"], "mixture"),
    (BERT, "r-softmax"),
    (GPT2, "t-softmax-predicted"),
    (RESNET_MODEL, "t-softmax-learned"),
]
few = pytest.mark.parametrize(("model", "kind"), FEW, ids=case_id)


def texts(*folders):
    return [(folder / "config.json").read_text() for folder in folders]


@pytest.mark.parametrize(
    ("model", "kind", "attention"),
    [*((*c, False) for c in CASES), *((*c, True) for c in CASES if c[0] in WITH_ATTENTION)],
    ids=case_id,
)
def test_a_head_comes_back_and_can_be_removed(model, kind, attention, tmp_path):
    inputs, first = model.inputs(), model.patched(kind)
    if attention:
        jitter(patch_model(first, "t-softmax", t=1.5, learn="t"))
    if model.key == MULTILABEL:
        model.head(first).threshold = 0.23
    expected, ties = run(first, inputs), shared(first)
    entry = copy.deepcopy(vars(first.config)[model.key])
    for folder in (tmp_path / "one", tmp_path / "two"):
        first.save_pretrained(folder, max_shard_size="4KB")
        first = model.auto.from_pretrained(folder)
        actual = run(first, inputs)
        assert torch.equal(actual.logits, expected.logits)
        assert torch.equal(actual.loss, expected.loss)
        assert shared(first) == ties
        assert vars(first.config)[model.key] == entry
        assert is_patched(first) == attention
        assert (first.config._attn_implementation == "sparse_attn") == attention
    plain = model.build()
    plain.load_state_dict(first.state_dict(), strict=False)
    expected = run(plain, unlabelled(inputs)).logits
    model.unpatch(first)
    if attention:
        unpatch_model(first)
    first.save_pretrained(tmp_path / "after")
    plain.save_pretrained(tmp_path / "plain")
    assert len({*texts(tmp_path / "after", tmp_path / "plain")}) == 1
    for twin in (first, model.auto.from_pretrained(tmp_path / "after")):
        assert torch.equal(run(twin, unlabelled(inputs)).logits, expected)


@few
def test_values_stay_in_float32_whatever_the_dtype_of_the_model(model, kind, tmp_path):
    inputs, first = model.inputs(), model.patched(kind)
    if model is not RESNET_MODEL:
        jitter(patch_model(first, "t-softmax", t=1.5, learn="t"))
    first.save_pretrained(tmp_path)
    half = model.auto.from_pretrained(tmp_path, dtype=torch.bfloat16)
    first.to(torch.bfloat16)
    state = first.state_dict()
    assert state.keys() == half.state_dict().keys()
    for name, tensor in half.state_dict().items():
        assert torch.equal(tensor, state[name].to(tensor.dtype))
        if tensor.is_floating_point() and not name.endswith(".held"):
            is_value = ".mapping." in name or ".sparse_attn." in name
            assert tensor.dtype == (torch.float32 if is_value else torch.bfloat16)
    if "pixel_values" not in inputs:
        assert torch.equal(run(half, inputs).logits, run(first, inputs).logits)


def test_what_is_set_on_a_loaded_head_is_saved(tmp_path):
    """And belongs to this model alone."""
    BERT.patched("r-softmax").save_pretrained(tmp_path / "one")
    first = model = BERT.auto.from_pretrained(tmp_path / "one")
    twin = type(model)(model.config)
    for i, (r, threshold) in enumerate([(0.8, 0.15), (0.6, 0.3)]):
        SparsitySchedule("r", 0.0, r).apply(model.classifier, 1.0)
        model.classifier.threshold = threshold
        model.save_pretrained(tmp_path / str(i))
        model = BERT.auto.from_pretrained(tmp_path / str(i))
        assert vars(model.config)[MULTILABEL] == {
            "version": 2, "problem_type": "multi_label_classification", "head": {
                "mapping": "r-softmax", "params": {"r": r}, "learn": [], "sparsity": "fixed",
                "loss": "r-softmax", "threshold": threshold,
            },
        }  # fmt: skip
        assert model.classifier.threshold == threshold
        assert model.classifier.mapping.value("r") == r
        assert model.config.problem_type == "single_label_classification"
    assert [m.classifier.threshold for m in (first, twin)] == [0.15, 0.0]
    assert [m.classifier.mapping.value("r") for m in (first, twin)] == [0.8, 0.4]


@pytest.mark.parametrize(
    ("model", "kind", "attention", "lost"),
    [
        (BY_MODEL["bert"], "learned", False, "raw_slopes"),
        (BY_MODEL["bert"], "mixture", True, "raw_bias"),
        (BERT, "softmax", False, "held"),
        (BERT, "r-softmax", True, "mapping.r"),
        (RESNET_MODEL, "t-softmax-learned", False, "raw_t"),
    ],
    ids=case_id,
)
def test_a_class_without_the_head_computes_the_plain_base(model, kind, attention, lost, tmp_path):
    """It keeps the entry, so that a class with the head does not compute softmax."""
    first = model.patched(kind)
    if attention:
        patch_model(first, "sparsemax")
    first.save_pretrained(tmp_path / "model")
    pooled = {"add_pooling_layer": False} if model.key == HEAD else {}
    base = AutoModel.from_pretrained(tmp_path / "model", **pooled)
    base.save_pretrained(tmp_path / "base")
    inputs = unlabelled(model.inputs())
    for twin in (base, AutoModel.from_pretrained(tmp_path / "base", **pooled)):
        expected = run(first.base_model, inputs).last_hidden_state
        assert torch.equal(run(twin, inputs).last_hidden_state, expected)
        assert model.key in vars(twin.config)
        problem = "multi_label_classification" if model.key == MULTILABEL else None
        assert twin.config.problem_type == problem
    with pytest.raises(RuntimeError, match=f"its weights lack .*{lost}"):
        model.auto.from_pretrained(tmp_path / "base")
    assert model.key not in vars(model.unpatch(base).config)


def test_another_class_with_such_a_head_takes_it(tmp_path):
    first = BY_MODEL["bert"].patched("learned")
    first.save_pretrained(tmp_path)
    other = AutoModelForCausalLM.from_pretrained(tmp_path, is_decoder=True)
    slopes = [m.get_output_embeddings().mapping.raw_slopes for m in (first, other)]
    assert torch.equal(*slopes)


def test_two_heads_in_one_config(tmp_path):
    """A patched language model becomes a classifier with a head of its own."""
    BY_MODEL["bert"].patched("fixed").save_pretrained(tmp_path / "lm")
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "lm", num_labels=5)
    assert type(model.classifier) is torch.nn.Linear
    patch_multilabel_head(model, "sparsemax").save_pretrained(tmp_path / "classifier")
    loaded, inputs = BERT.auto.from_pretrained(tmp_path / "classifier"), BERT.inputs()
    assert run(loaded, inputs).loss == run(model, inputs).loss
    assert {HEAD, MULTILABEL} <= vars(loaded.config).keys()


@few
def test_a_lost_value_raises(model, kind, tmp_path):
    first = model.patched(kind)
    first.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    weights, plain = load_file(file), model.build().state_dict()
    added = sorted(weights.keys() - plain.keys())
    assert added
    for name in added:
        rest = {other: tensor for other, tensor in weights.items() if other != name}
        save_file(rest, file, {"format": "pt"})
        with pytest.raises(RuntimeError, match=f"its weights lack {name}"):
            model.auto.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("model", "kind", "size"),
    [
        (BY_MODEL["llama"], "learned", {"vocab_size": 5000}),
        (BERT, "t-softmax-learned", {"num_labels": 500}),
    ],
    ids=case_id,
)
def test_weights_of_another_size_begin_as_in_a_plain_model(model, kind, size, tmp_path):
    """Transformers leaves what it does not know as it finds it in memory."""
    model.patched(kind).save_pretrained(tmp_path)
    loaded = model.auto.from_pretrained(tmp_path, ignore_mismatched_sizes=True, **size)
    head = model.head(loaded)
    assert len(head.weight) == next(iter(size.values()))
    assert head.weight.std().item() == pytest.approx(loaded.config.initializer_range, rel=0.1)
    assert head.bias is None or not head.bias.any()


@pytest.mark.parametrize("kind", ["learned", "mixture"])
@pytest.mark.parametrize("patched", ["whole", "decoder"])
def test_an_encoder_decoder(patched, kind, tmp_path):
    config = BY_NAME["bert"].make_config(is_decoder=True, add_cross_attention=True)
    decoder = transformers.BertLMHeadModel(config).eval()
    model = transformers.EncoderDecoderModel(encoder=BY_NAME["bert"].build(), decoder=decoder)
    patch_lm_head(model if patched == "whole" else decoder, **BY_MODEL["bert"].kinds[kind])
    model.save_pretrained(tmp_path / "whole")
    decoder.save_pretrained(tmp_path / "decoder")
    inputs = {"input_ids": tokens(), "decoder_input_ids": tokens(length=7)}
    loaded = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "whole")
    assert torch.equal(run(loaded, inputs).logits, run(model.eval(), inputs).logits)
    alone = AutoModelForCausalLM.from_pretrained(tmp_path / "decoder")
    inputs = {"input_ids": tokens()}
    assert torch.equal(run(alone, inputs).logits, run(decoder, inputs).logits)
