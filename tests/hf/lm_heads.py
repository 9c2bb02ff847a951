"""The tiny language models that the tests of patch_lm_head run over."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from sparse_attn.heads import patch_lm_head

from .families import BY_NAME


@dataclass(frozen=True)
class LanguageModel:
    """A language model class: its family, how the class differs, and how its loss reads labels."""

    name: str
    family: str
    cls: str
    changes: dict[str, Any] = field(default_factory=dict)
    shift: bool = False  # the label of position t is scored at t - 1
    dispatches: bool = False  # forward calls loss_function
    tied: bool = True

    def __str__(self) -> str:
        return self.name

    def build(self, **changes: Any) -> Any:
        model = BY_NAME[self.family].build(self.cls, **{**self.changes, **changes})
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith("bias"):
                    parameter.normal_(0, 0.5)
        return model

    def inputs(self) -> dict[str, Tensor]:
        """Inputs and labels, of which some do not count."""
        inputs = {
            name: tensor
            for name, tensor in BY_NAME[self.family].inputs().items()
            if not name.startswith("encoder_")
        }
        ids = inputs.get("decoder_input_ids", inputs["input_ids"])
        labels = ids.flip(0)
        return {**inputs, "labels": labels.masked_fill(torch.rand(labels.shape) < 0.3, -100)}


MODELS = [
    LanguageModel("gpt2", "gpt2", "GPT2LMHeadModel", shift=True, dispatches=True),
    LanguageModel("llama", "llama", "LlamaForCausalLM", shift=True, dispatches=True, tied=False),
    LanguageModel("llama-tied", "llama", "LlamaForCausalLM", {"tie_word_embeddings": True},
                  shift=True, dispatches=True),
    LanguageModel("bert", "bert", "BertForMaskedLM"),
    LanguageModel("bert-untied", "bert", "BertForMaskedLM", {"tie_word_embeddings": False},
                  tied=False),
    LanguageModel("bert-causal", "bert", "BertLMHeadModel", {"is_decoder": True}, shift=True,
                  dispatches=True),
    LanguageModel("roberta", "roberta", "RobertaForMaskedLM"),
    LanguageModel("modernbert", "modernbert", "ModernBertForMaskedLM", dispatches=True),
    LanguageModel("modernbert-sparse", "modernbert", "ModernBertForMaskedLM",
                  {"sparse_prediction": True}, dispatches=True),
    LanguageModel("t5", "t5", "T5ForConditionalGeneration"),
    LanguageModel("bart", "bart", "BartForConditionalGeneration"),
]  # fmt: skip
BY_MODEL = {model.name: model for model in MODELS}
GENERATING = [
    BY_MODEL[name] for name in ("gpt2", "llama", "llama-tied", "bert-causal", "t5", "bart")
]


KINDS: dict[str, dict[str, Any]] = {
    "fixed": {"mapping": "temperature-softmax", "temperature": 0.7},
    "learned": {"mapping": "plif", "knots": 12, "bound": 6.0},
    "mixture": {"mapping": "sigsoftmax", "components": 3, "prior": "softmax", "learn": "bias"},
}


def patched_lm(model: LanguageModel, kind: str) -> Any:
    """A model with a head of KINDS, which beside weight and bias is not as it starts."""
    result = patch_lm_head(model.build(), **KINDS[kind])
    with torch.no_grad():
        for name, parameter in result.get_output_embeddings().named_parameters():
            if name not in ("weight", "bias"):
                parameter.add_(torch.randn_like(parameter).mul(0.5))
    return result


def scores_and_hidden(plain: Any, inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """What goes into and comes out of the output embedding of a plain model, without labels."""
    seen: list[Tensor] = []
    handle = plain.get_output_embeddings().register_forward_hook(
        lambda module, args, output: seen.extend((args[0], output))
    )
    with torch.no_grad():
        plain(**{name: tensor for name, tensor in inputs.items() if name != "labels"})
    handle.remove()
    return seen[1], seen[0]


def scored(values: Tensor, labels: Tensor, shift: bool) -> tuple[Tensor, Tensor]:
    """The rows of `values` (B, T, ...) whose labels count, and those labels."""
    if shift:
        values, labels = values[:, :-1], labels[:, 1:]
    counts = labels != -100
    return values[counts], labels[counts]


def run(model: Any, inputs: dict[str, Tensor]) -> Any:
    with torch.no_grad():
        return model(**inputs)
