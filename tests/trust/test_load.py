"""Thousands of forward and backward passes, with all that changes between, leave nothing behind."""

import gc
import random
from collections import Counter
from typing import Any, NamedTuple

import psutil
import pytest
import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

from sparse_attn import SparsitySchedule, patch_model, patched, unpatch_model
from sparse_attn.inspection import record_attention
from sparse_attn.kernels import by_head
from sparse_attn.mappings import get_spec
from tests.marks import soak

WARM_UP = 500
# the name, what it is patched with, and the schedule of one of its parameters
SETTINGS: list[tuple[str, dict[str, Any], SparsitySchedule | None]] = [
    ("softmax", {}, None),
    ("r-softmax", {}, SparsitySchedule("r", 0.0, 0.4)),
    ("t-softmax", {"t": 1.5, "learn": "t", "per": "head"}, None),
    ("sparsemax", {}, None),
    ("entmax", {"alpha": 1.2}, SparsitySchedule("alpha", 1.1, 1.9, "cosine")),
    ("sigsoftmax", {"learn": "bias"}, None),
    ("plif", {"knots": 4, "bound": 5.0}, None),
    ("top-k-softmax", {"k": 2.0}, None),
    ("mixed-sparsemax", {"mix": 0.0}, SparsitySchedule("mix", 0.0, 1.0, "cubic")),
]
CALLS_A_ROUND = 5 * len(SETTINGS)
MIB = 2**20


class Live(NamedTuple):
    """What is alive, and the memory of the process."""

    tensors: int
    modules: int
    hooks: int
    objects: Counter[str]
    resident: int


def live(model: nn.Module) -> Live:
    by_head._filled.cache_clear()  # bounded, but filled by the values of a schedule
    gc.collect()
    objects = gc.get_objects()
    hooks = sum(
        len(table)
        for module in model.modules()
        for name, table in vars(module).items()
        if name.endswith("_hooks")
    )
    return Live(
        sum(issubclass(type(thing), torch.Tensor) for thing in objects),
        sum(issubclass(type(thing), nn.Module) for thing in objects),
        hooks,
        Counter(type(thing).__name__ for thing in objects),
        psutil.Process().memory_info().rss,
    )


def train(model: nn.Module, sizes: random.Random, **more: Any) -> None:
    """One forward and backward pass at a batch size and a length of its own."""
    rows, length = sizes.randint(1, 5), sizes.randint(1, 24)
    mask = (torch.arange(length) < torch.randint(1, length + 1, (rows, 1))).long()
    labels = torch.randint(0, 2, (rows,))
    ids = torch.randint(0, 30, (rows, length))
    model(input_ids=ids, attention_mask=mask, labels=labels, **more).loss.backward()
    model.zero_grad()


def go_round(model: nn.Module, sizes: random.Random) -> None:
    """CALLS_A_ROUND passes; the model ends as it began."""
    for name, arguments, schedule in SETTINGS:
        patch_model(model, name, **arguments)
        train(model, sizes)
        if schedule is not None:
            schedule.apply(model, sizes.random())
        with record_attention(model, special_ids=[0, 1], weights=sizes.random() < 0.5) as record:
            train(model, sizes)
        assert record.calls
        train(model, sizes, output_attentions=True)
        with patched(model, "sparsegen", lam=0.3):
            train(model, sizes)
        unpatch_model(model)
        train(model, sizes)


def growth(calls: int) -> tuple[Live, Live]:
    """What is alive after WARM_UP passes, and after so many in all."""
    config = BertConfig(
        vocab_size=30,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        max_position_embeddings=24,
    )
    model, sizes = BertForSequenceClassification(config).train(), random.Random(0)
    live(model)  # Python keeps what the first look itself has made
    found = []
    for limit in (WARM_UP, calls - WARM_UP):
        for _ in range(-(-limit // CALLS_A_ROUND)):
            go_round(model, sizes)
        found.append(live(model))
    return found[0], found[1]


def test_every_way_to_compute_is_among_them() -> None:
    kernels = {get_spec(name).kernel is None for name, _, _ in SETTINGS}
    assert kernels == {True, False}


@pytest.mark.slow
@pytest.mark.parametrize("calls", [1500, *soak(5000)])
def test_memory_stays_flat(calls: int) -> None:
    before, after = growth(calls)
    assert (after.tensors, after.modules, after.hooks) == (
        before.tensors,
        before.modules,
        before.hooks,
    )
    grown = after.objects - before.objects - Counter(Counter=1, Live=1)  # the first look
    # Python's and torch's caches may keep a tuple; what leaks does so in every round
    assert max(grown.values(), default=0) < (calls - WARM_UP) // CALLS_A_ROUND, grown
    assert after.resident - before.resident < 4 * MIB
