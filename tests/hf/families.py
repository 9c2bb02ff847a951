"""The table of tiny random models that the tests of the plug-in run over, and their inputs."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
import transformers
from torch import Tensor

BATCH, LENGTH = 3, 9
LENGTHS = (9, 6, 2)  # valid tokens of each row
VOCABULARY = 40
HEADS = 4

BERT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
}
LLAMA = {**BERT, "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SEQ2SEQ = {
    "vocab_size": VOCABULARY,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
VISION = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "intermediate_size": 24,
    "image_size": 12,
    "patch_size": 4,
}


def tokens(rows: int = BATCH, length: int = LENGTH) -> Tensor:
    """Random token ids, none of them a special one."""
    return torch.randint(5, VOCABULARY, (rows, length))


def padding(lengths: tuple[int, ...] = LENGTHS) -> Tensor:
    """The 2-D attention mask of rows padded on the right."""
    return (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()


def text_inputs() -> dict[str, Tensor]:
    return {"input_ids": tokens(), "attention_mask": padding()}


def cross_inputs() -> dict[str, Tensor]:
    return {
        **text_inputs(),
        "encoder_hidden_states": torch.randn(BATCH, 7, 16),
        "encoder_attention_mask": padding((7, 5, 1)),
    }


def seq2seq_inputs() -> dict[str, Tensor]:
    return {
        **text_inputs(),
        "decoder_input_ids": tokens(length=7),
        "decoder_attention_mask": padding((7, 5, 1)),
    }


def layout_inputs() -> dict[str, Tensor]:
    corner = torch.randint(0, 20, (BATCH, LENGTH, 2))
    return {**text_inputs(), "bbox": torch.cat([corner, corner + 5], dim=-1)}


def image_inputs() -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(BATCH, 3, 12, 12)}


def clip_inputs() -> dict[str, Tensor]:
    return {**text_inputs(), **image_inputs()}


def whisper_inputs() -> dict[str, Tensor]:
    return {
        "input_features": torch.randn(BATCH, 8, 20),
        "decoder_input_ids": tokens(length=7),
        "decoder_attention_mask": padding((7, 5, 1)),
    }


def audio_inputs() -> dict[str, Tensor]:
    return {
        "input_values": torch.randn(BATCH, 80),
        "attention_mask": padding((80, 60, 30)),
    }


# Names of inputs with one entry a token, beside the mask that says which of them are padding.
PADDED = {
    "attention_mask": ("input_ids", "bbox", "input_values"),
    "decoder_attention_mask": ("decoder_input_ids",),
    "encoder_attention_mask": ("encoder_hidden_states",),
}


@dataclass(frozen=True)
class Family:
    """One architecture: how to build it tiny, what to feed it, what to expect of it."""

    name: str
    model: str  # class of the base model
    config: dict[str, Any]
    modules: int  # attention modules
    inputs: Callable[[], dict[str, Tensor]] = text_inputs
    causal: bool = False
    mask_4d: bool = True  # takes a user's own 4-D mask of its last stack's self-attention
    parts: dict[str, dict[str, Any]] = field(default_factory=dict)  # sub-configs
    head: str | None = None  # class of a language model that generates

    def __str__(self) -> str:
        return self.name

    def make_config(self, **changes: Any) -> Any:
        cls = getattr(transformers, self.model).config_class
        return cls(**{**self.config, **self.parts, **changes})

    @cached_property
    def example(self) -> dict[str, Tensor]:
        """Inputs that are the same in every call."""
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return self.inputs()

    def unmasked(self) -> dict[str, Tensor]:
        """Inputs without masks."""
        return {name: t for name, t in self.inputs().items() if not name.endswith("mask")}

    def run(self, model: Any, inputs: dict[str, Tensor]) -> Tensor:
        """Hidden states (batch, tokens, features) of a model's last stack."""
        output = model(**inputs)
        if self.name != "clip":
            return output.last_hidden_state
        text = output.text_model_output.last_hidden_state
        image = output.image_embeds[:, None].expand(-1, text.shape[1], -1)
        return torch.cat([text, image], dim=-1)

    def valid(self, inputs: dict[str, Tensor], output: Tensor) -> Tensor:
        """Which tokens of `output` are not padding, (batch, tokens)."""
        if self.name == "wav2vec2":  # two convolutions: windows 4 and 2, strides 4 and 2
            lengths = inputs.get("attention_mask", torch.ones_like(inputs["input_values"])).sum(-1)
            frames = (lengths.long() - 4) // 4 + 1
            frames = (frames - 2) // 2 + 1
            return torch.arange(output.shape[1]) < frames[:, None]
        mask = inputs.get("decoder_attention_mask", inputs.get("attention_mask"))
        return torch.ones(output.shape[:2], dtype=torch.bool) if mask is None else mask.bool()

    def hidden(self, model: Any, inputs: dict[str, Tensor] | None = None) -> Tensor:
        """The hidden states of the tokens that are not padding, without gradient."""
        inputs = self.example if inputs is None else inputs
        with torch.no_grad():
            output = self.run(model, inputs)
        return output[self.valid(inputs, output)]

    def build(self, cls: str | None = None, seed: int = 0, **changes: Any) -> Any:
        """A random model in eval mode whose attention is far from uniform."""
        torch.manual_seed(seed)
        model = getattr(transformers, cls or self.model)(self.make_config(**changes)).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                # tiny initial weights give nearly equal scores, which hide a wrong mapping
                if parameter.dim() == 2 and not name.endswith("embeddings.weight"):
                    parameter.normal_(0, 0.4)
                elif name.endswith(".sinks"):
                    parameter.normal_()
        return model


FAMILIES = [
    Family("bert", "BertModel", BERT, 2),
    Family(
        "bert-decoder",
        "BertModel",
        {**BERT, "is_decoder": True, "add_cross_attention": True},
        4,
        cross_inputs,
        causal=True,
    ),
    Family("roberta", "RobertaModel", {**BERT, "pad_token_id": 1}, 2),
    Family("xlm-roberta", "XLMRobertaModel", {**BERT, "pad_token_id": 1}, 2),
    Family("camembert", "CamembertModel", {**BERT, "pad_token_id": 1}, 2),
    Family(
        "distilbert",
        "DistilBertModel",
        {"vocab_size": VOCABULARY, "dim": 16, "n_layers": 2, "n_heads": HEADS, "hidden_dim": 24,
         "max_position_embeddings": 32},
        2,
    ),
    Family("albert", "AlbertModel", {**BERT, "embedding_size": 8}, 1),
    Family("electra", "ElectraModel", {**BERT, "embedding_size": 8}, 2),
    Family(
        "modernbert",
        "ModernBertModel",
        {**BERT, "num_hidden_layers": 3, "local_attention": 4, "global_attn_every_n_layers": 3,
         "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1,
         "sep_token_id": 2},
        3,
    ),
    Family("layoutlm", "LayoutLMModel", {**BERT, "max_2d_position_embeddings": 32}, 2,
           layout_inputs, mask_4d=False),
    Family(
        "t5",
        "T5Model",
        {"vocab_size": VOCABULARY, "d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 2,
         "num_decoder_layers": 2, "num_heads": HEADS, "pad_token_id": 0, "eos_token_id": 2,
         "decoder_start_token_id": 0, "relative_attention_num_buckets": 8},
        6,
        seq2seq_inputs,
        head="T5ForConditionalGeneration",
    ),
    Family("bart", "BartModel", {**SEQ2SEQ, "max_position_embeddings": 32}, 6, seq2seq_inputs,
           head="BartForConditionalGeneration"),
    Family(
        "gpt2",
        "GPT2Model",
        {"vocab_size": VOCABULARY, "n_embd": 16, "n_layer": 2, "n_head": HEADS,
         "n_positions": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
        2,
        causal=True,
        head="GPT2LMHeadModel",
    ),
    Family("gpt-neox", "GPTNeoXModel", BERT, 2, causal=True),
    Family(
        "opt",
        "OPTModel",
        {**BERT, "ffn_dim": 24, "word_embed_proj_dim": 16, "pad_token_id": 0},
        2,
        causal=True,
        mask_4d=False,
    ),
    Family("llama", "LlamaModel", LLAMA, 2, causal=True, head="LlamaForCausalLM"),
    Family("mistral", "MistralModel", {**LLAMA, "sliding_window": 4}, 2, causal=True,
           head="MistralForCausalLM"),
    Family("qwen3", "Qwen3Model", {**LLAMA, "head_dim": 8}, 2, causal=True),
    Family(
        "gemma2",
        "Gemma2Model",
        {**LLAMA, "head_dim": 8, "query_pre_attn_scalar": 7, "attn_logit_softcapping": 1.5,
         "sliding_window": 4},
        2,
        causal=True,
        head="Gemma2ForCausalLM",
    ),
    Family(
        "gemma3",
        "Gemma3TextModel",
        {**LLAMA, "head_dim": 8, "query_pre_attn_scalar": 7, "sliding_window": 4},
        2,
        causal=True,
    ),
    Family(
        "gpt-oss",
        "GptOssModel",
        {**LLAMA, "head_dim": 8, "num_local_experts": 2, "num_experts_per_tok": 1,
         "sliding_window": 4},
        2,
        causal=True,
        head="GptOssForCausalLM",
    ),
    Family("vit", "ViTModel", VISION, 2, image_inputs, mask_4d=False),
    Family(
        "clip",
        "CLIPModel",
        {"projection_dim": 16},
        4,
        clip_inputs,
        parts={
            "text_config": {**BERT, "projection_dim": 16, "eos_token_id": 2, "bos_token_id": 1,
                            "pad_token_id": 0},
            "vision_config": {**VISION, "projection_dim": 16},
        },
    ),
    Family(
        "whisper",
        "WhisperModel",
        {**SEQ2SEQ, "num_mel_bins": 8, "max_source_positions": 10, "max_target_positions": 16,
         "suppress_tokens": None, "begin_suppress_tokens": None},
        6,
        whisper_inputs,
        mask_4d=False,
    ),
    Family(
        "wav2vec2",
        "Wav2Vec2Model",
        {**VISION, "vocab_size": VOCABULARY, "conv_dim": (8, 8), "conv_stride": (4, 2),
         "conv_kernel": (4, 2), "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 4,
         "num_conv_pos_embedding_groups": 2, "feat_extract_norm": "layer",
         "do_stable_layer_norm": True},
        2,
        audio_inputs,
        mask_4d=False,
    ),
]  # fmt: skip

BY_NAME = {family.name: family for family in FAMILIES}

# Architectures that must be refused, with the class named in the message.
REFUSED = {
    "DebertaModel": BERT,
    "DebertaV2Model": BERT,
    "MPNetModel": BERT,
    "SqueezeBertModel": {**BERT, "embedding_size": 16, "q_groups": 1, "k_groups": 1,
                         "v_groups": 1, "post_attention_groups": 1, "intermediate_groups": 1,
                         "output_groups": 1},
    "LongformerModel": {**BERT, "attention_window": 4},
    "BigBirdModel": BERT,
    "FunnelModel": {"vocab_size": VOCABULARY, "block_sizes": [1, 1], "d_model": 16, "n_head": 4,
                    "d_head": 4, "d_inner": 24},
    "XLNetModel": {"vocab_size": VOCABULARY, "d_model": 16, "n_layer": 2, "n_head": 4,
                   "d_inner": 24},
    "ConvBertModel": {**BERT, "embedding_size": 16, "head_ratio": 2, "conv_kernel_size": 3},
    "NystromformerModel": BERT,
}  # fmt: skip


def build_refused(name: str, **changes: Any) -> Any:
    cls = getattr(transformers, name)
    return cls(cls.config_class(**{**REFUSED[name], **changes})).eval()
