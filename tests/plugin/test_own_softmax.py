"""Models that would go on in softmax in some part: refused by name, or at the first forward."""

import pytest
import torch
import transformers
from torch import nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.bert.modeling_bert import BertSelfAttention

from sparse_attn import patch_model, patched, unpatch_model
from sparse_attn.attention import REACHED
from sparse_attn.inspection import record_attention
from sparse_attn.layers import attention_layers, computes_softmax
from sparse_attn.patching import is_patched

from .families import BERT, BY_NAME, HEADS, SEQ2SEQ, VISION, VOCABULARY
from .helpers import run_valid

SEQ2SEQ_LONG = {**SEQ2SEQ, "max_position_embeddings": 64}
TEXT = {**BERT, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
TOWERS = {"text_config": TEXT, "vision_config": VISION}
CHAMELEON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "intermediate_size": 24,
    "vq_config": {"embed_dim": 8, "num_embeddings": 8, "latent_channels": 8, "resolution": 16,
                  "base_channels": 32, "channel_multiplier": [1], "num_res_blocks": 1,
                  "attn_type": "vanilla"},
    "vocabulary_map": {"<image>": 4},
}  # fmt: skip
MOE = {**SEQ2SEQ, "max_position_embeddings": 32, "num_experts": 4, "encoder_sparse_step": 1,
       "decoder_sparse_step": 1}  # fmt: skip
BRIDGE = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": HEADS,
    "text_config": {**TEXT, "num_hidden_layers": 1},
    "vision_config": {"hidden_size": 64, "num_hidden_layers": 1, "image_size": 16,
                      "patch_size": 8},
}  # fmt: skip
KOSMOS = {
    "text_config": {"vocab_size": VOCABULARY, "embed_dim": 16, "layers": 1, "ffn_dim": 24,
                    "attention_heads": HEADS, "max_position_embeddings": 32},
    "vision_config": {"hidden_size": 16, "patch_embed_hidden_size": 16, "intermediate_size": 24,
                      "num_hidden_layers": 1, "num_attention_heads": HEADS, "head_dim": 4},
    "latent_query_num": 4,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "config", "part"),
    [
        # softmax in a method that forward calls
        ("PegasusXModel", SEQ2SEQ_LONG, "encoder.layers.0.self_attn"),
        ("BigBirdPegasusModel", SEQ2SEQ_LONG, "encoder.layers.0.self_attn.self"),
        # torch's own attention
        ("SiglipModel", TOWERS, "vision_model.head.attention"),
        ("Siglip2Model", TOWERS, "vision_model.head.attention"),
        ("BridgeTowerModel", BRIDGE, "vision_model.visual.transformer.resblocks.0.attn"),
        # an attention of another name
        ("ChameleonModel", CHAMELEON, "vqmodel.encoder.mid.attn_1"),
        # a lookup that always gives eager
        ("Kosmos2_5Model", KOSMOS, "vision_model.encoder.layer.0.attention"),
    ],
)
def test_softmax_outside_the_interface_is_refused_by_name(name, config, part):
    model = getattr(transformers, name)(getattr(transformers, name).config_class(**config))
    with pytest.raises(ValueError, match=rf"{name} computes softmax in .*{part}.*, outside"):
        patch_model(model, "sparsemax")
    assert not is_patched(model)
    with pytest.raises(ValueError, match="computes softmax in"), record_attention(model):
        pass


def test_a_router_that_reads_the_mask_is_refused():
    model = transformers.NllbMoeModel(transformers.NllbMoeConfig(**MOE))
    with pytest.raises(ValueError, match=r"NllbMoeModel: .*router reads the additive .* padding"):
        patch_model(model, "softmax")


def test_routers_and_heads_are_no_attention():
    """softmax over experts, layers or classes stays what it is."""
    for name in ("mixtral.modeling_mixtral.MixtralTopKRouter",
                 "wav2vec2.modeling_wav2vec2.Wav2Vec2ForSequenceClassification",
                 "bert.modeling_bert.BertAttention"):  # fmt: skip
        module, cls = name.rsplit(".", 1)
        assert not computes_softmax(
            getattr(__import__(f"transformers.models.{module}", fromlist=[cls]), cls)
        )


def test_attention_without_source_counts_as_softmax():
    namespace = {"nn": nn}
    exec("class SecretAttention(nn.Module):\n    def forward(self, x): return x", namespace)
    assert computes_softmax(namespace["SecretAttention"])


class Detour(BertSelfAttention):
    """A lookup stands in its source, but not on the path that evaluation takes."""

    def forward(self, hidden_states, *args, **kwargs):
        if self.training:
            assert ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, None)
            return super().forward(hidden_states, *args, **kwargs)
        return hidden_states, None


def test_a_path_past_the_interface_raises_at_the_first_forward():
    family = BY_NAME["bert"]
    model = family.build()
    model.encoder.layer[1].attention.self.__class__ = Detour
    patch_model(model, "sparsemax")
    with pytest.raises(RuntimeError, match=r"Detour is patched with sparsemax, but computed its"):
        model(**family.inputs())
    unpatch_model(model)(**family.inputs())


@pytest.mark.parametrize("name", ["bert", "t5", "clip", "albert"])
def test_every_attention_module_is_reached_and_unpatching_leaves_no_trace(name):
    family = BY_NAME[name]
    model = family.build()
    modules = [layer.module for layer in attention_layers(model)]
    before = [set(vars(module)) for module in modules]
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    patch_model(model, "sparsemax")
    with torch.no_grad():
        model(**family.inputs())
    assert all(getattr(module, REACHED) for module in modules)
    unpatch_model(model)
    assert [set(vars(module)) for module in modules] == before
    assert [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()] == hooks


def test_a_wrapper_of_two_models_is_refused():
    """The second one would go on in softmax."""
    family = BY_NAME["bert"]
    both = nn.ModuleDict({"question": family.build(), "passage": family.build()})
    for call in (
        lambda: patch_model(both, "sparsemax"),
        lambda: record_attention(both).__enter__(),
    ):
        with pytest.raises(ValueError, match="ModuleDict holds several Transformers models, BertM"):
            call()
    assert not is_patched(both["question"])


def test_unpatching_inside_a_block_of_a_patched_model_ends_with_the_block():
    family = BY_NAME["bert"]
    inputs = family.inputs()
    model = patch_model(family.build(), "sparsemax")
    expected = run_valid(model, inputs, family)
    with patched(model, "entmax"):
        unpatch_model(model)
    assert is_patched(model)
    assert torch.equal(run_valid(model, inputs, family), expected)
