"""The tiny language models that the tests of patch_lm_head run over."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from sparse_attn import patch_lm_head, unpatch_lm_head
from sparse_attn.hf.config import HEAD

from .families import BY_NAME
from .heads import Subject, unlabelled


@dataclass(frozen=True)
class LanguageModel(Subject):
    """A language model class: its family, how the class differs, and how its loss reads labels."""

    name: str
    family: str
    cls: str
    changes: dict[str, Any] = field(default_factory=dict)
    shift: bool = False  # the label of position t is scored at t - 1
    dispatches: bool = False  # forward calls loss_function
    tied: bool = True

    patch = staticmethod(patch_lm_head)
    unpatch = staticmethod(unpatch_lm_head)
    key = HEAD
    kinds: ClassVar[dict[str, dict[str, Any]]] = {
        "fixed": {"mapping": "temperature-softmax", "temperature": 0.7},
        "learned": {"mapping": "plif", "knots": 12, "bound": 6.0},
        "mixture": {"mapping": "sigsoftmax", "components": 3, "prior": "softmax", "learn": "bias"},
        "zeros": {"mapping": "entmax", "alpha": 1.5, "learn": "alpha"},  # if the class dispatches
    }

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

    def head(self, model: Any) -> Any:
        return model.get_output_embeddings()


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
DISPATCHING = [model for model in MODELS if model.dispatches]


def scores_and_hidden(plain: Any, inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """What comes out of and goes into the output embedding of a plain model, without labels."""
    seen: list[Tensor] = []
    handle = plain.get_output_embeddings().register_forward_hook(
        lambda module, args, output: seen.extend((args[0], output))
    )
    plain(**unlabelled(inputs))
    handle.remove()
    return seen[1], seen[0]


def scored(values: Tensor, labels: Tensor, shift: bool) -> tuple[Tensor, Tensor]:
    """The rows of `values` (B, T, ...) whose labels count, and those labels."""
    if shift:
        values, labels = values[:, :-1], labels[:, 1:]
    counts = labels != -100
    return values[counts], labels[counts]
