"""Traps 5 and 16: what cannot work raises, and the message names the class and the remedy."""

from contextlib import nullcontext

import pytest
import torch
import transformers
from transformers import AutoModel

from sparse_attn import patch_model
from sparse_attn.attention import NAME
from sparse_attn.patching import is_patched

from .families import BY_NAME, HEADS, LLAMA, REFUSED, build_refused, padding, tokens
from .helpers import assert_near, run_valid

# The DeBERTa of Transformers 5.17 scripts functions, which torch 2.11 deprecates.
pytestmark = pytest.mark.filterwarnings(
    "ignore:`torch.jit.script` is deprecated:DeprecationWarning"
)


@pytest.mark.parametrize("name", REFUSED)
def test_no_dispatch_is_refused(name):
    model = build_refused(name)
    before = model.config.to_json_string()
    with pytest.raises(ValueError, match=rf"{name} does not dispatch.*use a model that does"):
        patch_model(model, "sparsemax")
    assert model.config.to_json_string() == before
    assert not is_patched(model)


@pytest.mark.parametrize("name", ["DebertaV2Model", "MPNetModel"])
def test_no_dispatch_is_refused_for_the_right_reason_with_layers(name):
    with pytest.raises(ValueError, match=rf"{name} does not dispatch"):
        patch_model(build_refused(name), "sparsemax", layers=[0])


@pytest.mark.parametrize("name", ["DebertaModel", "MPNetModel"])
def test_no_dispatch_is_refused_after_from_pretrained(name, tmp_path):
    """Transformers accepts the name on load; patching must look further than the config."""
    build_refused(name).save_pretrained(tmp_path)
    model = AutoModel.from_pretrained(tmp_path, attn_implementation=NAME)
    with pytest.raises(ValueError, match=rf"{name} does not dispatch"):
        patch_model(model, "sparsemax")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            "DebertaV2Model",
            marks=pytest.mark.xfail(
                strict=True, reason="DeBERTa asks neither registry, so nothing of ours runs"
            ),
        ),
        "MPNetModel",
    ],
)
def test_no_dispatch_with_the_name_alone_is_refused(name, tmp_path):
    """Models that add our boolean mask to their scores would be off without a word."""
    build_refused(name).save_pretrained(tmp_path)
    model = AutoModel.from_pretrained(tmp_path, attn_implementation=NAME)
    with pytest.raises(RuntimeError, match=r"holds no mapping.*patch_model"):
        model(input_ids=tokens(), attention_mask=padding())


@pytest.mark.parametrize("family", ["bert", "gpt2", "t5", "vit", "modernbert", "gemma2"])
def test_constructor_with_the_name_is_refused(family):
    family = BY_NAME[family]
    model = family.build(attn_implementation=NAME)
    with pytest.raises(RuntimeError, match=r"holds no mapping.*load_pretrained.*patch_model"):
        model(**family.inputs())


def test_layers_of_a_shared_module_are_refused():
    model = BY_NAME["albert"].build()
    with pytest.raises(ValueError, match=r"AlbertModel shares 1 .* 2 layers; leave out layers"):
        patch_model(model, "sparsemax", layers=[0])
    patch_model(model, "sparsemax")


def test_sinks_of_a_model_are_refused():
    config = transformers.GptOssConfig(
        **{**LLAMA, "head_dim": 8, "num_local_experts": 2, "num_experts_per_tok": 1}
    )
    model = transformers.GptOssModel(config)
    with pytest.raises(ValueError, match="GptOssModel has attention sinks"):
        patch_model(model, "softmax")
    assert not is_patched(model)
    assert model.config._attn_implementation != NAME


@pytest.mark.parametrize("name", ["s_aux", "sinks", "indices", "block_indices", "cu_seq_lens_q"])
def test_arguments_that_no_mapping_defines_are_refused(name):
    family = BY_NAME["llama"]
    model = patch_model(family.build(), "sparsemax")
    with pytest.raises(NotImplementedError, match=rf"LlamaAttention passes {name}.*sparsemax"):
        model(**family.inputs(), **{name: torch.ones(4)})
    model(**family.inputs(), **{name: None})


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"mapping": "r-sotfmax"}, ValueError, "mapping='r-sotfmax' is unknown; did you mean r-"),
        ({"mapping": "r-softmax", "t": 1.0}, TypeError, "t=1.0: unknown parameter; r-softmax"),
        ({"mapping": "r-softmax", "r": 1.5}, ValueError, r"r.*1\.5"),
        ({"mapping": "sparsemax", "learn": "r"}, TypeError, "learn='r': sparsemax can learn no"),
        ({"mapping": "r-softmax", "r": 0.0, "learn": "r"}, ValueError, "r=0.0: a learned r must"),
        ({"mapping": "r-softmax", "per": "token"}, ValueError, "per='token': expected 'layer'"),
        ({"mapping": "plif", "per": "head"}, ValueError, "plif is shared by all heads"),
        ({"mapping": "r-softmax", "r": [0.1] * 3, "per": "head"}, ValueError, "each of 4 heads"),
        ({"mapping": "r-softmax", "r": [0.1] * 4}, ValueError, "r: expected a float"),
        ({"mapping": "sparsemax", "layers": [0, 2]}, ValueError, "no layer 2.*from 0 to 1"),
        ({"mapping": "sparsemax", "layers": [-1]}, ValueError, "BertModel has no layer -1"),
    ],
    ids=lambda value: value.get("mapping") if isinstance(value, dict) else None,
)
def test_wrong_arguments_are_refused_and_change_nothing(arguments, error, message):
    model = BY_NAME["bert"].build()
    before = model.config.to_json_string(), list(model.state_dict())
    with pytest.raises(error, match=message):
        patch_model(model, **arguments)
    assert not is_patched(model)
    assert (model.config.to_json_string(), list(model.state_dict())) == before
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize(("mapping", "learn"), [("entmax", "alpha"), ("plif", ())])
def test_learned_parameters_do_not_start_on_the_meta_device(mapping, learn, inside):
    """Their initial values would be lost."""
    family = BY_NAME["bert"]
    with torch.device("meta"):
        model = transformers.BertModel(family.make_config())
    context = torch.device("meta") if inside else nullcontext()
    with context, pytest.raises(ValueError, match=rf"{mapping}: its learned .* load the weights"):
        patch_model(model, mapping, learn=learn)
    assert not is_patched(model)
    patch_model(model, "entmax", alpha=1.3)
    assert model.to_empty(device="cpu").encoder.layer[0].attention.self.sparse_attn.alpha == 1.3


def test_wrong_arguments_leave_an_earlier_patch_alone():
    model = patch_model(BY_NAME["bert"].build(), "sparsemax")
    before = model.config.sparse_attn
    with pytest.raises(ValueError, match="r"):
        patch_model(model, "r-softmax", r=2.0)
    assert model.config.sparse_attn == before
    assert model.encoder.layer[0].attention.self.sparse_attn.name == "sparsemax"


def test_model_from_elsewhere_is_refused():
    with pytest.raises(TypeError, match=r"expected a Transformers model, got Linear"):
        patch_model(torch.nn.Linear(2, 2), "sparsemax")


def test_gpt2_with_its_own_eager_attention_is_patched_too():
    """reorder_and_upcast_attn has a softmax of its own, which eager uses and a patch must not."""
    family = BY_NAME["gpt2"]
    changes = {"reorder_and_upcast_attn": True, "scale_attn_by_inverse_layer_idx": True}
    inputs = family.inputs()
    expected = run_valid(family.build(**changes, attn_implementation="eager"), inputs, family)
    model = patch_model(family.build(**changes), "softmax")
    assert_near(run_valid(model, inputs, family), expected)
    with torch.no_grad():
        weights = patch_model(model, "sparsemax")(**inputs, output_attentions=True).attentions
    assert all((w[0] == 0).sum() > HEADS * 36 for w in weights)  # 36 of 81 pairs are not causal


def test_switching_the_implementation_of_a_patched_model_raises_at_the_next_call():
    family = BY_NAME["bert"]
    model = patch_model(family.build(), "sparsemax")
    model.set_attn_implementation("sdpa")
    with pytest.raises(RuntimeError, match=r"'sdpa'; call unpatch_model first, or model\.set"):
        model(**family.inputs())
    model.set_attn_implementation(NAME)
    model(**family.inputs())


def test_switching_one_stack_of_a_patched_model_raises_at_the_next_call():
    family = BY_NAME["t5"]
    model = patch_model(family.build(), "sparsemax")
    model.encoder.set_attn_implementation("eager")
    with pytest.raises(RuntimeError, match=r"T5Attention is patched with sparsemax.*'eager'"):
        model(**family.inputs())
