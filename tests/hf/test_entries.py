"""Malformed entries in the config of a saved model: one clear error for each, when it is loaded."""

import copy

import pytest

from sparse_attn import Mapping, patch_lm_head, patch_model, patch_multilabel_head
from sparse_attn.heads import LinearHead, MixtureHead
from sparse_attn.hf.attention import NAME
from sparse_attn.hf.config import HEAD, MULTILABEL
from sparse_attn.mappings import register_mapping, registry
from sparse_attn.mappings.registry import _SPECS
from tests.marks import first

from .families import BY_NAME

BERT = BY_NAME["bert"]
NESTED = []
for _ in range(300):
    NESTED = [NESTED]
JUNK = [
    *(None, True, -1, 3, float("nan"), 10**400, "galaxy"),
    *([], [True], [[1]], {}, {"x": 1}, {"r": {}}, NESTED),
]


def patched(key, mapping, **arguments):
    if key == NAME:
        return patch_model(BERT.build(), mapping, **arguments)
    if key == HEAD:
        return patch_lm_head(BERT.build("BertForMaskedLM"), mapping, **arguments)
    return patch_multilabel_head(BERT.build("BertForSequenceClassification"), mapping)


def by_position(entry):
    """As version 1 wrote it."""
    (table, _) = entry["mappings"].values()
    return {"version": 1, "mappings": [{**table, "modules": [0, 1]}]}


ENTRIES = {
    "LM head": (HEAD, copy.deepcopy, {"mapping": "sigsoftmax", "components": 2}),
    "attention": (NAME, copy.deepcopy, {"mapping": "r-softmax", "r": 0.3}),
    "attention, version 1": (NAME, by_position, {"mapping": "r-softmax", "r": 0.3}),
    "classifier": (MULTILABEL, copy.deepcopy, {"mapping": "r-softmax"}),
}


def places(entry, path=()):
    """The path of every value in an entry."""
    for name, value in entry.items() if isinstance(entry, dict) else enumerate(entry):
        yield (*path, name)
        if isinstance(value, (dict, list)):
            yield from places(value, (*path, name))


def changed(entry, path, value):
    inside = entry = copy.deepcopy(entry)
    for name in path[:-1]:
        inside = inside[name]
    inside[path[-1]] = value
    return entry


@pytest.mark.parametrize("kind", first(*ENTRIES))
def test_every_malformed_value_gives_one_clear_error(kind):
    key, written, arguments = ENTRIES[kind]
    model = patched(key, **arguments)
    cls, state, config = type(model), model.state_dict(), copy.deepcopy(model.config)
    entry = written(getattr(config, key))

    def load(value):
        setattr(config, key, value)
        return cls.from_pretrained(None, config=config, state_dict=state)

    load(entry)
    unclear = []
    for value in [*(changed(entry, p, junk) for p in places(entry) for junk in JUNK), *JUNK]:
        try:
            assert any(isinstance(module, Mapping) for module in load(value).modules())
        except ValueError as error:
            unclear += [error] if len(str(error)) > 600 else []
        except RuntimeError as error:  # right in another version, class or checkpoint
            possible = ("expected version", "describes mappings of", "lack", "mismatched_sizes")
            unclear += [] if any(text in str(error) for text in possible) else [error]
    assert not unclear


@pytest.mark.parametrize("number", [True, 0.0])
def test_only_whole_numbers_of_components_and_layers(number):
    with pytest.raises(ValueError, match=r"components=2\.0: expected a whole number"):
        MixtureHead(2, 3, "softmax", components=2.0)
    with pytest.raises(ValueError, match=f"has no layer {number!r}; expected numbers from 0"):
        patch_model(BERT.build("BertModel"), "sparsemax", layers=[number])


@pytest.mark.parametrize("key", [NAME, HEAD, MULTILABEL])
def test_a_mapping_whose_module_is_not_imported(key, tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_SPECS", dict(_SPECS))

    def elsewhere(scores):
        return (2 * scores).softmax(-1)

    elsewhere.__module__ = "my_package.maps"
    register_mapping("elsewhere")(elsewhere)
    model = patched(key, "mixed-elsewhere" if key == NAME else "elsewhere")
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    assert getattr(again.config, key) == getattr(model.config, key)
    del registry._SPECS["elsewhere"]
    says = r"elsewhere' is registered by the module my_package\.maps; import it before"
    with pytest.raises(ValueError, match=rf"^config\.{key}.*{says} .*--import my_package\.maps$"):
        type(model).from_pretrained(tmp_path)


def test_sizes_are_bounded_for_every_mapping_and_head():
    with pytest.raises(ValueError, match=r"components=1000000000: .* at most 1000"):
        MixtureHead(2, 3, "softmax", components=10**9)
    for make in (Mapping, lambda *args, **sizes: LinearHead(2, 3, Mapping(*args, **sizes))):
        for name, size in (("plif", "knots"), ("monotone", "units")):
            with pytest.raises(ValueError, match=rf"{size}=.* at most 1048576"):
                make(name, **{size: 2**20 + 1})
    assert len(Mapping("plif", knots=10**6).raw_slopes) == 10**6  # of a published table
