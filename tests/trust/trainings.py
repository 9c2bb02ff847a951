"""Two trainings with everything that a resume has to bring back, and what they come to."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from sparse_attn.hf.checkpoints import last_complete_checkpoint
from tests.trust.killing import Command, Cut, End


@dataclass(frozen=True)
class Training:
    """A command that trains.

    Attributes:
        program: the module whose `main` it is.
        arguments: of its command line, without output_dir.
        often: more of them, for checkpoints as often as there can be.
        claim: the file by which a folder is a run's.
        weights: reads the final weights from the folder of a run.
        standing: how far the checkpoint is that a run would go on from; 0 if there is none.
        record: the parts of results.json that must not depend on kills.
    """

    program: str
    arguments: tuple[str, ...]
    often: tuple[str, ...]
    claim: str
    weights: Callable[[Path], dict[str, Tensor]]
    standing: Callable[[Path], float]
    record: tuple[str, ...]

    def start(self, folder: Path, cut: Cut | None = None, often: bool = False) -> Command:
        """Begin in a folder, or go on with the run that is there."""
        given = [*self.arguments, "--output_dir", str(folder), *(self.often if often else ())]
        resume = ["--resume"] if (folder / self.claim).exists() else []
        return Command(self.program, [*given, *resume], folder, cut)

    def go_on(self, folder: Path) -> End:
        """Undisturbed, to its end."""
        end = self.start(folder).end()
        assert end.said == "", end.said
        return end

    def finished(self, folder: Path) -> bool:
        """Whether its last file is written."""
        file = folder / "results.json"
        return file.exists() and json.loads(file.read_text()).get("status") in (None, "finished")

    def found(self, folder: Path) -> dict[str, Any]:
        """What results.json says, but for times."""
        results = json.loads((folder / "results.json").read_text())
        kept = {name: results[name] for name in self.record}
        for epoch in kept.get("epochs", ()):
            del epoch["seconds"]
        return kept


@dataclass(frozen=True)
class Undisturbed:
    """A run to the end, with which others are compared."""

    training: Training
    folder: Path
    end: End

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of its files, by the beginning of their names, which drafts share."""
        files = [path for path in self.folder.rglob("*") if path.is_file()]
        return {path.name.split(".")[0]: path.stat().st_size for path in files}

    def compare(self, folder: Path, history: list[str]) -> None:
        """Fail, and say what happened to it, where a run has come to anything else."""
        assert self.training.found(folder) == self.training.found(self.folder), history
        ours, theirs = self.training.weights(folder), self.training.weights(self.folder)
        assert ours.keys() == theirs.keys()
        for name, tensor in ours.items():
            assert torch.equal(tensor, theirs[name]), (name, history)
        files, expected = _files(folder), _files(self.folder)
        assert not any(name.startswith("checkpoint") for name in expected)
        # what a kill in the middle of taking checkpoints away has left of them
        files -= {name for name in files if name.startswith("checkpoint")}
        assert files == expected, (files ^ expected, history)


def _files(folder: Path) -> set[str]:
    """Names of the files of a run; of its log, which every start begins anew, the folder's."""
    files = {str(path.relative_to(folder)) for path in folder.rglob("*")}
    return {name for name in files if not name.startswith("runs/")}


def check_files(folder: Path) -> None:
    """Fail where one of our own files is not whole, or where drafts gather."""
    for path in folder.glob("*.json"):
        json.loads(path.read_text())
    for path in folder.glob("*.pt"):
        torch.load(path, weights_only=True)
    drafts = Counter(path.name.split(".")[0] for path in folder.rglob("*.tmp"))
    assert all(count == 1 for count in drafts.values()), drafts


def check_words(end: End, folder: Path, history: list[str]) -> None:
    """Fail unless the command names what could not be written and says what to do."""
    assert not end.killed
    # one line and no traceback; threads of TensorBoard may say more
    said = [line for line in end.said.splitlines() if line.startswith("error: ")]
    assert len(said) == 1, (end.said, history)
    for words in (
        f"error: {folder}",
        ": could not be written (",
        "freeing disk space, and repeat the com",
    ):
        assert words in said[0], (end.said, history)


def finetuning(model: Path, data: Path) -> Training:
    """GLUE, with dropout, a parameter that is learned and another that is scheduled."""
    given = {
        "task": "RTE",
        "model": model,
        "data_dir": data,
        "train.epochs": 3,
        "train.batch_size": 8,
        "train.learning_rate": 1e-2,
        "mapping.name": "mixed-t-softmax",
        "mapping.params": '{"t": 2.0, "mix": 1.0}',
        "mapping.learn": "[t]",
        "mapping.per": "head",
        "mapping.schedule.parameter": "mix",
        "mapping.schedule.initial": 0.0,
    }
    options = [text for name, value in given.items() for text in (f"--{name}", str(value))]
    return Training(
        "glue.__main__",
        ("train", *options),
        (),
        "config.json",
        lambda folder: load_file(folder / "model/model.safetensors"),
        _steps,
        ("metrics", "per_epoch", "sparsity", "predictions", "steps"),
    )


def language_model(folder: Path) -> Training:
    """An AWD-LSTM: dropouts, averaging from the second epoch on, a second stage, a mixture head."""
    line = "the cat <unk> the dog and the cat ran to the mat\n the end\n"
    for split, times in {"train": 20, "valid": 3, "test": 3}.items():
        (folder / f"ptb.{split}.txt").write_text(line * times, encoding="utf-8")
    stage = {"learning_rate": 2.0, "batch": 4, "bptt": 7, "vary": True, "epochs": 2}
    content = {
        "corpus": {"name": "ptb", "data_dir": str(folder)},
        "model": {
            **{"embedding": 8, "hidden": 10, "layers": 2, "dropout": 0.2, "dropout_hidden": 0.2},
            **{"dropout_input": 0.2, "dropout_embedding": 0.1, "weight_drop": 0.3},
            **{"alpha": 2.0, "beta": 1.0},
        },
        "head": {
            **{"kind": "mixture", "components": 2, "dropout": 0.2, "mapping": "plif"},
            **{"params": {"knots": 20}, "mapping_lr": 0.02},
        },
        "train": {**stage, "average_from": 1},
        "finetune": {**stage, "average_from": 0, "longest": 3},
        "evaluation": {"batch": 2, "test_batch": 1, "segment": 9},
        "device": "cpu",
    }
    config = folder / "awd.json"
    config.write_text(json.dumps(content))
    return Training(
        "experiments.language_modeling.__main__",
        ("train", "--config", str(config)),
        ("--checkpoint_steps", "1"),
        "config.json",
        lambda folder: torch.load(folder / "model.pt", weights_only=True),
        _seconds,
        ("epochs", "valid_perplexity", "test_perplexity", "status"),
    )


def _steps(folder: Path) -> float:
    found = last_complete_checkpoint(folder)
    return 0 if found is None else int(found.name.removeprefix("checkpoint-"))


def _seconds(folder: Path) -> float:
    file = folder / "checkpoint.pt"
    return torch.load(file, weights_only=True)["progress"]["seconds"] if file.exists() else 0
