"""Wrong input to the study of lengths."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments.length.config import AttentionConfig, LengthRunConfig, LengthSweepConfig
from experiments.length.run import assemble
from tests.bad_input import Wrong


def one(**changes: Any) -> Callable[[Path], object]:
    return lambda folder: assemble(LengthRunConfig(output_dir="", **changes))


def swept(**attentions: AttentionConfig) -> Callable[[Path], object]:
    return lambda folder: LengthSweepConfig(output_dir="", attentions=attentions)


ROWS = [
    Wrong(f"length: {name}", call, ValueError, says)
    for name, call, says in (
        ("length", one(lengths=[64, 66]), r"lengths=\[64, 66\]: expected different multiples of 4"),
        ("twice", one(lengths=[64, 64]), r"lengths=\[64, 64\]: expected different multiples"),
        ("none", one(lengths=[]), r"lengths=\[\]: expected different multiples of 4 from 32"),
        ("short", one(train_length=16), "train_length=16: expected one of the .* from 32 on"),
        ("symbols", one(symbols=4), "symbols=4: expected at least 17, for the keys of 1024 tok"),
        ("layers", one(layers=3), "layers=3: expected an even number"),
        ("size", one(hidden_size=20), "hidden_size=20: expected a multiple of 8, as there are 4"),
        ("steps", one(steps=0), "steps=0: expected at least 1"),
        ("name", one(attention=AttentionConfig("sparsmax")), "did you mean sparsemax"),
        ("per", one(attention=AttentionConfig(per="query")), "use scaled-softmax"),
        ("baseline", swept(mine=AttentionConfig()), "expected the baseline 'softmax'"),
    )
]
