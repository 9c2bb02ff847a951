"""PEFT around a patched model, a patch inside a PEFT model, learned parameters saved."""

import re

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModel

from sparse_attn import (
    patch_lm_head,
    patch_model,
    patch_multilabel_head,
    patched,
    unpatch_lm_head,
    unpatch_model,
)
from tests.commands import python

from .families import BY_NAME
from .helpers import jitter, mappings_of, peft_warns

pytestmark = peft_warns
FAMILY = BY_NAME["bert"]


def lora(**options):
    return LoraConfig(r=2, target_modules=["query", "value"], init_lora_weights=False, **options)


def learning(**options):
    return patch_model(FAMILY.build(), "t-softmax", t=2.0, learn="t", **options)


def test_patch_before_and_after_wrapping_agree():
    first = get_peft_model(patch_model(FAMILY.build(), "r-softmax", r=0.3), lora())
    second = get_peft_model(FAMILY.build(), lora())
    assert patch_model(second, "r-softmax", r=0.3) is second
    second.load_state_dict(first.state_dict())
    expected = FAMILY.hidden(first)
    assert torch.equal(FAMILY.hidden(second), expected)
    assert [m.name for m in mappings_of(second)] == ["r-softmax", "r-softmax"]


@pytest.mark.parametrize("before", [True, False])
def test_unpatch_inside_peft_restores_the_wrapped_model(before):
    plain = get_peft_model(FAMILY.build(), lora())
    base = FAMILY.build()
    model = get_peft_model(patch_model(base, "sparsemax") if before else base, lora())
    if not before:
        patch_model(model, "sparsemax")
    unpatch_model(model)
    model.load_state_dict(plain.state_dict())
    assert torch.equal(FAMILY.hidden(model), FAMILY.hidden(plain))


def test_without_modules_to_save_learned_parameters_are_frozen():
    model = get_peft_model(learning(), lora())
    trainable = [n for n, p in model.named_parameters() if p.requires_grad]
    assert trainable
    assert all("lora_" in name for name in trainable)


@pytest.mark.parametrize("per", ["layer", "head"])
def test_modules_to_save_trains_and_saves_learned_parameters(per, tmp_path):
    model = get_peft_model(learning(per=per), lora(modules_to_save=["sparse_attn"]))
    trained = {n: p for n, p in model.named_parameters() if "sparse_attn" in n and p.requires_grad}
    assert len(trained) == 2
    before = FAMILY.hidden(model)
    optimizer = torch.optim.SGD(trained.values(), lr=0.5)
    model(**FAMILY.example).last_hidden_state.square().sum().sqrt().backward()
    assert all(p.grad.ne(0).all() for p in trained.values())
    optimizer.step()
    jitter(model)
    after = FAMILY.hidden(model)
    assert (after - before).abs().max() > 1e-3
    model.save_pretrained(tmp_path)
    loaded = PeftModel.from_pretrained(learning(per=per), tmp_path)
    assert torch.equal(FAMILY.hidden(loaded), after)


def test_a_disabled_adapter_and_a_block_use_the_mappings_that_they_should():
    expected = FAMILY.hidden(learning())
    model = get_peft_model(learning(), lora(modules_to_save=["sparse_attn"]))
    with torch.no_grad():
        for parameter in (p for p in model.parameters() if p.requires_grad):
            parameter.add_(0.5)
    trained = FAMILY.hidden(model)
    assert (trained - expected).abs().max() > 1e-3
    with model.disable_adapter():
        assert torch.equal(FAMILY.hidden(model), expected)
    with patched(model, "sparsemax"):
        assert (FAMILY.hidden(model) - trained).abs().max() > 1e-3
    assert torch.equal(FAMILY.hidden(model), trained)


def test_merged_model_can_be_saved_and_loaded(tmp_path):
    model = get_peft_model(learning(), lora(modules_to_save=["sparse_attn"]))
    jitter(model)
    expected = FAMILY.hidden(model)
    model.merge_and_unload().save_pretrained(tmp_path)
    loaded = AutoModel.from_pretrained(tmp_path)
    torch.testing.assert_close(FAMILY.hidden(loaded), expected, rtol=1e-4, atol=1e-5)


def classifier():
    return FAMILY.build("BertForSequenceClassification")


def attention(model):
    return patch_model(model, "r-softmax", r=0.3)


BASES = {
    "attention": (attention, classifier),
    "LM head": (
        lambda model: patch_lm_head(model, "sigsoftmax", bias=0.5),
        lambda: FAMILY.build("BertForMaskedLM"),
    ),
    "multi-label head": (lambda model: patch_multilabel_head(model, "sparsemax"), classifier),
}


excludes_nothing = pytest.mark.filterwarnings("ignore:You have passed exclude_modules")


@excludes_nothing
@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"task_type": "SEQ_CLS"},
        {"modules_to_save": ["classifier"]},
        {"modules_to_save": ["sparse_attn"]},
        {"exclude_modules": ["key"]},
        {"exclude_modules": ".*key|.*word"},
        {"exclude_modules": "(?i).*KEY"},
    ],
    ids=str,
)
def test_an_adapter_of_a_patched_base_raises_on_a_plain_one(base, options, tmp_path):
    patch, build = BASES[base]
    inputs = FAMILY.example
    model = get_peft_model(patch(build()), lora(**options)).eval()
    with torch.no_grad():
        expected = model(**inputs).logits
    model.save_pretrained(tmp_path)
    for load in (lambda: PeftModel.from_pretrained(build(), tmp_path),
                 lambda: build().load_adapter(tmp_path)):  # fmt: skip
        with pytest.raises(ValueError, match="adapter 'default' was trained on a patched base"):
            load()
    again = PeftModel.from_pretrained(patch(build()), tmp_path).eval()
    with torch.no_grad():
        assert torch.equal(again(**inputs).logits, expected)


@pytest.mark.slow
@excludes_nothing
def test_an_adapter_trained_in_a_compiled_model_is_marked_too(tmp_path):
    model = get_peft_model(attention(classifier()), lora())
    torch.compile(model, backend="eager")(**FAMILY.inputs()).logits.sum().backward()
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="was trained on a patched base"):
        PeftModel.from_pretrained(classifier(), tmp_path)


@excludes_nothing
def test_an_adapter_of_two_patches_keeps_the_mark_of_the_other(tmp_path):
    base = patch_lm_head(attention(FAMILY.build("BertForMaskedLM")), "sigsoftmax")
    model = get_peft_model(base, lora())
    model(**FAMILY.inputs())
    unpatch_lm_head(model)
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"was trained on a patched base \(sparse_attn\)"):
        PeftModel.from_pretrained(FAMILY.build("BertForMaskedLM"), tmp_path)


ELSEWHERE = """
import sys, torch, warnings
from peft import PeftModel
from transformers import BertForSequenceClassification
base = BertForSequenceClassification.from_pretrained(sys.argv[1])
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    PeftModel.from_pretrained(base, sys.argv[2])
assert "sparse_attn" not in sys.modules
print(*(warning.message for warning in seen))
"""


@pytest.mark.slow
def test_where_sparse_attn_is_not_imported_peft_warns(tmp_path):
    classifier().save_pretrained(tmp_path / "plain")
    model = get_peft_model(attention(classifier()), lora())
    model(**FAMILY.inputs())
    model.save_pretrained(tmp_path / "adapter")
    said = python("-c", ELSEWHERE, tmp_path / "plain", tmp_path / "adapter")
    assert "sparse_attn" in said
    assert "no modules were excluded" in said


def test_an_adapter_keeps_what_the_user_excludes_and_forgets_an_undone_patch(tmp_path):
    inputs = FAMILY.inputs()
    config = lora(exclude_modules=["encoder.layer.0.attention.self.query"])
    model = get_peft_model(FAMILY.build(), config)
    with patched(model, "sparsemax"):
        model(**inputs)
        excluded = model.peft_config["default"].exclude_modules
        assert excluded == {"sparse_attn", "encoder.layer.0.attention.self.query"}
        assert config.exclude_modules == excluded - {"sparse_attn"}
    assert model.peft_config["default"] is config
    pattern = get_peft_model(
        patch_model(FAMILY.build(), "sparsemax"), lora(exclude_modules=".*0.*")
    )
    pattern(**inputs)
    excluded = pattern.peft_config["default"].exclude_modules
    names = [name for name, _ in pattern.named_modules()]
    assert [n for n in names if re.fullmatch(excluded, n)] == [
        n for n in names if "0" in n or n.endswith("sparse_attn")
    ]
