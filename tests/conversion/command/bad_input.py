"""Wrong files, mappings and models of the command; `test_convert.py` has those of `convert`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from sparse_attn import patch_model
from sparse_attn.conversion.stages import perform
from tests.bad_input import Wrong
from tests.comparison.bad_input import BERT, CLASSIFIER, TASK, bert
from tests.conversion.command.running import parse
from tests.glue.make_glue import write_task
from tests.letters import letter_tokenizer

Call = Callable[[Path], Any]
TEXTS = [f"text {i}" for i in range(90)]


def given(
    *more: str, make: Callable[[], Any] = BERT, lines: list[str] = TEXTS, mapping: str = "entmax"
) -> Call:
    """A model on a file of texts, with further options; {} is the folder. It writes nothing."""

    def call(folder: Path) -> Any:
        torch.manual_seed(0)
        make().save_pretrained(folder / "model")
        letter_tokenizer().save_pretrained(folder / "model")
        (folder / "texts.txt").write_text("\n".join(lines) + "\n")
        write_task(folder, "MRPC", train=4, dev=8)
        words = [word.format(folder) for word in more]
        words += ["--texts", str(folder / "texts.txt"), "--out", str(folder / "out")]
        try:
            return perform(parse([str(folder / "model"), "--mapping", mapping, *words]))
        finally:
            assert not (folder / "out").exists()

    return call


def patched() -> Any:
    return patch_model(BERT(), "sparsemax")


TARGET = ("--target_zeros", "0.99")
CASES: list[tuple[str, Call, str]] = [
    ("texts", given(lines=TEXTS[:70]), "leaves 63 texts"),
    ("mapping", given(mapping="entmaxx"), "did you mean"),
    ("target", given(*TARGET), "^target_zeros=0.99"),
    ("target without a dial", given(*TARGET, mapping="sparsemax"), "^target_zeros: sparsemax"),
    ("target and value", given(*TARGET, mapping="entmax:alpha=1.5"), "alpha=1.5"),
    ("softmax", given(mapping="softmax"), "^mapping=softmax"),
    ("max-length", given("--max_length", "1"), "^--max_length 1"),
    ("patched", given(make=patched), "MODEL=.* is patched already"),
    ("texts of another kind", given(*TASK, make=bert(CLASSIFIER)), "--texts .* single texts"),
]
ROWS = [Wrong(f"convert: {name}", call, ValueError, says) for name, call, says in CASES]
