"""config.sparse_attn is what stands in the modules, in memory and in what is saved."""

import copy
import json
import pickle

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import AutoModel, BertForSequenceClassification, BertModel

from sparse_attn import (
    SparsitySchedule,
    patch_model,
    patch_multilabel_head,
    unpatch_model,
    unpatch_multilabel_head,
)
from sparse_attn.hf.attention import NAME
from sparse_attn.hf.config import MULTILABEL
from sparse_attn.hf.patching import set_parameter

from .families import BY_NAME
from .helpers import mappings_of, peft_warns

BERT = BY_NAME["bert"]
IN_HALF = SparsitySchedule(final=0.8)


def values(config):
    """The values of r, without repeats."""
    config = config if isinstance(config, dict) else config.to_dict()
    return {table["params"]["r"] for table in config[NAME]["mappings"].values()}


def patched(cls=None):
    return patch_model(BERT.build(cls), "r-softmax", r=0.1)


def own(model, value):
    for mapping in mappings_of(model):
        mapping.set_value("r", value)


CHANGES = {
    "by the module": own,
    "by set_parameter": lambda model, value: set_parameter(model, "r", value),
    "by a schedule": lambda model, value: SparsitySchedule(final=value).apply(model, 1.0),
    "by a second patch": lambda model, value: patch_model(model, "r-softmax", r=value),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_every_change_is_shown_and_saved(change, tmp_path):
    model = patched()
    change(model, 0.4)
    assert values(vars(model.config)) == values(model.config) == {0.4}
    assert '"r": 0.4' in str(model.config)
    model.save_pretrained(tmp_path)
    assert values(json.loads((tmp_path / "config.json").read_text())) == {0.4}
    assert next(mappings_of(AutoModel.from_pretrained(tmp_path))).value("r") == 0.4


@pytest.mark.parametrize("name", ["bert", "t5", "clip"])
@pytest.mark.parametrize("twin", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_shows_its_own_modules(twin, name):
    model = patch_model(BY_NAME[name].build(), "r-softmax", r=0.1)
    other = twin(model)
    own(other, 0.2)
    own(model, 0.3)
    for each, value in ((model, 0.3), (other, 0.2)):
        configs = [m.config for m in each.modules() if NAME in vars(getattr(m, "config", m))]
        assert configs
        assert all(values(config) == {value} for config in configs)


def test_a_copied_config_shows_what_the_model_was():
    model = patched()
    copied, pickled = copy.deepcopy(model.config), pickle.dumps(model.config)
    own(model, 0.4)
    assert values(copied) == values(pickle.loads(pickled)) == {0.1}
    assert len(pickled) < 10_000  # and takes no weights along


def test_the_weights_win_over_a_config_that_did_not_follow(tmp_path):
    model = patched()
    model.config = copy.deepcopy(model.config)
    own(model, 0.4)
    model.save_pretrained(tmp_path)
    loaded = AutoModel.from_pretrained(tmp_path)
    assert torch.equal(BERT.hidden(loaded), BERT.hidden(model))
    assert values(loaded.config) == {0.4}


def test_a_config_that_was_replaced_or_overwritten_raises_when_loaded(tmp_path):
    model = patched()
    model.config = BERT.build().config
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="the config describes no mapping"):
        AutoModel.from_pretrained(tmp_path)
    model.config.sparse_attn = None
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"config\.sparse_attn: expected a table with version"):
        AutoModel.from_pretrained(tmp_path)


def test_a_copied_part_is_tied_to_its_own_values(tmp_path):
    whole = patched("BertForSequenceClassification")
    part = copy.deepcopy(whole.bert)
    IN_HALF.apply(part, 0.5)
    assert (values(part.config), values(whole.config)) == ({0.4}, {0.1})
    part.save_pretrained(tmp_path)
    assert torch.equal(BERT.hidden(BertModel.from_pretrained(tmp_path)), BERT.hidden(part))


def test_models_of_one_config_do_not_share():
    config = BERT.build().config
    models = {n: BertForSequenceClassification(config).eval() for n in ("r-softmax", "t-softmax")}
    for mapping, model in models.items():
        patch_multilabel_head(patch_model(model, mapping), mapping)
    own(models["r-softmax"], 0.4)
    assert values(models["r-softmax"].config) == {0.4}
    for mapping, model in models.items():
        entries = vars(model.config)
        assert {t["mapping"] for t in entries[NAME]["mappings"].values()} == {mapping}
        assert entries[MULTILABEL]["head"]["mapping"] == mapping
        assert all(m.config is model.config for m in model.modules() if hasattr(m, "config"))
    unpatch_multilabel_head(unpatch_model(model))
    assert MULTILABEL in vars(models["r-softmax"].config)
    assert not {NAME, MULTILABEL} & vars(model.config).keys()
    model(**BERT.inputs())


def test_a_model_of_the_config_of_a_patched_one_is_patched_and_has_its_own_values():
    """A config that holds mappings describes a patched model."""
    model = patched()
    other = BertModel(model.config).eval()
    other.load_state_dict(model.state_dict())
    assert torch.equal(BERT.hidden(other), BERT.hidden(model))
    own(other, 0.4)
    assert (values(model.config), values(other.config)) == ({0.1}, {0.4})


@peft_warns
def test_a_schedule_reaches_what_peft_trains_and_layers_that_were_added():
    adapter = LoraConfig(target_modules=["intermediate.dense"], modules_to_save=["attention"])
    wrapped = get_peft_model(patched("BertForSequenceClassification"), adapter)
    IN_HALF.apply(wrapped, 0.5)
    assert [mapping.value("r") for mapping in mappings_of(wrapped)] == [0.4] * 4
    model = patched()
    model.encoder.layer.append(copy.deepcopy(model.encoder.layer[0]))
    patch_model(model, "r-softmax", layers=[1])
    IN_HALF.apply(model, 0.5)
    assert [mapping.value("r") for mapping in mappings_of(model)] == [0.4] * 3
    assert values(model.config) == {0.4}


def test_a_schedule_of_a_whole_reaches_the_part_that_is_patched():
    model = BY_NAME["t5"].build()
    patch_model(model.encoder, "r-softmax")
    IN_HALF.apply(model, 0.5)
    assert [mapping.value("r") for mapping in mappings_of(model)] == [0.4, 0.4]
    assert values(model.encoder.config) == {0.4}


# Layers that came after patching


def test_a_base_model_that_came_later_computes_no_softmax_unasked():
    model = patched("BertForSequenceClassification")
    model.bert = BERT.build()
    with pytest.raises(RuntimeError, match=r"bert\.encoder\.layer\.0\.\S+ was added"):
        model(**BERT.inputs())


@pytest.mark.parametrize("place", ["replaced", "added"])
def test_a_layer_that_came_later_computes_no_softmax_unasked(place):
    model, other = patched("BertForSequenceClassification"), BERT.build().encoder.layer[0]
    layers = model.bert.encoder.layer
    if place == "added":
        layers.append(other)
    else:
        layers[0] = other
    number = list(layers).index(other)
    for call in (model, model.forward, model.bert):
        with pytest.raises(RuntimeError, match=rf"layer\.{number}\.\S+ was added .*\[{number}\]"):
            call(**BERT.inputs())
    patch_model(model, "sparsemax", layers=[number])
    names = ["r-softmax"] * len(layers)
    names[number] = "sparsemax"
    assert [mapping.name for mapping in mappings_of(model)] == names
    with torch.no_grad():
        seen = model(**BERT.inputs(), output_attentions=True).attentions
    assert (seen[number] == 0).any()
    unpatch_model(model)
    assert not model._forward_pre_hooks
    model(**BERT.inputs())
    attention = other.attention.self
    assert attention.config._attn_implementation == "sdpa"
    assert not hasattr(attention, NAME)
    assert not attention._forward_pre_hooks


def test_a_module_that_came_later_and_computes_its_own_softmax_is_refused():
    model = patched()
    model.encoder.layer[0].attention.output = nn.MultiheadAttention(8, 2)
    with pytest.raises(ValueError, match=r"computes softmax in encoder\.layer\.0\.att"):
        model(**BERT.inputs())
