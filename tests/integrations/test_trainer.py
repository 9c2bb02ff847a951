"""AttentionStatistics: numbers of a fixed batch in every log of Trainer, and the same training."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

from sparse_attn import AttentionStatistics, patch_model
from sparse_attn.inspection import record_attention
from tests.hf import heads
from tests.hf.families import BY_NAME, padding, tokens

BATCH = {"input_ids": tokens(rows=3), "attention_mask": padding()}
SPECIAL = BATCH["input_ids"][0, :1].tolist()
STATISTICS = ("zeros", "support", "entropy", "special")


class Logger(TrainerCallback):
    """Keeps what a logger such as TensorBoard's is told, by the step."""

    def __init__(self) -> None:
        self.logs: list[tuple[int, dict[str, float]]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        self.logs.append((state.global_step, dict(logs)))


def trained(folder: Path, mapping: str | None, measured: bool = True) -> tuple[Any, Logger]:
    """A run of four steps with dropout, measured after two and after four."""
    torch.manual_seed(0)
    model = BY_NAME["bert"].build("BertForSequenceClassification")
    if mapping is not None:
        patch_model(model, mapping)
    rows = {name: tensor.repeat(4, 1) for name, tensor in BATCH.items()}
    data = heads.Rows({**rows, "labels": torch.arange(12) % 2})
    logger = Logger()  # before the statistics, as Trainer's own loggers
    trainer = heads.trainer(
        model, data, folder, [logger], dropout=True, max_steps=4, per_device_train_batch_size=3
    )
    if measured:
        trainer.add_callback(AttentionStatistics(trainer, BATCH, 2, special_ids=SPECIAL))
    trainer.train()
    return trainer, logger


@pytest.mark.parametrize("mapping", ["sparsemax", None])
def test_numbers_arrive_in_every_log(tmp_path: Path, mapping: str | None) -> None:
    trainer, logger = trained(tmp_path, mapping)
    with torch.no_grad(), record_attention(trainer.model.eval(), special_ids=SPECIAL) as record:
        trainer.model(**BATCH)
    expected = {
        f"attention/layer_{layer}/{name}": float(mean)
        for name in STATISTICS
        for layer, mean in enumerate(getattr(record, name).mean(1))
    }
    measured = [(step, log) for step, log in logger.logs if "attention/layer_0/zeros" in log]
    assert [step for step, _ in measured] == [2, 4]
    found = {name: x for name, x in measured[1][1].items() if name != "epoch"}
    assert found == pytest.approx(expected, abs=1e-6)
    assert (found["attention/layer_0/zeros"] > 0) == (mapping is not None)
    assert {**measured[1][1], "step": 4} in trainer.state.log_history
    # the loss of a measured step is logged as well
    assert [step for step, log in logger.logs if "loss" in log] == [1, 2, 3, 4]


@pytest.mark.parametrize("mapping", ["sparsemax", None])
def test_training_is_the_same_with_and_without(tmp_path: Path, mapping: str | None) -> None:
    runs = [trained(tmp_path, mapping, measured)[0].model for measured in (True, False)]
    measured, plain = (model.state_dict() for model in runs)
    assert all(torch.equal(tensor, plain[name]) for name, tensor in measured.items())
    assert all(module.training for module in runs[0].modules())
