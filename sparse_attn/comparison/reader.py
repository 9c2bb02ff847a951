"""A pretrained model, texts in batches for it, and what of its outputs is compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    PreTrainedModel,
)

from sparse_attn.evaluation.labels import class_order
from sparse_attn.evaluation.tasks import Task
from sparse_attn.hf.opening import (
    check_vocabulary,
    load_model,
    load_tokenizer,
    quiet_transformers,
    resolve_model,
)
from sparse_attn.inspection.tokens import longest
from sparse_attn.system.machine import choose_device

LONGEST = 512  # tokens of a text; the rest is cut off
TEXTS, TOKENS = 64, 2048  # of a batch, at most

# the classes with a head that we compare, by config
CLASSES = {
    AutoModelForSequenceClassification: MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    AutoModelForCausalLM: MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoModelForMaskedLM: MODEL_FOR_MASKED_LM_MAPPING,
}


class Agreement(NamedTuple):
    """How near a mapping's outputs are to softmax's.

    Attributes:
        name: with its unit.
        measure: softmax's outputs, the mapping's, and which tokens (B, T) count -> (B,).
    """

    name: str
    measure: Callable[[Tensor, Tensor, Tensor], Tensor]


def cosine(softmax: Tensor, ours: Tensor, mask: Tensor) -> Tensor:
    """Of embeddings (B, D) of length 1."""
    return (softmax * ours).sum(-1)


def divergence(softmax: Tensor, ours: Tensor, mask: Tensor) -> Tensor:
    """KL(p || q) = sum_i p_i log(p_i / q_i) in nats, p softmax's; mean over the tokens that count.

    Of the scores of next words (B, T, V), or of classes (B, C).
    """
    if softmax.dim() == 2:
        softmax, ours, mask = softmax.unsqueeze(1), ours.unsqueeze(1), mask[:, :1]
    # text by text: scores of all words are large
    return torch.stack(
        [
            F.kl_div(
                q[use].log_softmax(-1),
                p[use].log_softmax(-1),
                reduction="batchmean",
                log_target=True,
            )
            for p, q, use in zip(softmax, ours, mask.bool(), strict=True)
        ]
    )


def distance(softmax: Tensor, ours: Tensor, mask: Tensor) -> Tensor:
    """|difference| of predicted scores (B, 1)."""
    return (softmax - ours).abs().squeeze(-1)


COSINE = Agreement("cosine", cosine)
DIVERGENCE = Agreement("KL, nats", divergence)
DISTANCE = Agreement("|difference|", distance)


class Batch(NamedTuple):
    """Places of some texts among all, and the model's inputs for them."""

    places: list[int]
    inputs: Any


@dataclass
class Reader:
    """A model that is called with a batch.

    Attributes:
        forward: the model, or its encoder.
        limit: tokens that it reads of a text, at most.
        causal: whether its logits are of the next word.
        order: a classifier's class for each label of the task; None if they are in that order.
    """

    model: PreTrainedModel
    forward: Callable[..., Any]
    tokenizer: Any
    limit: int
    agreement: Agreement
    causal: bool
    order: list[int] | None = None

    @torch.inference_mode()
    def __call__(self, batch: Batch) -> Tensor:
        """Logits, by the task's order of labels, or embeddings of length 1 (B, D).

        An embedding is the mean over the tokens.
        """
        inputs = batch.inputs.to(self.model.device)
        outputs = self.forward(**inputs)
        if self.agreement is not COSINE:
            return outputs.logits if self.order is None else outputs.logits[:, self.order]
        mask = inputs["attention_mask"].unsqueeze(-1)
        return F.normalize((outputs.last_hidden_state * mask).sum(1) / mask.sum(1), dim=-1)

    def scores(self, batch: Batch, outputs: Tensor) -> Tensor | None:
        """What a quality needs of the outputs, (B, D), or None if they are for each token.

        -log p of the text's words, but its first, for a causal model, (B, 1).
        """
        if not self.causal:
            return outputs if outputs.dim() == 2 else None
        ids, counts = batch.inputs["input_ids"], batch.inputs["attention_mask"].sum(1)
        found = [
            F.cross_entropy(logits[: count - 1], words[1:count], reduction="none").double().sum()
            for logits, words, count in zip(outputs, ids, counts.tolist(), strict=True)
        ]
        return torch.stack(found).unsqueeze(1)

    def lengths(self, inputs: Sequence[tuple[str, ...]]) -> list[int]:
        """Tokens of each input, uncut.

        Raises:
            ValueError: one has none, or one that the model does not know.
        """
        with quiet_transformers():  # about texts that are too long
            found = self.tokenizer(*_columns(inputs))["input_ids"]
        if [] in found:
            text = inputs[found.index([])][0]
            raise ValueError(f"{text!r} has no token that the model's tokenizer knows; remove it")
        check_vocabulary(chain(*found), self.model.config)
        return [len(ids) for ids in found]

    def batches(self, inputs: Sequence[tuple[str, ...]]) -> list[Batch]:
        """The inputs by length, at most TEXTS and, unless it is one text, TOKENS; as `lengths`."""
        lengths = [min(length, self.limit) for length in self.lengths(inputs)]
        groups: list[list[int]] = []
        for place in sorted(range(len(inputs)), key=lengths.__getitem__):
            fits = groups and len(groups[-1]) < TEXTS
            if not fits or (len(groups[-1]) + 1) * lengths[place] > TOKENS:
                groups.append([])
            groups[-1].append(place)
        return [Batch(places, self._encoded([inputs[p] for p in places])) for places in groups]

    def _encoded(self, inputs: Sequence[tuple[str, ...]]) -> Any:
        return self.tokenizer(
            *_columns(inputs),
            padding=True,
            truncation=True,
            max_length=self.limit,
            return_tensors="pt",
        )


def _columns(inputs: Sequence[tuple[str, ...]]) -> list[list[str]]:
    return [list(column) for column in zip(*inputs, strict=True)]


def open_reader(
    name: str, *, embed: bool = False, task: Task | None = None, trust_remote_code: bool = False
) -> Reader:
    """The model, on the GPU if there is one.

    Args:
        name: a folder, a hub id, or pkg://package/folder.
        embed: leave out its head.
        task: it must be a classifier for this.

    Raises:
        ValueError: it cannot be loaded, or is no classifier for the task or names other labels.
    """
    path = resolve_model(name, "MODEL")
    with quiet_transformers():
        config, tokenizer = load_tokenizer(path, trust_remote_code)
        cls = AutoModelForSequenceClassification if task else AutoModel if embed else _class(config)
        model = load_model(path, config, cls, trust_remote_code=trust_remote_code)
        model.to(choose_device("auto"))
    if task is not None and config.num_labels != task.num_labels:
        raise ValueError(
            f"MODEL={name!r}: gives {config.num_labels} scores, but {task.name} has "
            f"{task.num_labels}; name a model that was trained for it"
        )
    order = class_order(config, task, f"MODEL={name!r}") if task else None
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
        config.pad_token_id = model.config.pad_token_id = tokenizer.pad_token_id
    tokenizer.padding_side = "right"
    agreement = DIVERGENCE
    if cls is AutoModel:
        agreement = COSINE
    elif cls is AutoModelForSequenceClassification and config.num_labels == 1:
        agreement = DISTANCE
    alone = cls is AutoModel and getattr(config, "is_encoder_decoder", False)
    return Reader(
        model,
        model.get_encoder() if alone else model,
        tokenizer,
        int(min(LONGEST, longest(config, tokenizer, model))),
        agreement,
        cls is AutoModelForCausalLM,
        order,
    )


def _class(config: Any) -> Any:
    """The class of a model with its head; AutoModel if it has none that we compare."""
    saved = (getattr(config, "architectures", None) or [""])[0]
    for cls, classes in CLASSES.items():
        found = classes.get(type(config), None)
        if found is not None and saved == found.__name__:
            return cls
    return AutoModel
