"""Make a multi-label set of short texts. Run as: python -m experiments.multilabel.data.topics DIR

A text mentions some topics and is about some of these, its labels:

    "Instead of thunder, we discussed the choir. Software can wait until next week."    music

A topic has several expressions, and its sentence decides whether it is a label. Sentences are drawn
first and topics assigned to their slots uniformly at random. A bag of words therefore tells
which topics a text mentions and how many of them are labels, but not which ones.
"""

from __future__ import annotations

import csv
import random
from itertools import islice
from pathlib import Path

from sparse_attn.cli.errors import input_errors

Row = tuple[str, frozenset[str]]  # a text and its topics

MOST = 3  # topics that a text is about, and others it mentions, each

TOPICS = {
    "cooking": ("the recipe", "ovens", "baking bread", "the soup", "fresh herbs"),
    "music": ("the orchestra", "a new song", "guitars", "the choir", "learning the piano"),
    "sports": ("the football match", "the marathon", "tennis", "the coach", "swimming lessons"),
    "weather": ("the storm", "thunder", "the heat wave", "snow", "tomorrow's forecast"),
    "money": ("taxes", "the budget", "interest rates", "a bank loan", "the stock market"),
    "health": ("the hospital", "vaccines", "a sore throat", "the dentist", "sleeping badly"),
    "travel": ("the airport", "a trip abroad", "the hotel", "train tickets", "the beach holiday"),
    "law": ("the court", "a lawsuit", "the judge", "the new bill", "a contract dispute"),
    "computers": ("the laptop", "software", "a slow network", "passwords", "the website"),
    "gardening": ("the roses", "pruning trees", "weeds", "the lawn", "planting tomatoes"),
}

# keys: number of topics that a sentence is about, and that it mentions; the former come first
SENTENCES = {
    (1, 0): (
        "We talked about {0}.",
        "Most of it was about {0}.",
        "In the end {0} came up again.",
        "Everyone had questions about {0}.",
    ),
    (0, 1): (
        "Nobody said anything about {0}.",
        "There was no time for {0}.",
        "Last week was about {0}.",
        "We will talk about {0} some other day.",
    ),
    (1, 1): (
        "They asked about {0}, not about {1}.",
        "It was not {1} but {0} that mattered.",
        "Instead of {1}, we discussed {0}.",
        "Although {1} was on the list, everyone asked about {0}.",
        "We talked about {0} at length, while {1} was left out.",
    ),
    (2, 0): ("We covered {0} and {1}.", "Apart from {0} and {1} there was nothing new."),
    (0, 2): ("Neither {0} nor {1} was mentioned.", "We skipped {0} and {1}."),
    (2, 1): ("We covered {0} and {1}, and skipped {2}.",),
    (1, 2): ("Neither {1} nor {2} was mentioned, only {0}.",),
}


def make(rows: int, seed: int) -> list[Row]:
    """`rows` distinct texts; fewer rows with the same seed are a prefix of them."""
    rng = random.Random(seed)
    made: dict[str, frozenset[str]] = {}
    while len(made) < rows:
        text, topics = draw(rng)
        made.setdefault(text, topics)
    return list(made.items())


def draw(rng: random.Random) -> Row:
    """Draw a text about 1 to MOST topics that mentions 1 to MOST others."""
    about, beside = rng.randint(1, MOST), rng.randint(1, MOST)
    drawn = rng.sample(sorted(TOPICS), about + beside)
    topics = frozenset(drawn[:about])
    expressions = [rng.choice(TOPICS[topic]) for topic in drawn]
    on, off = expressions[:about], expressions[about:]
    sentences = []
    while on or off:
        kinds = [kind for kind in SENTENCES if kind[0] <= len(on) and kind[1] <= len(off)]
        kind = rng.choice(kinds)
        named = [on.pop() for _ in range(kind[0])] + [off.pop() for _ in range(kind[1])]
        sentence = rng.choice(SENTENCES[kind]).format(*named)
        sentences.append(sentence[0].upper() + sentence[1:])
    rng.shuffle(sentences)
    return " ".join(sentences), topics


def write(
    folder: Path, train: int = 2000, validation: int = 500, test: int = 500, seed: int = 0
) -> None:
    """Write train.csv, validation.csv and test.csv: the text and a 0/1 column per topic.

    Args:
        folder: output folder.
        train: rows of train.csv.
        validation: rows of validation.csv.
        test: rows of test.csv.
        seed: random seed; no text is in two files.
    """
    rows = iter(make(train + validation + test, seed))
    folder.mkdir(parents=True, exist_ok=True)
    for split, size in (("train", train), ("validation", validation), ("test", test)):
        with (folder / f"{split}.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["text", *TOPICS])
            for text, topics in islice(rows, size):
                writer.writerow([text, *(int(topic in topics) for topic in TOPICS)])


if __name__ == "__main__":
    with input_errors():
        from jsonargparse import auto_cli

        auto_cli(write)
