"""config.sparse_attn is what stands in the modules, in memory and in what is saved."""

import copy
import gc
import json
import pickle

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import AutoModel, BertForSequenceClassification, BertModel

from sparse_attn import Mapping, SparsitySchedule, load_pretrained, patch_model, unpatch_model
from sparse_attn.heads import patch_multilabel_head, unpatch_multilabel_head
from sparse_attn.hf.attention import NAME
from sparse_attn.hf.config import MULTILABEL
from sparse_attn.hf.patching import set_parameter

from .families import BY_NAME
from .helpers import mappings_of, peft_warns

BERT = BY_NAME["bert"]


def values(config):
    return [group["params"]["r"] for group in config[NAME]["mappings"]]


def patched():
    return patch_model(BERT.build(), "r-softmax", r=0.1)


def own(model, value):
    for mapping in mappings_of(model):
        mapping.set_value("r", value)


def replaced(model, value):
    for layer in model.encoder.layer:
        layer.attention.self.sparse_attn = Mapping("r-softmax", r=value)


CHANGES = {
    "by the module": own,
    "by another module": replaced,
    "by set_parameter": lambda model, value: set_parameter(model, "r", value),
    "by a schedule": lambda model, value: SparsitySchedule(final=value).apply(model, 1.0),
    "by a second patch": lambda model, value: patch_model(model, "r-softmax", r=value),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_every_change_is_shown_and_saved(change, tmp_path):
    model = patched()
    change(model, 0.4)
    assert values(vars(model.config)) == values(model.config.to_dict()) == [0.4]
    assert '"r": 0.4' in str(model.config)
    model.save_pretrained(tmp_path)
    assert values(json.loads((tmp_path / "config.json").read_text())) == [0.4]
    assert next(mappings_of(load_pretrained(AutoModel, tmp_path))).value("r") == 0.4


@pytest.mark.parametrize("name", ["bert", "t5", "clip"])
@pytest.mark.parametrize(
    "twin", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))], ids=["copy", "pickle"]
)
def test_a_copy_shows_its_own_modules(twin, name):
    model = patch_model(BY_NAME[name].build(), "r-softmax", r=0.1)
    other = twin(model)
    own(other, 0.2)
    own(model, 0.3)
    assert (values(vars(model.config)), values(vars(other.config))) == ([0.3], [0.2])
    assert all(values(vars(m.config)) == [0.2] for m in other.modules() if hasattr(m, "config"))


def test_a_config_without_its_model_shows_what_that_was():
    model = patched()
    config, pickled = model.config, pickle.dumps(model.config)
    copied = copy.deepcopy(config)
    SparsitySchedule(final=0.4).apply(model, 1.0)
    assert values(vars(copied)) == values(vars(pickle.loads(pickled))) == [0.1]
    assert len(pickled) < 10_000  # and takes no weights along
    assert values(config.to_dict()) == [0.4]
    del model
    gc.collect()
    assert values(config.to_dict()) == [0.4]


def test_a_part_whose_model_is_gone_says_what_it_is():
    whole = patch_model(BertForSequenceClassification(BERT.build().config), "r-softmax", r=0.1)
    SparsitySchedule(final=0.4).apply(whole, 1.0)
    part = whole.bert
    del whole
    gc.collect()
    assert values(part.config.to_dict()) == [0.4]


def test_a_copied_part_says_what_a_schedule_sets():
    whole = patch_model(BertForSequenceClassification(BERT.build().config), "r-softmax", r=0.1)
    part = copy.deepcopy(whole.bert)
    SparsitySchedule(final=0.4).apply(part, 1.0)
    assert values(part.config.to_dict()) == [0.4]
    assert values(whole.config.to_dict()) == [0.1]


def test_a_config_that_was_replaced_says_what_comes_after():
    model = patched()
    model.config = copy.deepcopy(model.config)
    set_parameter(model, "r", 0.2)
    assert values(model.config.to_dict()) == [0.2]
    model.config = copy.deepcopy(model.config)
    patch_model(model, "r-softmax", r=0.3)
    own(model, 0.4)
    assert values(model.config.to_dict()) == [0.4]


def test_models_of_one_config_are_saved_each_as_it_is(tmp_path):
    config = BERT.build().config
    models = {"r-softmax": BertModel(config), "sparsemax": BertModel(config)}
    for mapping, model in models.items():
        patch_model(model, mapping)
    for mapping, model in models.items():
        model.save_pretrained(tmp_path / mapping)
        loaded = load_pretrained(AutoModel, tmp_path / mapping)
        assert {m.name for m in mappings_of(loaded)} == {mapping}
        assert all(m.config is model.config for m in model.modules() if hasattr(m, "config"))
    unpatch_model(models["sparsemax"])
    assert values(config.to_dict()) == [0.15]
    assert NAME not in vars(models["sparsemax"].config)


def test_heads_of_models_of_one_config_are_saved_each_as_it_is():
    config = BERT.build().config
    first, second = (BertForSequenceClassification(config) for _ in range(2))
    patch_multilabel_head(first, "sparsemax")
    patch_multilabel_head(second, "entmax")
    entries = [vars(m.config)[MULTILABEL]["head"]["mapping"] for m in (first, second)]
    assert entries == ["sparsemax", "entmax"]
    unpatch_multilabel_head(second)
    assert (MULTILABEL in vars(config), MULTILABEL in vars(second.config)) == (True, False)


@peft_warns
def test_a_schedule_reaches_what_peft_trains_and_layers_that_were_added():
    model = patch_model(BertForSequenceClassification(BERT.build().config), "r-softmax", r=0.1)
    adapter = LoraConfig(target_modules=["intermediate.dense"], modules_to_save=["attention"])
    wrapped = get_peft_model(model, adapter)
    SparsitySchedule(final=0.4).apply(wrapped, 1.0)
    assert [mapping.value("r") for mapping in mappings_of(wrapped)] == [0.4] * 4
    model = patched()
    model.encoder.layer.append(copy.deepcopy(model.encoder.layer[0]))
    SparsitySchedule(final=0.4).apply(model, 1.0)
    assert values(model.config.to_dict()) == [0.4]


def test_a_step_of_a_schedule_walks_no_modules(monkeypatch):
    class Wrapper(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

    model = Wrapper(patched())
    first, second = mappings_of(model)

    def walk(*arguments, **options):
        raise AssertionError("a walk")

    monkeypatch.setattr(nn.Module, "named_modules", walk)
    SparsitySchedule(final=0.4).apply(model, 1.0)
    assert (first.value("r"), second.value("r")) == (0.4, 0.4)


@pytest.mark.parametrize("replace", [replaced, CHANGES["by a second patch"]])
def test_a_schedule_reaches_mappings_that_came_later(replace):
    model = patched()
    schedule = SparsitySchedule(final=0.4)
    schedule.apply(model, 0.5)
    replace(model, 0.9)
    schedule.apply(model, 1.0)
    assert [mapping.value("r") for mapping in mappings_of(model)] == [0.4, 0.4]


def test_a_schedule_of_a_whole_reaches_the_part_that_is_patched():
    model = BY_NAME["t5"].build()
    patch_model(model.encoder, "r-softmax")
    SparsitySchedule(final=0.4).apply(model, 1.0)
    assert [mapping.value("r") for mapping in mappings_of(model)] == [0.4, 0.4]
    assert values(vars(model.encoder.config)) == [0.4]


@pytest.mark.parametrize("entry", [None, {"version": 1, "mappings": []}])
def test_a_config_that_is_overwritten_ends_the_next_call_and_the_next_save(entry, tmp_path):
    model = patched()
    model.config.sparse_attn = entry
    for use in (lambda: model(**BERT.inputs()), lambda: model.save_pretrained(tmp_path)):
        with pytest.raises(RuntimeError, match=r"config\.sparse_attn was overwritten.*patch_model"):
            use()
    del model.config.sparse_attn
    model(**BERT.inputs())
    assert values(model.config.to_dict()) == [0.1]


def test_a_config_without_the_mappings_is_completed_by_a_call_and_not_saved_before(tmp_path):
    model = patched()
    model.config = BERT.build().config
    with pytest.raises(RuntimeError, match="its config was replaced by one without sparse_attn"):
        model.save_pretrained(tmp_path / "refused")
    model(**BERT.inputs())
    model.save_pretrained(tmp_path / "saved")
    assert next(mappings_of(load_pretrained(AutoModel, tmp_path / "saved"))).value("r") == 0.1


def test_a_copied_config_can_be_saved(tmp_path):
    model = patched()
    model.config = copy.deepcopy(model.config)
    model.save_pretrained(tmp_path)
    assert next(mappings_of(load_pretrained(AutoModel, tmp_path))).value("r") == 0.1
    own(model, 0.3)
    model(**BERT.inputs())
    assert values(model.config.to_dict()) == [0.3]


def test_a_head_whose_config_was_replaced_is_shown_again():
    model = BertForSequenceClassification(BERT.build().config)
    patch_multilabel_head(model, "sparsemax")
    model.config = BERT.build().config
    model(**BERT.inputs())
    assert MULTILABEL in vars(model.config)
    unpatch_multilabel_head(model)
    assert (len(model._forward_pre_hooks), len(model._state_dict_pre_hooks)) == (0, 0)


@pytest.mark.parametrize("place", ["replaced", "added"])
def test_a_layer_that_came_later_computes_no_softmax_unasked(place):
    model, other = patched(), BERT.build().encoder.layer[0]
    if place == "added":
        model.encoder.layer.append(other)
    else:
        model.encoder.layer[0] = other
    number = list(model.encoder.layer).index(other)
    for use in (
        lambda: model(**BERT.inputs()),
        lambda: SparsitySchedule(final=0.4).apply(model, 1.0),
    ):
        with pytest.raises(RuntimeError, match=rf"layer\.{number}\.\S+ was added .*\[{number}\]"):
            use()
    patch_model(model, "sparsemax", layers=[number])
    names = ["r-softmax"] * len(model.encoder.layer)
    names[number] = "sparsemax"
    assert [mapping.name for mapping in mappings_of(model)] == names
    with torch.no_grad():
        zeros = model(**BERT.inputs(), output_attentions=True).attentions[number] == 0
    assert zeros.any()
    assert other.attention.self.config._attn_implementation == NAME
    unpatch_model(model)
    assert (len(model._forward_pre_hooks), len(model._state_dict_pre_hooks)) == (0, 0)
    assert other.attention.self.config._attn_implementation == "sdpa"
    assert not hasattr(other.attention.self, NAME)
    assert len(other.attention.self._forward_pre_hooks) == 0


def test_a_module_that_came_later_and_computes_its_own_softmax_is_refused():
    model = patched()
    model.encoder.layer[0].attention.output = nn.MultiheadAttention(8, 2)
    with pytest.raises(ValueError, match=r"computes softmax in encoder\.layer\.0\.att"):
        model(**BERT.inputs())
