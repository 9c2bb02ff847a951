"""Threads that run, record and patch models of their own do not see each other."""

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
)

from sparse_attn import patch_lm_head, patch_model, patch_multilabel_head, patched, unpatch_model
from sparse_attn.inspection import record_attention
from tests.marks import first

CALLS, FEWER = 200, 80
SIZES: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
    "initializer_range": 0.5,  # scores far enough apart for zeros
}
SHAPES = [(rows, length) for rows in (1, 3) for length in (2, 7, 19)]
Batch = dict[str, Tensor]
Outcome = list[list[Tensor]]


@pytest.fixture(autouse=True)
def _threads_that_take_turns_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(before)


def plain_bert() -> nn.Module:
    return BertForSequenceClassification(BertConfig(**SIZES, num_labels=3)).eval()


def bert(mapping: str, **arguments: Any) -> nn.Module:
    return patch_model(plain_bert(), mapping, **arguments)


def llama(mapping: str, **arguments: Any) -> nn.Module:
    return patch_model(LlamaForCausalLM(LlamaConfig(**SIZES)).eval(), mapping, **arguments)


def batch(model: nn.Module, rows: int, length: int) -> Batch:
    """Padded rows with labels of the kind that the model's head takes."""
    ids = torch.randint(0, 40, (rows, length))
    mask = (torch.arange(length) < torch.randint(1, length + 1, (rows, 1))).long()
    if isinstance(model, LlamaForCausalLM):
        labels = ids
    elif hasattr(model.classifier, "threshold"):
        labels = torch.randint(0, 2, (rows, 3)).float()
    else:
        labels = torch.randint(0, 3, (rows,))
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def work(model: nn.Module, batches: list[Batch], calls: int = CALLS) -> Outcome:
    """Logits, loss and the sums of all gradients of so many calls."""
    found = []
    for call in range(calls):
        output = model(**batches[call % len(batches)])
        output.loss.backward()
        gradients = [p.grad.sum() for p in model.parameters() if p.grad is not None]
        model.zero_grad()
        found.append([output.logits.detach(), output.loss.detach(), torch.stack(gradients)])
    return found


def at_once(*jobs: Callable[[], Any]) -> list[Any]:
    """The result of each, computed in a thread of its own; all start together."""
    start = Barrier(len(jobs))

    def run(job: Callable[[], Any]) -> Any:
        start.wait()
        return job()

    with ThreadPoolExecutor(len(jobs)) as pool:
        return list(pool.map(run, jobs))


def assert_same(found: Outcome, alone: Outcome) -> None:
    """Every call gives what the same batch gives alone."""
    for call, ours in enumerate(found):
        assert all(map(torch.equal, ours, alone[call % len(alone)])), f"call {call}"


PAIRS: dict[str, tuple[Callable[[], nn.Module], Callable[[], nn.Module]]] = {
    "one kind of model": (
        lambda: patch_multilabel_head(bert("r-softmax", r=0.4), "r-softmax"),
        lambda: patch_multilabel_head(bert("sparsemax"), "sparsemax"),
    ),
    "learned, by the reference": (
        lambda: bert("plif", knots=6, bound=4.0),
        lambda: llama("t-softmax", t=0.5, learn="t", per="head"),
    ),
    "two kinds of heads": (
        lambda: patch_multilabel_head(bert("entmax", alpha=1.3), "r-softmax"),
        lambda: patch_lm_head(llama("sigsoftmax"), "sigsoftmax", components=2),
    ),
}


@pytest.mark.parametrize("pair", first(*PAIRS))
def test_two_models_give_what_each_gives_alone(pair: str) -> None:
    models = [make() for make in PAIRS[pair]]
    batches = [[batch(model, *shape) for shape in SHAPES] for model in models]
    alone = [work(*job, len(SHAPES)) for job in zip(models, batches, strict=True)]
    together = at_once(lambda: work(models[0], batches[0]), lambda: work(models[1], batches[1]))
    for found, expected in zip(together, alone, strict=True):
        assert_same(found, expected)


@pytest.mark.slow
def test_a_thread_that_records_sees_its_own_model_alone() -> None:
    models = [bert("sparsemax"), bert("sparsemax"), bert("r-softmax", r=0.4)]
    batches = [[batch(model, *shape) for shape in SHAPES] for model in models]

    def recorded(place: int) -> tuple[Outcome, list[Tensor]]:
        with record_attention(models[place], special_ids=[0]) as record:
            found = work(models[place], batches[place], FEWER)
        assert len(record.calls) == FEWER
        seen = [record.zeros, record.entropy, record.special, record.support_by_position]
        return found, [values.nan_to_num(nan=-1.0) for values in seen]

    jobs = [
        lambda: recorded(0),
        lambda: recorded(1),
        lambda: work(models[2], batches[2], FEWER),
    ]
    alone = [job() for job in jobs]
    found = at_once(*jobs)
    for place in (0, 1):
        assert_same(found[place][0], alone[place][0])
        assert_same([found[place][1]], [alone[place][1]])
    assert_same(found[2], alone[2])
    assert not torch.equal(found[0][1][0], found[1][1][0])  # each model has zeros of its own


@pytest.mark.slow
def test_patching_one_model_does_not_reach_another_that_runs() -> None:
    models = [plain_bert(), bert("t-softmax", t=0.5), plain_bert()]
    batches = [[batch(model, *shape) for shape in SHAPES] for model in models]

    def change() -> Outcome:
        for place in range(FEWER // 4):
            patch_model(models[2], ("sparsemax", "plif", "entmax")[place % 3])
            with patched(models[2], "r-softmax", r=0.2):
                work(models[2], batches[2], 1)
            unpatch_model(models[2])
        return work(models[2], batches[2], FEWER)

    jobs = [
        lambda: work(models[0], batches[0], FEWER),
        lambda: work(models[1], batches[1], FEWER),
        change,
    ]
    alone = [work(*job, len(SHAPES)) for job in zip(models, batches, strict=True)]
    for found, expected in zip(at_once(*jobs), alone, strict=True):
        assert_same(found, expected)
