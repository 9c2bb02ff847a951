"""What the tests of both head patchers share: traces of a patch, and runs of Trainer."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments

from .lm_heads import run


def fingerprint(model: Any, inputs: dict[str, Tensor]) -> dict[str, Any]:
    """All that unpatching a head must bring back."""
    output = run(model, inputs)
    loss = None if output.get("loss") is None else output.loss.item()
    return {**trace(model), "logits": output.logits.tolist(), "loss": loss}


def trace(model: Any) -> dict[str, Any]:
    """All that unpatching must bring back, but for what the model computes."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return {
        "state": {name: tensor.tolist() for name, tensor in model.state_dict().items()},
        "shared": list(names.values()),
        "modules": [(name, type(module)) for name, module in model.named_modules()],
        "config": model.config.to_json_string(use_diff=False),
        "attributes": sorted(vars(model)),
        "hooks": [
            len(table)
            for module in model.modules()
            for table in vars(module).values()
            if isinstance(table, dict)
        ],
        "implementations": [
            module.config._attn_implementation
            for module in model.modules()
            if hasattr(module, "config")
        ],
    }


class Rows(Dataset[dict[str, Tensor]]):
    """The rows of a batch, one by one."""

    def __init__(self, batch: dict[str, Tensor]) -> None:
        self.batch = batch

    def __len__(self) -> int:
        return len(self.batch["labels"])

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: tensor[index] for name, tensor in self.batch.items()}


def trainer(
    model: Any,
    data: Rows,
    folder: Path,
    callbacks: Sequence[TrainerCallback] = (),
    dropout: bool = False,
    **options: Any,
) -> Trainer:
    """A run by plain SGD."""
    settings = TrainingArguments(
        output_dir=str(folder),
        **{
            "use_cpu": True, "report_to": "none", "max_steps": 2, "learning_rate": 0.1,
            "optim": "sgd", "lr_scheduler_type": "constant", "per_device_train_batch_size": 6,
            "save_strategy": "no", "logging_steps": 1, "disable_tqdm": True, "seed": 1,
            "dataloader_pin_memory": False, **options,
        },
    )  # fmt: skip
    for name, module in model.named_modules():
        if not dropout and "dropout" in name and hasattr(module, "p"):
            module.p = 0.0
    return Trainer(
        model, settings, train_dataset=data, eval_dataset=data, callbacks=list(callbacks),
        compute_metrics=lambda p: {"zeros": float((p.predictions == -float("inf")).mean())},
    )  # fmt: skip
