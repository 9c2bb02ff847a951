"""A pretrained model, batches of texts for it, and measures of agreement of its outputs."""

from __future__ import annotations

import inspect
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
    BatchEncoding,
    PreTrainedModel,
)

from sparse_attn.comparison.windows import Window
from sparse_attn.evaluation.labels import class_order, with_all_labels
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

LONGEST = 512  # tokens of a text, unless others are asked for; the rest is cut off
TEXTS, TOKENS = 64, 2048  # largest batch
ROWS = 512  # tokens whose scores of all words are computed with at once

# the classes with a head that we compare, by config
CLASSES = {
    AutoModelForSequenceClassification: MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    AutoModelForCausalLM: MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoModelForMaskedLM: MODEL_FOR_MASKED_LM_MAPPING,
}


Inputs = Sequence[tuple[Any, ...]]  # one or two texts each, or all a `Window`


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
    # text by text, and some tokens at a time, to save memory
    found = []
    for text in zip(softmax, ours, mask.bool(), strict=True):
        total = softmax.new_zeros((), dtype=torch.float64)
        for p, q, use in zip(*(side.split(ROWS) for side in text), strict=True):
            logs = q[use].log_softmax(-1), p[use].log_softmax(-1)
            total += F.kl_div(*logs, reduction="sum", log_target=True)
        found.append(total / text[2].sum())
    return torch.stack(found)


def distance(softmax: Tensor, ours: Tensor, mask: Tensor) -> Tensor:
    """|difference| of predicted scores (B, 1)."""
    return (softmax - ours).abs().squeeze(-1)


COSINE = Agreement("cosine", cosine)
DIVERGENCE = Agreement("KL, nats", divergence)
DISTANCE = Agreement("|difference|", distance)


class Batch(NamedTuple):
    """Indices of texts, and the model's inputs for them; of windows, how many tokens score."""

    places: list[int]
    inputs: Any
    scored: int | None = None

    @property
    def counted(self) -> Tensor:
        """Mask of the tokens whose outputs count, (B, T)."""
        mask: Tensor = self.inputs["attention_mask"]
        return mask if self.scored is None else mask[:, : self.scored]


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

        An embedding is the mean over the tokens. Of windows, the logits of the scored tokens.
        """
        inputs = batch.inputs.to(self.model.device)
        if batch.scored is not None:
            few = {"logits_to_keep": batch.scored + 1} if self._keeps_few else {}
            return self.forward(**inputs, **few, use_cache=False).logits[:, -batch.scored - 1 : -1]
        outputs = self.forward(**inputs)
        if self.agreement is not COSINE:
            return outputs.logits if self.order is None else outputs.logits[:, self.order]
        mask = inputs["attention_mask"].unsqueeze(-1)
        return F.normalize((outputs.last_hidden_state * mask).sum(1) / mask.sum(1), dim=-1)

    def scores(self, batch: Batch, outputs: Tensor) -> Tensor | None:
        """Return the outputs that predictions need, (B, D), or None for outputs by token.

        For a causal model, -log p of the words that it predicts, all but a text's first, and
        whether it gives each of them the largest p, (B, 2).
        """
        if not self.causal:
            return outputs if outputs.dim() == 2 else None
        ids = batch.inputs["input_ids"].to(outputs.device)
        if batch.scored is not None:
            pairs = list(zip(outputs, ids[:, -batch.scored :], strict=True))
        else:
            counts = batch.inputs["attention_mask"].sum(1).tolist()
            texts = zip(outputs, ids, counts, strict=True)
            pairs = [(logits[: count - 1], words[1:count]) for logits, words, count in texts]
        return torch.stack([_predicted(*pair) for pair in pairs])

    @property
    def _keeps_few(self) -> bool:
        return "logits_to_keep" in inspect.signature(self.model.forward).parameters

    def fit(self, window: Window) -> Window:
        """Cut a window after the most tokens to read."""
        if len(window.ids) <= self.limit:
            return window
        return Window(window.ids[: self.limit], min(window.scored, self.limit - 1))

    def predicted(self, inputs: Inputs) -> list[int]:
        """Return the number of words of each input that a causal model predicts."""
        lengths = self.lengths(inputs)
        return [
            self.fit(given).scored if isinstance(given, Window) else min(length, self.limit) - 1
            for given, length in zip(inputs, lengths, strict=True)
        ]

    def lengths(self, inputs: Inputs) -> list[int]:
        """Return the number of tokens of each input, uncut.

        Raises:
            ValueError: an input has no token, or one that the model does not know.
        """
        if isinstance(inputs[0], Window):
            return [len(window.ids) for window in _windows(inputs)]
        with quiet_transformers():  # no warning about long texts
            found = self.tokenizer(*_columns(inputs))["input_ids"]
        if [] in found:
            text = inputs[found.index([])][0]
            raise ValueError(f"{text!r} has no token that the model's tokenizer knows; remove it")
        check_vocabulary(chain(*found), self.model.config)
        return [len(ids) for ids in found]

    def batches(self, inputs: Inputs) -> list[Batch]:
        """Batch inputs by length, up to TEXTS and, if several, TOKENS; raises as `lengths`."""
        if isinstance(inputs[0], Window):
            windows = map(self.fit, _windows(inputs))
            return [
                Batch([place], _as_batch(window), window.scored)
                for place, window in enumerate(windows)
            ]
        lengths = [min(length, self.limit) for length in self.lengths(inputs)]
        groups: list[list[int]] = []
        for place in sorted(range(len(inputs)), key=lengths.__getitem__):
            fits = groups and len(groups[-1]) < TEXTS
            if not fits or (len(groups[-1]) + 1) * lengths[place] > TOKENS:
                groups.append([])
            groups[-1].append(place)
        return [Batch(places, self._encoded([inputs[p] for p in places])) for places in groups]

    def _encoded(self, inputs: Inputs) -> Any:
        return self.tokenizer(
            *_columns(inputs),
            padding=True,
            truncation=True,
            max_length=self.limit,
            return_tensors="pt",
        )


def _columns(inputs: Inputs) -> list[list[str]]:
    return [list(column) for column in zip(*inputs, strict=True)]


def _windows(inputs: Inputs) -> list[Window]:
    return [given for given in inputs if isinstance(given, Window)]


def _as_batch(window: Window) -> BatchEncoding:
    ids = torch.tensor([window.ids])
    return BatchEncoding({"input_ids": ids, "attention_mask": torch.ones_like(ids)})


def _predicted(logits: Tensor, words: Tensor) -> Tensor:
    """Sum -log p of these words, and whether each is the likeliest, in float64, (2,)."""
    nll, likeliest = logits.new_zeros((), dtype=torch.float64), True
    for part, true in zip(logits.split(ROWS), words.split(ROWS), strict=True):
        nll += F.cross_entropy(part, true, reduction="none").double().sum()
        likeliest = likeliest and bool((part.argmax(-1) == true).all())
    return torch.stack([nll, torch.full_like(nll, likeliest)])


def open_reader(
    name: str,
    *,
    embed: bool = False,
    task: Task | None = None,
    max_length: int | None = None,
    trust_remote_code: bool = False,
) -> Reader:
    """Load the model, on the GPU if there is one.

    Args:
        name: a folder, a hub id, pkg://package/folder, or a GGUF file.
        embed: leave out the head.
        task: task that the model must be a classifier for; its rows may lack a class of the model.
        max_length: tokens after which texts are cut; None for LONGEST, or what the model reads.

    Raises:
        ValueError: the model cannot be loaded, is no classifier for the task, names other labels
            or reads fewer tokens.
    """
    path = resolve_model(name, "MODEL", gguf=True)
    with quiet_transformers():
        config, tokenizer = load_tokenizer(path, trust_remote_code)
        cls = (
            AutoModelForSequenceClassification
            if task
            else AutoModel
            if embed
            else class_with_head(config)
        )
        model = load_model(path, cls, trust_remote_code=trust_remote_code)
        model.to(choose_device("auto"))
    task = task and with_all_labels(task, config)
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
    most = longest(config, tokenizer, model)
    if max_length is not None and max_length > most:
        raise ValueError(f"--max_length {max_length}: {name} reads at most {most:.0f} tokens")
    return Reader(
        model,
        model.get_encoder() if alone else model,
        tokenizer,
        int(min(max_length or LONGEST, most)),
        agreement,
        cls is AutoModelForCausalLM,
        order,
    )


def class_with_head(config: Any) -> Any:
    """Return the Auto class with the model's head; AutoModel for an unsupported head."""
    saved = (getattr(config, "architectures", None) or [""])[0]
    for cls, classes in CLASSES.items():
        found = classes.get(type(config), None)
        if found is not None and saved == found.__name__:
            return cls
    return AutoModel
