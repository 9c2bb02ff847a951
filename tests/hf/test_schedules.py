"""SparsitySchedule and its callback: shapes, errors, a Trainer run, a resumed run."""

import json
import math

import numpy as np
import pytest
import torch

from sparse_attn import (
    SparsitySchedule,
    SparsityScheduleCallback,
    patch_model,
)

from . import heads
from .families import BY_NAME, padding, tokens
from .helpers import mappings_of

BERT = BY_NAME["bert"]
STEPS = 6


@pytest.mark.parametrize(
    ("shape", "share", "expected"),
    [
        ("linear", 0.25, 0.25),
        ("cosine", 0.25, (1 - math.cos(math.pi / 4)) / 2),
        ("cosine", 0.5, 0.5),
        ("cubic", 0.5, 0.875),
    ],
)
def test_shapes(shape, share, expected):
    schedule = SparsitySchedule(initial=0.1, final=0.5, shape=shape, begin=0.2, end=0.6)
    assert schedule.value(0.2 + 0.4 * share) == pytest.approx(0.1 + 0.4 * expected)


@pytest.mark.parametrize("shape", ["linear", "cosine", "cubic"])
def test_ends_are_exact_and_the_way_is_monotone(shape):
    schedule = SparsitySchedule(initial=0.7, final=0.1, shape=shape, begin=0.25, end=0.75)
    assert [schedule.value(x) for x in (0.0, 0.1, 0.25)] == [0.7] * 3
    assert [schedule.value(x) for x in (0.75, 0.9, 1.0)] == [0.1] * 3
    values = [schedule.value(x / 100) for x in range(101)]
    assert values == sorted(values, reverse=True)
    assert len(set(values[25:76])) == 51


def test_a_step_where_begin_is_end():
    schedule = SparsitySchedule(initial=0.0, final=0.4, begin=0.5, end=0.5)
    assert [schedule.value(x) for x in (0.0, 0.49, 0.5, 1.0)] == [0.0, 0.0, 0.4, 0.4]


def test_apply_moves_the_mappings_that_have_the_parameter_and_returns_the_value():
    model = patch_model(BERT.build(num_hidden_layers=4), "r-softmax", layers=[0])
    patch_model(model, "entmax", layers=[1, 3])
    assert SparsitySchedule("alpha", 1.0, 2.0).apply(model, 0.25) == 1.25
    first, second, third, fourth = mappings_of(model)
    assert first.value("r") == 0.15
    assert second.value("alpha") == fourth.value("alpha") == 1.25
    assert third.name == "softmax"


def trainer(folder, schedule, **options):
    """On random sentences with padding and labels."""
    model = patch_model(BERT.build("BertForSequenceClassification"), "r-softmax", r=0.0)
    torch.manual_seed(0)
    ids, mask = tokens(rows=3 * STEPS), padding().repeat(STEPS, 1)
    return heads.trainer(
        model, heads.Rows({"input_ids": ids, "attention_mask": mask, "labels": ids[:, 0] % 2}),
        folder, [SparsityScheduleCallback(schedule)], dropout=True,
        **{"max_steps": STEPS, "per_device_train_batch_size": 3, "optim": "adamw_torch",
           "learning_rate": 1e-2, "lr_scheduler_type": "linear", **options},
    )  # fmt: skip


class Watch:
    """The value of r that each training step really used."""

    def __init__(self, model):
        self.values = []
        first = next(mappings_of(model))
        first.register_forward_pre_hook(lambda mapping, _: self.values.append(mapping.value("r")))


def test_every_step_uses_its_value_and_the_log_has_it(tmp_path):
    schedule = SparsitySchedule(final=0.6)
    run = trainer(tmp_path, schedule)
    used = Watch(run.model)
    run.train()
    assert used.values == pytest.approx([0.6 * step / STEPS for step in range(STEPS)])
    assert next(mappings_of(run.model)).value("r") == 0.6
    logs = [log for log in run.state.log_history if "loss" in log]
    expected = [0.6 * (step + 1) / STEPS for step in range(STEPS)]
    assert [log["sparsity/r"] for log in logs] == pytest.approx(expected)
    assert all(math.isfinite(log["loss"]) for log in logs)


def test_callbacks_of_other_parameters_go_together(tmp_path):
    run = trainer(tmp_path, SparsitySchedule(final=0.6))
    patch_model(run.model, "t-softmax", layers=[1])
    run.add_callback(SparsityScheduleCallback(SparsitySchedule("t", 8.0, 2.0)))
    run.train()
    first, second = mappings_of(run.model)
    assert (first.value("r"), second.value("t")) == (0.6, 2.0)


def test_the_callback_state_is_the_schedule(tmp_path):
    schedule = SparsitySchedule("t", np.float32(3.0), torch.tensor(1.0), "cubic", 0.1, 0.9)
    callback = SparsityScheduleCallback(schedule)
    stored = json.loads(json.dumps(callback.state()))
    assert SparsityScheduleCallback.from_state(stored).schedule == schedule


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (SparsitySchedule(final=1.5), r"r=1\.5 is out of range"),
        (SparsitySchedule(initial=-0.5), r"r=-0\.5 is out of range"),
        (SparsitySchedule("t", 1.0, 2.0), "parameter='t'"),
    ],
)
def test_a_wrong_end_stops_the_run_before_it_starts(schedule, message, tmp_path):
    run = trainer(tmp_path, schedule)
    used = Watch(run.model)
    before = {mapping.value("r") for mapping in mappings_of(run.model)}
    with pytest.raises(ValueError, match=message):
        run.train()
    with pytest.raises(ValueError, match=message):  # in a loop of one's own
        schedule.apply(run.model, 0.25)
    assert {mapping.value("r") for mapping in mappings_of(run.model)} == before
    assert used.values == []


def test_gradient_accumulation_and_epochs(tmp_path):
    """Steps are optimizer steps: all the batches of one step use one value."""
    schedule = SparsitySchedule(final=0.6)
    run = trainer(tmp_path, schedule, max_steps=-1, num_train_epochs=2,
                  gradient_accumulation_steps=2)  # fmt: skip
    used = Watch(run.model)
    run.train()
    total = run.state.max_steps
    assert used.values == pytest.approx([0.6 * (i // 2) / total for i in range(2 * total)])
