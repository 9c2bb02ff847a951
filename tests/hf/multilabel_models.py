"""The tiny classification models that the tests of patch_multilabel_head run over."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import transformers
from torch import Tensor

from sparse_attn import Mapping, patch_multilabel_head, unpatch_multilabel_head
from sparse_attn.hf.config import MULTILABEL

from .families import BY_NAME, image_inputs
from .heads import Subject

LABELS = 5
RESNET = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}


@dataclass(frozen=True)
class Classifier(Subject):
    """A classification class: its family, None for ResNet, and the name of its last layer."""

    family: str | None
    cls: str
    layer: str

    patch = staticmethod(patch_multilabel_head)
    unpatch = staticmethod(unpatch_multilabel_head)
    key = MULTILABEL
    kinds: ClassVar[dict[str, dict[str, Any]]] = {
        "softmax": {"mapping": "softmax", "threshold": 0.2},
        "sparsemax-hinge": {"mapping": "sparsemax", "loss": "sparsegen-hinge"},
        "r-softmax": {"mapping": Mapping("r-softmax", r=0.4)},
        "r-softmax-predicted": {"mapping": "r-softmax", "sparsity": "predicted"},
        "t-softmax-learned": {"mapping": Mapping("t-softmax", t=1.5, learn="t")},
        "t-softmax-predicted": {"mapping": "t-softmax", "sparsity": "predicted"},
    }

    def __str__(self) -> str:
        return self.cls

    def build(self, **changes: Any) -> Any:
        changes = {"num_labels": LABELS, "problem_type": "multi_label_classification", **changes}
        if self.family is not None:
            return BY_NAME[self.family].build(self.cls, **changes)
        torch.manual_seed(0)
        config = transformers.ResNetConfig(**{**RESNET, **changes})
        return transformers.ResNetForImageClassification(config).eval()

    def inputs(self) -> dict[str, Tensor]:
        """Inputs and labels; the last row has none."""
        inputs = image_inputs() if self.family is None else BY_NAME[self.family].inputs()
        if "attention_mask" in inputs:  # GPT-2 and Llama look for the padding in the ids
            inputs["input_ids"] = inputs["input_ids"] * inputs["attention_mask"]
        labels = torch.tensor([[1, 0, 1, 0, 0], [0, 1, 0, 0, 0], [0, 0, 0, 0, 0]])
        return {**inputs, "labels": labels.float()}

    def head(self, model: Any) -> Any:
        return model.get_submodule(self.layer)


MODELS = [
    Classifier("bert", "BertForSequenceClassification", "classifier"),
    Classifier("roberta", "RobertaForSequenceClassification", "classifier.out_proj"),
    Classifier("distilbert", "DistilBertForSequenceClassification", "classifier"),
    Classifier("gpt2", "GPT2ForSequenceClassification", "score"),
    Classifier("llama", "LlamaForSequenceClassification", "score"),
    Classifier("vit", "ViTForImageClassification", "classifier"),
    Classifier(None, "ResNetForImageClassification", "classifier.1"),
]
BERT, ROBERTA, _, GPT2, LLAMA, VIT, RESNET_MODEL = MODELS
