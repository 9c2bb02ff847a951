"""What the integrations refuse; rows of a library that is not installed are left out."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transformers import (
    BertConfig,
    BertModel,
    BloomConfig,
    BloomForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
)

from sparse_attn import patch_model, unpatch_model
from tests.bad_input import Wrong
from tests.letters import letter_tokenizer

SIZES = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}


def saved(folder: Path, model: Any, mapping: str | None = None) -> str:
    tokenizer = letter_tokenizer()
    tokenizer.eos_token = "[SEP]"
    tokenizer.save_pretrained(folder)
    (patch_model(model, mapping) if mapping else model).save_pretrained(folder)
    return str(folder)


def bert(folder: Path, mapping: str | None = "sparsemax") -> str:
    config = BertConfig(vocab_size=88, intermediate_size=8, **SIZES)
    return saved(folder, BertModel(config), mapping)


def transformer(folder: Path, mapping: str | None = "sparsemax", **options: Any) -> Any:
    from sparse_attn.integrations.sentence_transformers import PatchedTransformer

    return PatchedTransformer(bert(folder, mapping), **options)


def unpatched_inside(folder: Path) -> None:
    module = transformer(folder)
    unpatch_model(module.model)
    module.save(str(folder))


def gpt2(folder: Path, mapping: str | None = None) -> str:
    config = GPT2Config(
        vocab_size=88, n_embd=8, n_layer=1, n_head=1, bos_token_id=1, eos_token_id=2
    )
    return saved(folder, GPT2LMHeadModel(config), mapping)


def bloom(folder: Path) -> str:
    return saved(
        folder, BloomForCausalLM(BloomConfig(vocab_size=88, hidden_size=8, n_layer=1, n_head=1))
    )


def evaluated(pretrained: Any, **options: Any) -> None:
    from sparse_attn.integrations.lm_eval import PatchedLM

    PatchedLM(pretrained, device="cpu", **options)


OF_SENTENCE_TRANSFORMERS = [
    Wrong(
        "PatchedTransformer: another backend",
        lambda folder: transformer(folder, backend="onnx"),
        ValueError,
        "backend='onnx': .* has mappings for its softmax.*leave it out",
    ),
    Wrong(
        "PatchedTransformer: another attention",
        lambda folder: transformer(folder, model_kwargs={"attn_implementation": "eager"}),
        ValueError,
        "attn_implementation='eager': .* has mappings for its softmax.*leave it out",
    ),
    Wrong(
        "PatchedTransformer: a plain model",
        lambda folder: transformer(folder, None),
        ValueError,
        "nothing was patched when it was saved",
    ),
    Wrong(
        "PatchedTransformer: unpatched inside",
        unpatched_inside,
        ValueError,
        "BertModel inside was unpatched alone.*call unpatch_model of the whole",
    ),
]
OF_LM_EVAL = [
    Wrong(
        "lm-eval: unknown mapping",
        lambda folder: evaluated(str(folder), mapping="entmaxx"),
        ValueError,
        "mapping='entmaxx' is unknown; did you mean entmax",
    ),
    Wrong(
        "lm-eval: value out of range",
        lambda folder: evaluated(str(folder), mapping="entmax", alpha=3),
        ValueError,
        "mapping entmax:alpha=3: alpha=3",
    ),
    Wrong(
        "lm-eval: a model in memory",
        lambda _: evaluated(BertModel(BertConfig(**SIZES)), mapping="entmax"),
        TypeError,
        r"pretrained: expected a folder or hub id, got a BertModel; HFLM\(pretrained=model\)",
    ),
    Wrong(
        "lm-eval: a mapping for a patched model",
        lambda folder: evaluated(gpt2(folder, "sparsemax"), mapping="entmax:alpha=1.5"),
        ValueError,
        "mapping=entmax:alpha=1.5: .* was saved with mappings.*leave mapping out",
    ),
    Wrong(
        "lm-eval: none for a plain model",
        lambda folder: evaluated(gpt2(folder)),
        ValueError,
        "mapping: .* was saved without one, so it is needed.*--model hf",
    ),
    Wrong(
        "lm-eval: a model that does not dispatch",
        lambda folder: evaluated(bloom(folder), mapping="sparsemax"),
        ValueError,
        "Bloom.* does not dispatch its attention.*use a model that does",
    ),
]
ROWS = [
    *(OF_SENTENCE_TRANSFORMERS if find_spec("sentence_transformers") else ()),
    *(OF_LM_EVAL if find_spec("lm_eval") else ()),
]
