"""A patch leaves no trace, and a patched model can be copied and pickled."""

import copy
import pickle

import pytest
import torch

from sparse_attn import patch_model, patched, unpatch_model
from sparse_attn.hf.attention import NAME
from sparse_attn.hf.patching import is_patched

from .families import BY_NAME, FAMILIES
from .heads import trace
from .helpers import jitter, learning, mappings_of

BERT = BY_NAME["bert"]


def fingerprint(model, family):
    hidden = family.hidden(model).tolist()  # whose first call leaves its mark in the modules
    names = [sorted(vars(module)) for module in model.modules()]
    return {**trace(model), "hidden": hidden, "of modules": names}


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_unpatch_restores_everything(family):
    model = family.build()
    before = fingerprint(model, family)
    learning(model)
    assert fingerprint(model, family) != before
    assert unpatch_model(model) is model
    assert fingerprint(model, family) == before


@pytest.mark.parametrize(
    ("name", "implementation"),
    [(name, kind) for name in ("bert", "t5", "clip") for kind in ("eager", "sdpa")]
    + [("gemma2", "eager"), ("clip", {"text_config": "eager", "vision_config": "sdpa"})],
)
@pytest.mark.parametrize("switched", [False, True])
def test_unpatch_restores_the_implementation_after_two_patches(name, implementation, switched):
    """Also where someone has switched it in the meantime; Transformers refuses sdpa for Gemma 2."""
    family = BY_NAME[name]
    model = family.build()
    model.set_attn_implementation(implementation)
    before = fingerprint(model, family)
    patch_model(model, "sparsemax")
    patch_model(model, "r-softmax", r=0.3, layers=[1])
    if switched:
        model.set_attn_implementation("eager")
    unpatch_model(model)
    assert fingerprint(model, family) == before


def test_unpatch_of_a_plain_model_is_refused():
    model = BERT.build()
    for _ in range(2):
        with pytest.raises(ValueError, match="BertModel is not patched; call patch_model first"):
            unpatch_model(model)
        unpatch_model(patch_model(model, "sparsemax"))


def test_context_restores_also_after_an_exception():
    model = BERT.build()
    before = fingerprint(model, BERT)
    with patched(model, "sparsemax") as inside:
        assert inside is model
        assert fingerprint(model, BERT) != before
    assert fingerprint(model, BERT) == before
    with pytest.raises(KeyError), patched(model, "r-softmax", r=0.3, layers=[1]):
        raise KeyError
    with pytest.raises(ValueError, match="has no layer 7"), patched(model, "sparsemax", layers=[7]):
        pass
    with patched(model, "sparsemax"):
        unpatch_model(model)
    assert fingerprint(model, BERT) == before


@pytest.mark.parametrize("ends", ["well", "in an error", "unpatched"])
def test_context_on_a_patched_model_gives_its_mappings_back(ends):
    model = patch_model(BERT.build(), "t-softmax", learn="t", layers=[0])
    jitter(model)
    parameters = list(model.parameters())
    before = fingerprint(model, BERT)
    try:
        with patched(model, "sparsemax"):
            with patched(model, "plif", knots=10, layers=[1]):
                assert [m.name for m in mappings_of(model)] == ["sparsemax", "plif"]
            assert [m.name for m in mappings_of(model)] == ["sparsemax", "sparsemax"]
            if ends == "in an error":
                raise KeyError
            if ends == "unpatched":
                unpatch_model(model)
    except KeyError:
        assert ends == "in an error"
    assert fingerprint(model, BERT) == before
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))
    unpatch_model(model)
    assert not is_patched(model)


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_copies_compute_the_same_and_are_independent(family):
    plain = family.hidden(family.build())
    model = learning(family.build())
    expected = family.hidden(model)
    twins = [copy.deepcopy(model) for _ in range(2)]
    if family.name != "wav2vec2":  # torch cannot pickle its weight norm
        twins.append(pickle.loads(pickle.dumps(model)))
    for twin in twins[1:]:
        assert torch.equal(family.hidden(twin), expected)
        assert torch.equal(family.hidden(unpatch_model(twin)), plain)
        assert torch.equal(family.hidden(model), expected)
    unpatch_model(model)
    assert torch.equal(family.hidden(twins[0]), expected)


def test_a_copied_patched_model_still_notices_a_switch():
    twin = copy.deepcopy(patch_model(BERT.build(), "sparsemax"))
    twin.set_attn_implementation("sdpa")
    with pytest.raises(RuntimeError, match="was changed to 'sdpa'"):
        twin(**BERT.inputs())
    assert NAME not in unpatch_model(twin).config.to_dict()
