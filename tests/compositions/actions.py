"""What a user asks of a model, and what its answer must equal."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .subjects import Subject, inputs

NEW = 5
Answer = dict[str, Tensor]


@dataclass(frozen=True)
class Action:
    """A call, and another one with the same answer."""

    name: str
    answer: Callable[[Any, Subject], Answer]
    expected: Callable[[Any, Subject], Answer]
    generates: bool = False
    own: bool = False  # of the plain model it is another: other draws, or another zero of logits

    def __str__(self) -> str:
        return self.name

    def suits(self, subject: Subject) -> bool:
        return subject.generates or not self.generates


def halves(subject: Subject) -> list[dict[str, Tensor]]:
    """The batch in two."""
    batch = inputs(subject)
    pairs = zip(*(tensor.chunk(2) for tensor in batch.values()), strict=True)
    return [dict(zip(batch, pair, strict=True)) for pair in pairs]


def step(model: Any, subject: Subject, parts: bool = False, **options: Any) -> Answer:
    """Loss, logits and all gradients of a step in training mode, its batch whole or in two."""
    model.train()
    chunks = halves(subject) if parts else [inputs(subject)]
    torch.manual_seed(4)
    outputs = [model(**chunk, **options) for chunk in chunks]
    loss = sum(output.loss for output in outputs) / len(chunks)
    loss.backward()
    logits = torch.cat([output.logits for output in outputs])
    found = {"loss": loss.detach(), "logits": normalised(logits, subject)}
    for output in outputs if options.get("output_attentions") else ():
        found |= {f"attention {i}": a.detach() for i, a in enumerate(output.attentions)}
    return found | gradients(model)


def normalised(logits: Tensor, subject: Subject) -> Tensor:
    """Logits up to a constant: a patched head returns log p."""
    logits = logits.detach().float()
    return logits.log_softmax(-1) if subject.log else logits


def gradients(model: Any) -> Answer:
    """Gradients by the names that the parameters have without a wrapper."""
    wrappers = ("module.", "_orig_mod.", "base_model.model.")
    found = {}
    for name, parameter in model.named_parameters():
        for wrapper in wrappers:
            name = name.removeprefix(wrapper)
        if parameter.grad is not None:
            found[f"gradient of {name}"] = parameter.grad.clone()
    return found


def dropout(model: Any, subject: Subject, **options: Any) -> Answer:
    for module in model.modules():
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.3
    return step(model, subject, **options)


def prompt(subject: Subject) -> dict[str, Tensor]:
    """Rows padded on the left."""
    batch = {name: tensor for name, tensor in inputs(subject).items() if name != "labels"}
    return {name: tensor.flip(-1) for name, tensor in batch.items()}


def generate(**options: Any) -> Callable[[Any, Subject], Answer]:
    """Greedy text, its logits, and its scores after all processors."""

    def answer(model: Any, subject: Subject) -> Answer:
        result = model.eval().generate(
            **prompt(subject),
            **{"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False, **options},
            output_logits=True,
            output_scores=True,
            return_dict_in_generate=True,
        )
        return {
            "text": result.sequences[:, -NEW:],
            "logits": normalised(torch.stack(result.logits, 1), subject),
            "probabilities": torch.stack(result.scores, 1).float().softmax(-1),
        }

    return answer


@torch.no_grad()
def padded(model: Any, subject: Subject) -> Answer:
    """Logits of the last token of rows padded on the left."""
    logits = model.eval()(**prompt(subject)).logits
    return {"logits": normalised(logits[:, -1] if subject.generates else logits, subject)}


@torch.no_grad()
def alone(model: Any, subject: Subject) -> Answer:
    """The same, each row by itself and without padding."""
    rows = zip(*prompt(subject).values(), strict=True)
    found = [model.eval()(input_ids=ids[mask == 1][None]).logits for ids, mask in rows]
    logits = torch.cat([row[:, -1] if subject.generates else row for row in found])
    return {"logits": normalised(logits, subject)}


def same(name: str, answer: Callable[[Any, Subject], Answer], **flags: bool) -> Action:
    """A call whose answer does not depend on which implementation computes it."""
    return Action(name, answer, answer, **flags)


STEP = same("training step", step)
ACTIONS = [
    STEP,
    same("dropout", dropout, own=True),
    Action("accumulation", lambda m, s: step(m, s, parts=True), step),
    same("output_attentions", lambda m, s: step(m, s, output_attentions=True)),
    Action("left padding", padded, alone),
    Action("generate, dynamic cache", generate(), generate(use_cache=False), True),
    Action("generate, static cache", generate(cache_implementation="static"), generate(), True),
    Action("generate, chunked prefill", generate(prefill_chunk_size=4), generate(), True),
    same("generate, guidance_scale", generate(guidance_scale=1.7), generates=True),
    same(
        "generate, repetition_penalty", generate(repetition_penalty=1.3), generates=True, own=True
    ),
    same("generate, no_repeat_ngram_size", generate(no_repeat_ngram_size=2), generates=True),
]
