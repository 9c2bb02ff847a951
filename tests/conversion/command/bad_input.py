"""Wrong files, mappings and models of conversions."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import T5Config, T5ForConditionalGeneration

from sparse_attn import patch_model
from sparse_attn.conversion.stages import perform
from tests.bad_input import Wrong
from tests.comparison.bad_input import CLASSIFIER, TASK, bert, deberta
from tests.conversion.command.running import parse
from tests.glue.make_glue import write_task
from tests.letters import letter_tokenizer

Call = Callable[[Path], Any]
BERT = bert()
TEXTS = [f"text {i}" for i in range(90)]


def given(
    *more: str,
    make: Callable[[], Any] = BERT,
    lines: list[str] = TEXTS,
    mapping: str = "entmax",
) -> Call:
    """A model on a file of texts, with further options; {} is the folder. It writes nothing."""

    def call(folder: Path) -> Any:
        torch.manual_seed(0)
        make().save_pretrained(folder / "model")
        letter_tokenizer().save_pretrained(folder / "model")
        name = "texts.tsv" if "\t" in "".join(lines) else "texts.txt"
        (folder / name).write_text("\n".join(lines) + "\n")
        write_task(folder, "MRPC", train=4, dev=8)
        words = [word.format(folder) for word in more]
        words += ["--texts", str(folder / name), "--out", str(folder / "out")]
        try:
            return perform(parse([str(folder / "model"), "--mapping", mapping, *words]))
        finally:
            assert not (folder / "out").exists()

    return call


def patched() -> Any:
    return patch_model(bert()(), "sparsemax")


def encoder_decoder() -> Any:
    sizes = {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
    return T5ForConditionalGeneration(T5Config(vocab_size=99, **sizes))


PAIRED = ["sentence1\tsentence2", *("a\tb" for _ in range(90))]
CASES: list[tuple[str, Call, str]] = [
    ("empty texts", given(lines=["", " "]), "--texts .*texts.txt: holds no text"),
    ("few texts", given(lines=TEXTS[:70]), "leaves 63 texts to learn from, expected at least 64"),
    ("unknown mapping", given(mapping="entmaxx"), "--mapping entmaxx: .*did you mean"),
    ("parameter", given(mapping="entmax:alpha=0"), "--mapping entmax:alpha=0: .*alpha=0"),
    (
        "no dial",
        given("--target-zeros", "0.5", mapping="sparsemax"),
        "^--target-zeros: sparsemax has no parameter that sets its zeros; .*choose a mapping",
    ),
    (
        "target and value",
        given("--target-zeros", "0.5", mapping="entmax:alpha=1.5"),
        "alpha=1.5: --target-zeros chooses it; leave one",
    ),
    ("target", given("--target-zeros", "0.99"), "^--target-zeros 0.99: entmax .*lower the target"),
    ("softmax", given(mapping="softmax"), "^--mapping softmax: is what the model computes"),
    ("patched", given(make=patched), "MODEL='.*model': is patched already; name the model that"),
    ("tokens", given("--max-length", "1"), "^--max-length 1: expected at least"),
    ("encoder and decoder", given(make=encoder_decoder), "an encoder and a decoder"),
    ("does not dispatch", given(make=deberta), "DebertaModel does not dispatch"),
    ("tokenizer of another model", given(make=bert(vocab_size=9)), "MODEL knows 9 tokens"),
    ("no classifier", given(*TASK, lines=PAIRED), "MODEL=.*lacks weights, such as classifier"),
    (
        "labels of another task",
        given(*TASK, make=bert(CLASSIFIER, num_labels=3), lines=PAIRED),
        "MODEL=.*: gives 3 scores, but MRPC has 2",
    ),
    (
        "texts of another kind",
        given(*TASK, make=bert(CLASSIFIER)),
        "--texts .*: holds single texts, but the model reads pairs of texts of MRPC dev; give",
    ),
]
ROWS = [Wrong(f"convert: {name}", call, ValueError, says) for name, call, says in CASES]
