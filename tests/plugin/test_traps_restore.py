"""Traps 9 and 15: a patch leaves no trace, and a patched model can be copied and pickled."""

import copy
import pickle

import pytest
import torch

from sparse_attn import patch_model, patched, unpatch_model
from sparse_attn.attention import NAME
from sparse_attn.patching import is_patched

from .families import BY_NAME, FAMILIES
from .helpers import jitter, mappings_of, run_valid


def fingerprint(model, family, inputs):
    """All that unpatching must bring back."""
    hooks = sum(len(module._forward_pre_hooks) for module in model.modules())
    implementations = [
        module.config._attn_implementation
        for module in model.modules()
        if hasattr(module, "config")
    ]
    return {
        "outputs": run_valid(model, inputs, family).tolist(),
        "keys": list(model.state_dict()),
        "modules": [name for name, _ in model.named_modules()],
        "config": model.config.to_json_string(use_diff=False),
        "attributes": sorted(vars(model)),
        "hooks": hooks,
        "implementations": implementations,
    }


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_unpatch_restores_everything(family):
    inputs = family.inputs()
    model = family.build()
    before = fingerprint(model, family, inputs)
    patch_model(model, "t-softmax", t=1.2, learn="t")
    assert fingerprint(model, family, inputs) != before
    assert unpatch_model(model) is model
    assert fingerprint(model, family, inputs) == before


@pytest.mark.parametrize(
    ("name", "implementation"),
    [(name, kind) for name in ("bert", "t5", "clip") for kind in ("eager", "sdpa")]
    + [("gemma2", "eager")],  # Transformers refuses sdpa for it
)
def test_unpatch_restores_the_implementation_after_two_patches(name, implementation):
    family = BY_NAME[name]
    inputs = family.inputs()
    model = family.build(attn_implementation=implementation)
    before = fingerprint(model, family, inputs)
    patch_model(model, "sparsemax")
    patch_model(model, "r-softmax", r=0.3, layers=[1])
    unpatch_model(model)
    assert fingerprint(model, family, inputs) == before


def test_stacks_with_different_implementations_are_restored():
    family = BY_NAME["clip"]
    inputs = family.inputs()
    model = family.build()
    model.set_attn_implementation({"text_config": "eager", "vision_config": "sdpa"})
    before = fingerprint(model, family, inputs)
    unpatch_model(patch_model(model, "sparsemax"))
    assert fingerprint(model, family, inputs) == before


def test_unpatch_and_saved_config(tmp_path):
    model = BY_NAME["bert"].build()
    model.save_pretrained(tmp_path / "before")
    patch_model(model, "sparsemax").save_pretrained(tmp_path / "patched")
    unpatch_model(model).save_pretrained(tmp_path / "after")
    texts = [(tmp_path / n / "config.json").read_text() for n in ("before", "patched", "after")]
    assert texts[0] == texts[2]
    assert NAME not in texts[0]
    assert NAME in texts[1]


def test_unpatch_of_a_plain_model_is_refused():
    model = BY_NAME["bert"].build()
    with pytest.raises(ValueError, match="BertModel is not patched; call patch_model first"):
        unpatch_model(model)
    unpatch_model(patch_model(model, "sparsemax"))
    with pytest.raises(ValueError, match="BertModel is not patched"):
        unpatch_model(model)


def test_unpatch_after_someone_switched_the_implementation():
    family = BY_NAME["bert"]
    inputs = family.inputs()
    model = family.build()
    before = fingerprint(model, family, inputs)
    patch_model(model, "sparsemax").set_attn_implementation("eager")
    unpatch_model(model)
    assert fingerprint(model, family, inputs) == before


def test_context_restores_also_after_an_exception():
    family = BY_NAME["bert"]
    inputs = family.inputs()
    model = family.build()
    before = fingerprint(model, family, inputs)
    with patched(model, "sparsemax") as inside:
        assert inside is model
        assert fingerprint(model, family, inputs) != before
    assert fingerprint(model, family, inputs) == before
    with pytest.raises(KeyError), patched(model, "r-softmax", r=0.3, layers=[1]):
        raise KeyError
    assert fingerprint(model, family, inputs) == before
    with pytest.raises(ValueError, match="has no layer 7"), patched(model, "sparsemax", layers=[7]):
        pass
    assert fingerprint(model, family, inputs) == before


@pytest.mark.parametrize("fails", [False, True])
def test_context_on_a_patched_model_gives_its_mappings_back(fails):
    family = BY_NAME["bert"]
    inputs = family.inputs()
    model = patch_model(family.build(), "t-softmax", learn="t", layers=[0])
    jitter(model)
    parameters = list(model.parameters())
    before = fingerprint(model, family, inputs)
    try:
        with patched(model, "sparsemax"):
            with patched(model, "plif", knots=10, layers=[1]):
                assert [m.name for m in mappings_of(model)] == ["sparsemax", "plif"]
            assert [m.name for m in mappings_of(model)] == ["sparsemax", "sparsemax"]
            if fails:
                raise KeyError
    except KeyError:
        assert fails
    assert fingerprint(model, family, inputs) == before
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))
    unpatch_model(model)
    assert not is_patched(model)


@pytest.mark.parametrize("method", ["deepcopy", "pickle"])
@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_copies_compute_the_same_and_are_independent(family, method):
    if (family.name, method) == ("wav2vec2", "pickle"):
        pytest.skip("torch cannot pickle the weight norm of Wav2Vec2")
    inputs = family.inputs()
    plain = run_valid(family.build(), inputs, family)
    model = patch_model(family.build(), "t-softmax", t=1.2, learn="t")
    jitter(model)
    expected = run_valid(model, inputs, family)
    twin = copy.deepcopy(model) if method == "deepcopy" else pickle.loads(pickle.dumps(model))
    assert torch.equal(run_valid(twin, inputs, family), expected)
    assert torch.equal(run_valid(unpatch_model(twin), inputs, family), plain)
    assert torch.equal(run_valid(model, inputs, family), expected)
    twin = copy.deepcopy(model)
    unpatch_model(model)
    assert torch.equal(run_valid(twin, inputs, family), expected)


def test_a_copied_patched_model_still_notices_a_switch():
    family = BY_NAME["bert"]
    twin = copy.deepcopy(patch_model(family.build(), "sparsemax"))
    twin.set_attn_implementation("sdpa")
    with pytest.raises(RuntimeError, match="was changed to 'sdpa'"):
        twin(**family.inputs())


def test_state_dict_goes_from_one_patched_model_to_another():
    family = BY_NAME["bert"]
    inputs = family.inputs()
    first = patch_model(family.build(), "t-softmax", learn="t", per="head")
    jitter(first)
    second = patch_model(family.build(seed=1), "t-softmax", learn="t", per="head")
    second.load_state_dict(first.state_dict())
    assert torch.equal(run_valid(second, inputs, family), run_valid(first, inputs, family))
