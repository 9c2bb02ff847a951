"""Gradients of the training recipes of the docs, with batches of one size and another.

`python recipe_gradients.py FILE` runs the code of the pages and saves {page: {batch: gradients}}.
A batch is (rows at a time in each process, accumulated times); gradients are those of each Trainer
of the page, of one around its model if only its text speaks of Trainer, or the trained weights of
the loop with accelerate.
"""

import os
import sys
import tempfile
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from datasets import Dataset
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import Trainer, TrainerCallback, TrainingArguments
from trl import SFTTrainer

from sparse_attn import patch_model
from website import code

ROOT = Path(__file__).parents[2]
ROWS, LABELS = 8, 10
SFT, LOOP = "docs/guide/works-with.md#TRL", "docs/guide/works-with.md#accelerate"
# what a section needs from those above it
ABOVE = {"patch_model": patch_model, "files": files, "texts": ["A man plays the guitar."] * 2}
PROCESSES = int(os.environ.get("WORLD_SIZE", "1"))
IDS = [[(7 * i + 3 * j) % 90 + 5 for j in range(3 + 2 * i)] for i in range(ROWS)]


def dataset(labels: list[Any]) -> Dataset:
    return Dataset.from_dict({"input_ids": IDS, "labels": labels})


CLASSES = dataset([i % 2 for i in range(ROWS)])
SETS = dataset([[float((i + 1) * j % 3 == 1) for j in range(LABELS)] for i in range(ROWS)])
WORDS = dataset(IDS)
TEXTS = Dataset.from_dict({"text": ["word " * (20 + 5 * i) for i in range(2 * ROWS)]})
# the rows, and where the code ends that makes the model of a page without a Trainer
PAGES: dict[str, tuple[Dataset | None, str]] = {
    "docs/losses.md": (CLASSES, ""),
    "docs/heads.md": (WORDS, "model.save_pretrained("),
    "docs/multilabel.md": (SETS, "model.save_pretrained("),
    SFT: (TEXTS, ""),
    LOOP: (None, ""),
    "docs/tutorials/training.md": (CLASSES, ""),
    "docs/guide/schedules.md": (CLASSES, ""),
}
# the others load a folder that the first process has just saved
IN_TWO = tuple(PAGES)[:5]


def padded(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
    """A batch; the padding of words has no label."""
    names = ("input_ids", "attention_mask", "labels")
    full = [{"attention_mask": [1] * len(row["input_ids"]), **row} for row in rows]
    return {
        name: pad_sequence(
            [torch.tensor(row[name]) for row in full], True, -100 if name == "labels" else 0
        )
        if isinstance(full[0][name], list)
        else torch.tensor([row[name] for row in full])
        for name in names
    }


class Keep(TrainerCallback):
    """Keeps the gradients of a step."""

    def on_pre_optimizer_step(self, *args: Any, model: Any, **kwargs: Any) -> None:
        named = model.named_parameters()
        self.gradients = {n: p.grad.clone() for n, p in named if p.grad is not None}


def gradients(made: Trainer, rows: Dataset, batch: tuple[int, int]) -> dict[str, Tensor]:
    """Those of one step over the first rows by a Trainer like the one that was made."""
    keep = Keep()
    settings = replace(
        made.args,
        output_dir="step",
        per_device_train_batch_size=batch[0],
        gradient_accumulation_steps=batch[1],
        train_sampling_strategy="sequential",
        max_steps=1,
        learning_rate=0.0,
        max_grad_norm=0.0,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    for module in made.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    options = {"model": made.model, "args": settings, "train_dataset": rows, "callbacks": [keep]}
    if isinstance(made, SFTTrainer):
        SFTTrainer(**options, processing_class=made.processing_class).train()
    else:
        Trainer(**options, data_collator=padded, compute_loss_func=made.compute_loss_func).train()
    return keep.gradients


def program_of(page: str, end: str) -> str:
    """The code of a page or of its section, up to a line."""
    name, _, section = page.partition("#")
    text = (ROOT / name).read_text(encoding="utf-8")
    if section:
        text = text.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    program = code.python(text)
    if page == LOOP and PROCESSES == 1:
        assert program.count("batch_size=8") == 1
        return program.replace("batch_size=8", "batch_size=16")
    return program.partition(end)[0] if end else program


def recipes(page: str, end: str) -> list[Trainer | dict[str, Tensor]]:
    """Run the page's code; return every Trainer that it makes, or the weights of its own loop."""
    made: list[Trainer | dict[str, Tensor]] = []
    plain = Trainer.__init__

    def noted(self: Trainer, *args: Any, **kwargs: Any) -> None:
        plain(self, *args, **kwargs)
        made.append(self)

    names: dict[str, Any] = {"__name__": "__main__", **ABOVE}
    torch.manual_seed(0)
    Trainer.__init__ = noted
    try:
        exec(compile(program_of(page, end), page, "exec"), names)
    finally:
        Trainer.__init__ = plain
    if page == LOOP:
        return [{n: p.detach() for n, p in names["whole"].named_parameters()}]
    return made or [Trainer(names["model"], TrainingArguments("step"))]


def main(file: Path) -> None:
    found: dict[str, dict[tuple[int, int], list[dict[str, Tensor]]]] = {}
    size = ROWS // PROCESSES
    for page in PAGES if PROCESSES == 1 else IN_TWO:
        rows, end = PAGES[page]
        made = recipes(page, end)
        found[page] = {
            batch: [m if isinstance(m, dict) else gradients(m, rows, batch) for m in made]
            for batch in ((size, 1), (1, size))
        }
    if PartialState().is_main_process:
        torch.save(found, file)


if __name__ == "__main__":
    target = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        main(target)
        os.chdir(target.parent)
