"""What is patched, each in a tiny Llama."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sparse_attn import patch_model
from sparse_attn.heads import patch_lm_head, patch_multilabel_head
from tests.hf.families import BY_NAME, VOCABULARY
from tests.hf.helpers import jitter

LENGTHS = (9, 6, 9, 6)  # halves alike, so that the mean of their losses is that of the whole
LABELS = 5


@dataclass(frozen=True)
class Subject:
    """A patch of a class of Llama."""

    name: str
    patch: Callable[[Any], Any]
    cls: str = "LlamaForCausalLM"
    plain: bool = False  # the model without a patch computes the same
    log: bool = False  # its logits are log p

    def __str__(self) -> str:
        return self.name

    @property
    def generates(self) -> bool:
        return self.cls == "LlamaForCausalLM"

    def build(self, patched: bool = True) -> Any:
        """The same weights at every call, on eager attention where it is not patched."""
        options = {"num_labels": LABELS, "attn_implementation": "eager"}
        model = BY_NAME["llama"].build(self.cls, **options)
        torch.manual_seed(1)
        return self.patch(model) if patched else model


def learned(model: Any) -> Any:
    patch_model(model, "t-softmax", t=2.0, learn="t", per="head")
    jitter(model)
    return model


SUBJECTS = [
    Subject("attention, softmax", lambda m: patch_model(m, "softmax"), plain=True),
    Subject("attention, r-softmax", lambda m: patch_model(m, "r-softmax", r=0.3)),
    Subject("sink, softmax", lambda m: patch_model(m, "softmax", sink=0.5)),
    Subject("sink, entmax", lambda m: patch_model(m, "scaled-entmax", alpha=1.5, sink=0.5)),
    Subject("learned t", learned),
    Subject("LM head, softmax", lambda m: patch_lm_head(m, "softmax"), plain=True, log=True),
    Subject("LM head, entmax", lambda m: patch_lm_head(m, "entmax", alpha=1.5), log=True),
    Subject(
        "multi-label head",
        lambda m: patch_multilabel_head(m, "sparsemax", loss="sparsegen-hinge"),
        "LlamaForSequenceClassification",
    ),
]


def inputs(subject: Subject) -> dict[str, Tensor]:
    """A batch with padding on the right, and labels."""
    torch.manual_seed(2)
    mask = (torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]).long()
    ids = torch.randint(5, VOCABULARY, mask.shape) * mask  # Llama's classifier looks for padding
    if subject.generates:
        return {
            "input_ids": ids,
            "attention_mask": mask,
            "labels": ids.masked_fill(mask == 0, -100),
        }
    labels = torch.eye(LABELS)[: len(ids)]
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}
