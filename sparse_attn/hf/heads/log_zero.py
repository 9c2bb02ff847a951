"""Errors for arithmetic on log 0 that would silently give NaN or train nothing."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, PreTrainedModel
from transformers.generation.logits_process import (
    ClassifierFreeGuidanceLogitsProcessor,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
)

from sparse_attn.hf.hooks import keep_key

# private: only the caller of generate can pass processors publicly
PROCESSORS = "_get_logits_processor"  # Transformers' method, overridden in a model with zeros
GUIDANCE = (ClassifierFreeGuidanceLogitsProcessor, UnbatchedClassifierFreeGuidanceLogitsProcessor)


def watch_zeros(root: PreTrainedModel, head: nn.Module) -> None:
    """Watch the use of log p of a head that returns zeros."""
    keep_key(head.register_forward_hook(_watch_gradient))
    if hasattr(type(root), PROCESSORS):
        setattr(root, PROCESSORS, functools.partial(_processors, root))


def unwatch_zeros(root: PreTrainedModel) -> None:
    """Stop watching `generate`; a removed head keeps its hook."""
    vars(root).pop(PROCESSORS, None)


def _watch_gradient(head: nn.Module, inputs: Any, output: Tensor) -> None:
    """Forward hook of the head: no gradient may reach log 0.

    A loss on the logits with such a gradient is infinite, such as label smoothing or a divergence
    from another model's p. Trainer logs such a loss as 0.
    """
    if not output.requires_grad or torch.compiler.is_compiling():
        return
    # private: torch.func cannot be asked publicly whether a transform runs
    if torch._C._are_functorch_transforms_active():  # values are not readable
        return
    output.register_hook(functools.partial(_refuse_gradient, head, output.detach()))


def _refuse_gradient(head: Any, log_p: Tensor, gradient: Tensor) -> None:
    """Hook of the logits' gradient: raise if it is not 0 at a token of probability 0."""
    if ((log_p == -torch.inf) & (gradient != 0)).any():
        raise ValueError(
            f"mapping={head.mapping.name!r}: a loss takes log p of tokens of probability 0, which "
            "is -inf and cannot train; leave out label smoothing (label_smoothing_factor=0) and "
            "other losses over all tokens, or use a mapping without zeros, such as sigsoftmax"
        )


def _processors(
    root: PreTrainedModel, generation_config: GenerationConfig, *args: Any, **kwargs: Any
) -> LogitsProcessorList:
    """Return the processors of `generate`; refuse any that subtracts log 0 from log 0."""
    made: LogitsProcessorList = getattr(type(root), PROCESSORS)(
        root, generation_config, *args, **kwargs
    )
    name = root.get_output_embeddings().mapping.name
    if any(isinstance(processor, GUIDANCE) for processor in made):
        raise ValueError(
            f"guidance_scale={generation_config.guidance_scale}: guidance divides by the "
            f"probability without the prompt, which {name} makes exactly 0 for some tokens; leave "
            "guidance_scale out, or use a mapping without zeros in the head, such as sigsoftmax"
        )
    if made and (args or kwargs):  # continuous batching passes no arguments, and other rows
        place = len(made) - bool(generation_config.renormalize_logits)
        made.insert(place, _Check(name, generation_config))
    return made


class _Check(LogitsProcessor):
    """Raise if earlier processors turn log 0 into NaN, or exclude every token with p > 0.

    `generate` would continue with a NaN token, or with token 0.
    """

    def __init__(self, name: str, config: GenerationConfig) -> None:
        self.name = name
        self.beams = (config.num_beams or 1) > 1
        ends = [end for end in (config.eos_token_id, config.pad_token_id) if end is not None]
        self.ends = [token for end in ends for token in torch.as_tensor(end).flatten().tolist()]

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        remedy = "or use a mapping without zeros in the head, such as sigsoftmax"
        if scores.isnan().any():
            raise ValueError(
                f"{self.name} gives tokens a probability of 0, and an option of generate has made "
                "NaN of its logarithm, -inf, if the model's outputs are not NaN; leave out options "
                f"such as exponential_decay_length_penalty, {remedy}"
            )
        lost = (scores == -torch.inf).all(-1)
        for end in self.ends:  # a finished text needs no token
            lost &= input_ids[:, -1] != end
        if not self.beams and lost.any():  # a beam may have no token left
            raise ValueError(
                f"{self.name} gives few tokens a probability above 0, and the options of generate, "
                "such as no_repeat_ngram_size, suppress_tokens or bad_words_ids, exclude all of "
                f"them; relax those, {remedy}"
            )
        return scores
