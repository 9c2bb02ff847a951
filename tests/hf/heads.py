"""What the tests of both head patchers share: a subject, traces of a patch, runs of Trainer."""

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
import transformers
from torch import Tensor
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments

AUTO = {
    "MaskedLM": transformers.AutoModelForMaskedLM,
    "ConditionalGeneration": transformers.AutoModelForSeq2SeqLM,
    "SequenceClassification": transformers.AutoModelForSequenceClassification,
    "ImageClassification": transformers.AutoModelForImageClassification,
}


class Subject:
    """A tiny model class whose head is patched."""

    cls: str
    patch: ClassVar[Callable[..., Any]]
    unpatch: ClassVar[Callable[..., Any]]
    key: ClassVar[str]  # of the config entry
    kinds: ClassVar[dict[str, dict[str, Any]]]  # of heads, as arguments of `patch`

    @property
    def auto(self) -> Any:
        """The Auto class that loads it."""
        found = (auto for end, auto in AUTO.items() if self.cls.endswith(end))
        return next(found, transformers.AutoModelForCausalLM)

    def build(self, **changes: Any) -> Any:
        raise NotImplementedError

    def head(self, model: Any) -> Any:
        raise NotImplementedError

    def patched(self, kind: str) -> Any:
        """A model with a head of this kind, which beside weight and bias is not as it starts."""
        model = self.patch(self.build(), **copy.deepcopy(self.kinds[kind]))
        with torch.no_grad():
            for name, parameter in self.head(model).named_parameters():
                if name not in ("weight", "bias"):
                    parameter.add_(torch.randn_like(parameter).mul(0.5))
        return model


def unlabelled(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in inputs.items() if name != "labels"}


def run(model: Any, inputs: dict[str, Tensor]) -> Any:
    """Run a copy, whose weights lie where PyTorch puts new ones.

    Loaded ones may lie elsewhere, which changes the last bit of a product with one row.
    """
    with torch.no_grad():
        return copy.deepcopy(model)(**inputs)


def fingerprint(model: Any, inputs: dict[str, Tensor]) -> dict[str, Any]:
    """All that unpatching a head must bring back."""
    output = run(model, inputs)
    loss = None if output.get("loss") is None else output.loss.item()
    return {**trace(model), "logits": output.logits.tolist(), "loss": loss}


def trace(model: Any) -> dict[str, Any]:
    """All that unpatching must bring back, but for what the model computes."""
    return {
        "state": {name: tensor.tolist() for name, tensor in model.state_dict().items()},
        "shared": shared(model),
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


def shared(model: Any) -> list[list[str]]:
    """All names of each parameter."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return list(names.values())


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
    return Trainer(model, settings, train_dataset=data, eval_dataset=data, callbacks=[*callbacks])
