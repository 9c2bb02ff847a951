"""What cannot work raises, naming class and remedy, before the model is touched or at its call."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
import transformers
from torch import nn
from transformers import AutoModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.bert.modeling_bert import BertAttention, BertSelfAttention
from transformers.models.mixtral.modeling_mixtral import MixtralTopKRouter
from transformers.models.wav2vec2.modeling_wav2vec2 import Wav2Vec2ForSequenceClassification

from sparse_attn import patch_model, unpatch_model
from sparse_attn.hf.attention import NAME
from sparse_attn.hf.layers import attention_layers, computes_softmax
from sparse_attn.hf.patching import is_patched
from sparse_attn.inspection import record_attention

from . import families
from .families import BY_NAME, REFUSED, build_refused, padding, tokens

# The DeBERTa of Transformers 5.17 scripts functions, which torch 2.11 deprecates.
pytestmark = pytest.mark.filterwarnings(
    "ignore:`torch.jit.script` is deprecated:DeprecationWarning"
)

BERT = BY_NAME["bert"]
TEXT = {**families.BERT, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}


@pytest.mark.parametrize("name", REFUSED)
def test_no_dispatch_is_refused(name):
    model = build_refused(name)
    before = model.config.to_json_string()
    with pytest.raises(ValueError, match=rf"{name} does not dispatch.*use a model that does"):
        patch_model(model, "sparsemax", layers=[0])
    assert model.config.to_json_string() == before
    assert not is_patched(model)


@pytest.mark.parametrize("name", ["DebertaModel", "DebertaV2Model", "MPNetModel"])
def test_no_dispatch_is_refused_after_from_pretrained_with_the_name(name, tmp_path, request):
    """Models that add our boolean mask to their scores would be off without a word."""
    build_refused(name).save_pretrained(tmp_path)
    model = AutoModel.from_pretrained(tmp_path, attn_implementation=NAME)
    with pytest.raises(ValueError, match=rf"{name} does not dispatch"):
        patch_model(model, "sparsemax")
    if name == "DebertaV2Model":
        reason = "DeBERTa asks neither registry, so nothing of ours runs"
        request.applymarker(pytest.mark.xfail(strict=True, reason=reason))
    if name != "DebertaModel":
        with pytest.raises(RuntimeError, match=r"holds no mapping.*patch_model"):
            model(input_ids=tokens(), attention_mask=padding())


@pytest.mark.parametrize("name", ["bert", "gpt2", "t5", "vit", "modernbert", "gemma2"])
def test_constructor_with_the_name_is_refused(name):
    family = BY_NAME[name]
    with pytest.raises(RuntimeError, match=r"holds no mapping.*patch_model"):
        family.build(attn_implementation=NAME)(**family.inputs())


def test_softmax_outside_the_interface_is_refused_by_name():
    """torch's own attention, which pools; tests/families has the other ways to compute it."""
    config = transformers.SiglipConfig(text_config=TEXT, vision_config=families.VISION)
    model = transformers.SiglipModel(config)
    says = r"SiglipModel computes softmax in .*vision_model\.head\.attention.*, outside"
    with pytest.raises(ValueError, match=says):
        patch_model(model, "sparsemax")
    assert not is_patched(model)
    assert not any(hasattr(layer.module, NAME) for layer in attention_layers(model))
    with pytest.raises(ValueError, match="computes softmax in"), record_attention(model):
        pass


def test_what_counts_as_attention():
    """Routers and heads do not: softmax over experts, layers or classes stays what it is."""
    for cls in (MixtralTopKRouter, Wav2Vec2ForSequenceClassification, BertAttention):
        assert not computes_softmax(cls)
    namespace = {"nn": nn}
    exec("class SecretAttention(nn.Module):\n    def forward(self, x): return x", namespace)
    assert computes_softmax(namespace["SecretAttention"])  # its source cannot be read


class Detour(BertSelfAttention):
    """A lookup stands in its source, but not on the path that evaluation takes."""

    def forward(self, hidden_states, *args, **kwargs):
        if self.training:
            assert ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, None)
            return super().forward(hidden_states, *args, **kwargs)
        return hidden_states, None


def test_a_path_past_the_interface_raises_at_the_first_forward():
    model = BERT.build()
    model.encoder.layer[1].attention.self.__class__ = Detour
    patch_model(model, "sparsemax")
    with pytest.raises(RuntimeError, match=r"Detour is patched with sparsemax, but computed its"):
        model(**BERT.inputs())
    unpatch_model(model)(**BERT.inputs())


def test_layers_of_a_shared_module_are_refused():
    model = BY_NAME["albert"].build()
    with pytest.raises(ValueError, match=r"AlbertModel shares 1 .* 2 layers; leave out layers"):
        patch_model(model, "sparsemax", layers=[0])
    patch_model(model, "sparsemax")


@pytest.mark.parametrize("name", ["sinks", "indices", "block_indices"])
def test_arguments_that_no_mapping_defines_are_refused(name):
    family = BY_NAME["llama"]
    model = patch_model(family.build(), "sparsemax")
    with pytest.raises(NotImplementedError, match=rf"LlamaAttention passes {name}.*sparsemax"):
        model(**family.inputs(), **{name: torch.ones(4)})
    model(**family.inputs(), **{name: None})


WRONG_MASKS = {
    "integers": (
        torch.ones(3, 1, 9, 9).long(),
        r".*attention_mask\.bool\(\) if .* torch.int64",
    ),
    "heads": (torch.ones(3, 3, 9, 9).bool(), r".* \(3, 4, 9, 9\) or 1 .*shape \(3, 3, 9, 9\)"),
    "additive, rows": (torch.zeros(2, 1, 9, 9), r".* \(3, 4, 9, 9\) or 1 .*shape \(2, 1, 9, 9\)"),
    "queries": (torch.ones(3, 1, 5, 9).bool(), r".* \(3, 4, 9, 9\) or 1 .*shape \(3, 1, 5, 9\)"),
}


@pytest.mark.parametrize("kind", WRONG_MASKS)
@pytest.mark.parametrize("name", ["bert", "gpt2", "t5"])
def test_a_wrong_mask_is_refused_by_the_name_of_the_argument(name, kind):
    """T5 adds its mask to its position bias: integers would be added to the scores."""
    mask, says = WRONG_MASKS[kind]
    family = BY_NAME[name]
    model = patch_model(family.build(), "sparsemax")
    with pytest.raises(ValueError, match=f"^attention_mask: expected {says}"):
        model(**{**family.inputs(), "attention_mask": mask})


@pytest.mark.parametrize(
    "arguments",
    [
        {"mapping": "t-softmax", "t": [1.0, 2.0, 3.0, 4.0], "per": "head"},
        {"mapping": "t-softmax", "learn": "t", "t": 2.0, "per": "head"},
        {"mapping": "softmax", "sink": [1.0, 2.0, 3.0, 4.0], "per": "head"},
        {"mapping": "scaled-softmax", "per": "query"},
    ],
    ids=str,
)
def test_values_of_heads_that_were_pruned_are_refused(arguments):
    model = patch_model(BERT.build(num_hidden_layers=1), **arguments)
    (layer,) = model.encoder.layer
    attention, dense = layer.attention.self, layer.attention.output.dense
    for linear in (attention.query, attention.key, attention.value):
        linear.weight.data, linear.bias.data = linear.weight[:12].detach(), linear.bias[:12]
    dense.weight.data = dense.weight[:, :12].detach()
    attention.num_attention_heads, attention.all_head_size = 3, 12
    for wanted in (False, True):
        with pytest.raises(ValueError, match=r"BertSelfAttention has 3 heads.* 4 heads.* patch_m"):
            model(**BERT.inputs(), output_attentions=wanted)
    patch_model(model, "t-softmax", t=[1.0, 2.0, 3.0], per="head")(**BERT.inputs())


@pytest.mark.parametrize("earlier", [None, "softmax"])
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"mapping": "r-sotfmax"}, ValueError, "mapping='r-sotfmax' is unknown; did you mean r-"),
        ({"mapping": "r-softmax", "t": 1.0}, TypeError, "t=1.0: unknown parameter; r-softmax"),
        ({"mapping": "r-softmax", "r": 1.5}, ValueError, r"r.*1\.5"),
        ({"mapping": "sparsemax", "learn": "r"}, TypeError, "learn='r': sparsemax can learn sink"),
        ({"mapping": "r-softmax", "r": 0.0, "learn": "r"}, ValueError, "r=0.0: a learned r must"),
        ({"mapping": "r-softmax", "per": "token"}, ValueError, "per='token': expected 'layer'"),
        ({"mapping": "plif", "per": "head"}, ValueError, "plif is shared by all heads"),
        ({"mapping": "r-softmax", "r": [0.1] * 3, "per": "head"}, ValueError, "each of 4 heads"),
        ({"mapping": "r-softmax", "r": [0.1] * 4}, ValueError, 'r: expected one value.*per="head"'),
        ({"mapping": "sparsemax", "layers": [0, 2]}, ValueError, "no layer 2.*from 0 to 1"),
        ({"mapping": "sparsemax", "layers": [-1]}, ValueError, "BertModel has no layer -1"),
        ({"mapping": "sparsemax", "layers": []}, ValueError, "layers=.*omit it for all"),
        ({"mapping": "sparsemax", "layers": 1}, TypeError, r"layers=1: .*such as \[1\]"),
        ({"mapping": "sparsemax", "layers": "1"}, TypeError, r"layers='1': .*such as \[0\]"),
    ],
    ids=lambda value: value.get("mapping") if isinstance(value, dict) else None,
)
def test_wrong_arguments_are_refused_and_change_nothing(arguments, error, message, earlier):
    model = BERT.build()
    if earlier is not None:
        patch_model(model, earlier)

    def state():
        return repr(model), model.config.to_json_string(use_diff=False), list(model.state_dict())

    before = state()
    with pytest.raises(error, match=message):
        patch_model(model, **arguments)
    assert state() == before
    assert is_patched(model) == (earlier is not None)
    assert model.config._attn_implementation == ("sdpa" if earlier is None else NAME)


def test_what_is_no_model_or_holds_several_is_refused():
    """Such as a pipeline or a Trainer; of two models, one would go on in softmax."""
    with pytest.raises(TypeError, match=r"got SimpleNamespace; pass its \.model$"):
        patch_model(SimpleNamespace(model=BERT.build()), "sparsemax")
    with pytest.raises(TypeError, match=r"got Linear$"):
        patch_model(nn.Linear(1, 1), "sparsemax")
    both = nn.ModuleDict({"question": BERT.build(), "passage": BERT.build()})
    for call in (patch_model, lambda model, _: record_attention(model).__enter__()):
        with pytest.raises(ValueError, match="ModuleDict holds several Transformers models, BertM"):
            call(both, "sparsemax")
    assert not is_patched(both["question"])


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize(("mapping", "learn"), [("entmax", "alpha"), ("plif", ())])
def test_learned_parameters_do_not_start_on_the_meta_device(mapping, learn, inside):
    """Their initial values would be lost."""
    with torch.device("meta"):
        model = transformers.BertModel(BERT.make_config())
    context = torch.device("meta") if inside else nullcontext()
    with context, pytest.raises(ValueError, match=rf"{mapping}: its learned .* load the weights"):
        patch_model(model, mapping, learn=learn)
    assert not is_patched(model)
    patch_model(model, "entmax", alpha=1.3)
    assert model.to_empty(device="cpu").encoder.layer[0].attention.self.sparse_attn.alpha == 1.3


@pytest.mark.parametrize(
    ("name", "part", "implementation"),
    [("bert", "", "sdpa"), ("t5", "encoder", "eager")],
)
def test_switching_the_implementation_of_a_patched_model_raises(name, part, implementation):
    family = BY_NAME[name]
    model = patch_model(family.build(), "sparsemax")
    model.get_submodule(part).set_attn_implementation(implementation)
    says = rf"Attention is patched with sparsemax.*'{implementation}'; call unpatch_model first, or"
    with pytest.raises(RuntimeError, match=says):
        model(**family.inputs())
    model.get_submodule(part).set_attn_implementation(NAME)
    model(**family.inputs())
