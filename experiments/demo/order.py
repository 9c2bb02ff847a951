"""Make the demo's task: a sentence, or its words in random order?

Run as: python -m experiments.demo.order

Each text of the pairs, in lower case, appears as it is and shuffled, so that both labels have the
same words. All texts of every fourth pair are held out.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import TypeVar

from experiments.demo.pairs import Pair, read_pairs

SEED = 0
DATA = Path(__file__).parent / "data" / "ORDER"
SHORTEST = 7  # words; shorter texts are often sentences when shuffled
Row = tuple[str, str]  # text, label
T = TypeVar("T")


def make(pairs: list[Pair]) -> dict[str, list[Row]]:
    """The rows of both splits, in random order."""
    rng = random.Random(SEED)
    splits: dict[str, list[Row]] = {"train": [], "dev": []}
    for place, pair in enumerate(pairs):
        rows = splits["train" if place % 4 else "dev"]
        for text in pair:
            words, mark = text[:-1].lower().split(), text[-1]
            if len(words) >= SHORTEST:
                mixed = words
                while mixed == words:
                    mixed = shuffled(rng, words)
                rows.append((" ".join(words) + mark, "sentence"))
                rows.append((" ".join(mixed) + mark, "shuffled"))
    return {split: shuffled(rng, rows) for split, rows in splits.items()}


def shuffled(rng: random.Random, items: list[T]) -> list[T]:
    """Shuffle; only random.random() is the same on every Python version."""
    return sorted(items, key=lambda _: rng.random())


def write(folder: Path = DATA) -> None:
    """Write train.tsv and dev.tsv in the format of the GLUE download."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, rows in make(read_pairs()).items():
        lines = "".join("\t".join(row) + "\n" for row in [("text", "label"), *rows])
        (folder / f"{split}.tsv").write_bytes(lines.encode())


if __name__ == "__main__":
    write()
