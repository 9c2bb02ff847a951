"""A pretrained model, batches of texts for it, and measures of agreement of its outputs."""

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
TEXTS, TOKENS = 64, 2048  # largest batch

# the classes with a head that we compare, by config
CLASSES = {
    AutoModelForSequenceClassification: MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    AutoModelForCausalLM: MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoModelForMaskedLM: MODEL_FOR_MASKED_LM_MAPPING,
}


class Agreement(NamedTuple):
    """Measure of how close a mapping's outputs are to softmax's.

    Attributes:
        name: name with its unit.
        measure: maps softmax's outputs, the mapping's, and the mask of tokens (B, T) to (B,).
    """

    name: str
    measure: Callable[[Tensor, Tensor, Tensor], Tensor]


def cosine(softmax: Tensor, ours: Tensor, mask: Tensor) -> Tensor:
    """Cosine of embeddings (B, D) of length 1."""
    return (softmax * ours).sum(-1)


def divergence(softmax: Tensor, ours: Tensor, mask: Tensor) -> Tensor:
    """KL(p || q) = sum_i p_i log(p_i / q_i) in nats, p softmax's; mean over the tokens that count.

    Takes the scores of next words (B, T, V) or classes (B, C).
    """
    if softmax.dim() == 2:
        softmax, ours, mask = softmax.unsqueeze(1), ours.unsqueeze(1), mask[:, :1]
    # text by text to save memory
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
    """Indices of texts, and the model's inputs for them."""

    places: list[int]
    inputs: Any


@dataclass
class Reader:
    """Callable model with its tokenizer.

    Attributes:
        forward: the model, or its encoder.
        limit: most tokens of a text.
        causal: whether its logits predict the next word.
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
        """Return logits, in the task's order of labels, or embeddings of length 1 (B, D).

        An embedding is the mean over the tokens.
        """
        inputs = batch.inputs.to(self.model.device)
        outputs = self.forward(**inputs)
        if self.agreement is not COSINE:
            return outputs.logits if self.order is None else outputs.logits[:, self.order]
        mask = inputs["attention_mask"].unsqueeze(-1)
        return F.normalize((outputs.last_hidden_state * mask).sum(1) / mask.sum(1), dim=-1)

    def scores(self, batch: Batch, outputs: Tensor) -> Tensor | None:
        """Return the outputs that predictions need, (B, D), or None for outputs by token.

        For a causal model, -log p of the text's words except the first, (B, 1).
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
        """Return the number of tokens of each input, uncut.

        Raises:
            ValueError: an input has no token, or one that the model does not know.
        """
        with quiet_transformers():  # no warning about long texts
            found = self.tokenizer(*_columns(inputs))["input_ids"]
        if [] in found:
            text = inputs[found.index([])][0]
            raise ValueError(f"{text!r} has no token that the model's tokenizer knows; remove it")
        check_vocabulary(chain(*found), self.model.config)
        return [len(ids) for ids in found]

    def batches(self, inputs: Sequence[tuple[str, ...]]) -> list[Batch]:
        """Batch inputs by length, up to TEXTS and, if several, TOKENS; raises as `lengths`."""
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
    """Load the model, on the GPU if there is one.

    Args:
        name: a folder, a hub id, or pkg://package/folder.
        embed: leave out the head.
        task: task that the model must be a classifier for.

    Raises:
        ValueError: the model cannot be loaded, is no classifier for the task or names other labels.
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
    """Return the Auto class with the model's head; AutoModel for an unsupported head."""
    saved = (getattr(config, "architectures", None) or [""])[0]
    for cls, classes in CLASSES.items():
        found = classes.get(type(config), None)
        if found is not None and saved == found.__name__:
            return cls
    return AutoModel
