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
        ("lengths", one(lengths=[64, 66]), "lengths=.* multiples of 4"),
        ("train_length", one(train_length=16), "train_length=16"),
        ("symbols", one(symbols=4), "symbols=4"),
        ("symbols of flip-flops", one(task="flip-flop", symbols=4), "symbols=4.* at least 5"),
        ("layers", one(layers=3), "layers=3"),
        ("hidden_size", one(hidden_size=20), "hidden_size=20"),
        ("steps", one(steps=0), "steps=0"),
        ("attention", one(attention=AttentionConfig("sparsmax")), "did you mean sparsemax"),
        ("attentions", swept(mine=AttentionConfig()), "baseline 'softmax'"),
    )
]
