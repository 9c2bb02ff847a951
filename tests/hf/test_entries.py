"""Malformed entries in the config of a saved model: one clear ValueError for each."""

import copy
import json

import pytest
import torch
from transformers import AutoConfig, AutoModel

from sparse_attn import Mapping, load_pretrained, patch_model, unpatch_model
from sparse_attn.heads import LinearHead, MixtureHead, patch_lm_head, patch_multilabel_head
from sparse_attn.hf.attention import NAME
from sparse_attn.hf.config import HEAD, MULTILABEL
from sparse_attn.mappings import MappingSpec, ParameterSpec, register_mapping, registry
from sparse_attn.mappings.registry import _SPECS

from .families import BY_NAME

BERT = BY_NAME["bert"]
NESTED = []
for _ in range(300):
    NESTED = [NESTED]
JUNK = [
    *(None, True, -1, 3, float("nan"), 10**400, "galaxy"),
    *([], [True], [[1]], {}, {"x": 1}, {"r": {}}, NESTED),
]
MODELS = {
    NAME: lambda: patch_model(BERT.build(), "r-softmax", r=0.3),
    HEAD: lambda: patch_lm_head(BERT.build("BertForMaskedLM"), "sigsoftmax", components=2),
    MULTILABEL: lambda: patch_multilabel_head(
        BERT.build("BertForSequenceClassification"), "r-softmax"
    ),
}


def places(entry, path=()):
    """The path of every value in an entry."""
    items = entry.items() if isinstance(entry, dict) else enumerate(entry)
    for name, value in items:
        yield (*path, name)
        if isinstance(value, (dict, list)):
            yield from places(value, (*path, name))


def at(entry, path):
    for name in path:
        entry = entry[name]
    return entry


def changed(entry, path, value):
    entry = copy.deepcopy(entry)
    at(entry, path[:-1])[path[-1]] = value
    return entry


@pytest.mark.parametrize("key", MODELS)
def test_every_malformed_value_gives_one_clear_error(key, tmp_path):
    model = MODELS[key]()
    model.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    entry = config[key]
    tables = [(), *(p for p in places(entry) if isinstance(at(entry, p), dict))]
    wrong = [changed(entry, p, value) for p in places(entry) for value in JUNK]
    wrong += [changed(entry, (*p, "added"), 1) for p in tables]
    wrong += [v for v in JUNK if v is not None]
    unclear = []
    for value in wrong:
        path.write_text(json.dumps({**config, key: value}))
        try:
            load_pretrained(type(model), tmp_path)
        except ValueError as error:
            unclear += [error] if len(str(error)) > 600 else []
        except RuntimeError as error:  # right in another version, class or checkpoint
            possible = ("expected version", "attention modules, but", "has shape")
            unclear += [] if any(text in str(error) for text in possible) else [error]
    assert not unclear


def test_a_config_that_is_nested_too_deeply(tmp_path):
    model = MODELS[NAME]()
    model.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(path.read_text().replace('"r": 0.3', f'"r": {"[" * 700}{"]" * 700}'))
    with pytest.raises(ValueError, match=r"nested too deeply|expected a table of numbers"):
        load_pretrained(AutoModel, tmp_path)


def test_patching_a_plain_load_with_a_malformed_entry(tmp_path):
    MODELS[NAME]().save_pretrained(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path)
    config.sparse_attn["mappings"] = [{}]
    plain = AutoModel.from_pretrained(tmp_path, config=config)
    with pytest.raises(ValueError, match=r"config\.sparse_attn\.mappings: expected a table with"):
        patch_model(plain, "sparsemax")


def test_only_a_whole_number_of_components():
    with pytest.raises(ValueError, match=r"components=2\.0: expected a whole number"):
        MixtureHead(2, 3, "softmax", components=2.0)


@pytest.mark.parametrize("number", [True, 0.0])
def test_only_whole_numbers_of_layers(number):
    with pytest.raises(ValueError, match=f"has no layer {number!r}; expected numbers from 0"):
        patch_model(BERT.build("BertModel"), "sparsemax", layers=[number])


def test_a_remedy_for_a_plain_load(tmp_path):
    model = patch_model(BERT.build("BertModel"), "sparsemax")
    config = copy.deepcopy(unpatch_model(model).config)
    patch_model(model, "sparsemax").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"not patched; load it with sparse_attn\.load_pretrained"):
        unpatch_model(type(model).from_pretrained(tmp_path))
    with pytest.raises(ValueError, match="the one given as config, has neither"):
        load_pretrained(type(model), tmp_path, config=config)


@pytest.mark.parametrize(
    ("key", "make"),
    [
        (NAME, lambda: patch_model(BERT.build(), "mixed-elsewhere", mix=0.5)),
        (HEAD, lambda: patch_lm_head(BERT.build("BertForMaskedLM"), "elsewhere")),
        (
            MULTILABEL,
            lambda: patch_multilabel_head(BERT.build("BertForSequenceClassification"), "elsewhere"),
        ),
    ],
)
def test_a_mapping_whose_module_is_not_imported(key, make, tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_SPECS", dict(_SPECS))

    def elsewhere(scores):
        return (2 * scores).softmax(-1)

    elsewhere.__module__ = "my_package.maps"
    register_mapping("elsewhere")(elsewhere)
    model = make()
    model.save_pretrained(tmp_path)
    again = load_pretrained(type(model), tmp_path)
    assert getattr(again.config, key) == getattr(model.config, key)
    del registry._SPECS["elsewhere"]
    says = r"elsewhere' is registered by the module my_package\.maps; import it before"
    with pytest.raises(ValueError, match=rf"^config\.{key}.*{says} .*--import my_package\.maps$"):
        load_pretrained(type(model), tmp_path)


def test_sizes_are_bounded_for_every_mapping_and_head():
    with pytest.raises(ValueError, match=r"components=1000000000: .* at most 1000"):
        MixtureHead(2, 3, "softmax", components=10**9)
    for make in (Mapping, lambda *args, **sizes: LinearHead(2, 3, Mapping(*args, **sizes))):
        for name, size in (("plif", "knots"), ("monotone", "units")):
            with pytest.raises(ValueError, match=rf"{size}=.* at most 1048576"):
                make(name, **{size: 2**20 + 1})
    assert len(Mapping("plif", knots=10**6).raw_slopes) == 10**6  # of a published table


def test_sizes_are_bounded_for_a_mapping_of_ones_own():
    sizes = []

    def weights(rows):
        sizes.append(rows)
        return {"raw": torch.zeros(int(rows))}

    spec = MappingSpec(
        name="own-rows",
        function=lambda z, raw, rows, log=False: z.softmax(-1),
        options=(ParameterSpec("rows", default=3, low=1, whole=True),),
        weights=weights,
        source="test",
    )
    register_mapping(spec)
    try:
        with pytest.raises(ValueError, match=r"rows=1000000000: expected at most 1048576"):
            Mapping("own-rows", rows=10**9)
        assert not sizes
    finally:
        del _SPECS["own-rows"]
