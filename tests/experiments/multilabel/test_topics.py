"""The synthetic texts: what they say is what their labels say, and their words alone do not."""

import csv
import re
import subprocess
import sys
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.multiclass import OneVsRestClassifier

from experiments.multilabel.data.topics import MOST, SENTENCES, TOPICS, make, write

ROWS = 2000


@pytest.fixture(scope="module")
def rows() -> list[tuple[str, frozenset[str]]]:
    return make(ROWS, seed=0)


def mentioned(text: str) -> list[str]:
    """The topics whose expressions the text holds, as often as it does."""
    lower = text.lower()
    return [t for t, expressions in TOPICS.items() for e in expressions if e in lower]


def test_expressions_are_told_apart() -> None:
    expressions = list(chain(*TOPICS.values()))
    for expression in expressions:
        assert [e for e in expressions if expression in e] == [expression]
        sentences = chain(*SENTENCES.values())
        assert not any(expression in sentence.lower() for sentence in sentences)


def test_sentences_name_as_many_topics_as_they_say() -> None:
    for (about, beside), sentences in SENTENCES.items():
        places = [f"{{{place}}}" for place in range(about + beside)]
        for sentence in sentences:
            assert sorted(part for part in places if sentence.count(part) == 1) == places
            assert sentence.count("{") == len(places)


def test_a_text_mentions_its_topics_and_others_once(
    rows: list[tuple[str, frozenset[str]]],
) -> None:
    for text, topics in rows:
        names = mentioned(text)
        assert len(names) == len(set(names))
        assert topics < set(names)
        assert 1 <= len(topics) <= MOST
        assert 1 <= len(names) - len(topics) <= MOST
    counts = np.bincount([len(topics) for _, topics in rows])
    assert counts[1:].min() > ROWS / MOST / 1.3


def test_the_sentences_say_what_the_labels_say(rows: list[tuple[str, frozenset[str]]]) -> None:
    topic_of = {e: topic for topic, expressions in TOPICS.items() for e in expressions}
    one = "(" + "|".join(map(re.escape, topic_of)) + ")"
    for text, topics in rows[:300]:
        told = set()
        for sentence in re.findall(r".*?\.(?: |$)", text.lower()):
            found = []
            for (about, beside), templates in SENTENCES.items():
                for template in templates:
                    order = [int(place) for place in re.findall(r"\{(.)\}", template)]
                    pattern = re.sub(r"\{.\}", lambda _: one, template.lower().replace(".", r"\."))
                    if match := re.fullmatch(pattern, sentence.strip()):
                        named = dict(zip(order, match.groups(), strict=True))
                        assert len(named) == about + beside
                        found.append({topic_of[named[place]] for place in range(about)})
            assert len(found) == 1  # no sentence can be read in two ways
            told |= found[0]
        assert told == topics


@pytest.mark.slow
def test_every_way_to_deal_out_the_topics_is_as_likely() -> None:
    """Of the texts that mention just two topics, each is the one that counts in half of them."""
    first = [
        min(names) in topics
        for text, topics in make(20_000, seed=1)
        if len(names := mentioned(text)) == 2
    ]
    assert len(first) > 1000
    assert abs(np.mean(first) - 0.5) < 4 * 0.5 / len(first) ** 0.5


def test_a_bag_of_words_does_not_solve_it(rows: list[tuple[str, frozenset[str]]]) -> None:
    texts = [text for text, _ in rows]
    target = np.array([[topic in topics for topic in TOPICS] for _, topics in rows])
    counts = CountVectorizer().fit_transform(texts)
    half = ROWS // 2
    model = OneVsRestClassifier(LogisticRegression(max_iter=500)).fit(counts[:half], target[:half])
    p = model.predict_proba(counts[half:])
    scores = [f1_score(target[half:], p > t, average="micro") for t in np.arange(0.2, 0.7, 0.05)]
    everything = np.array([[topic in mentioned(text) for topic in TOPICS] for text in texts[half:]])
    assert max(scores) < 0.72
    assert abs(max(scores) - f1_score(target[half:], everything, average="micro")) < 0.04


def test_the_seed_decides_alone() -> None:
    assert make(50, seed=3) == make(80, seed=3)[:50]
    assert make(50, seed=3) != make(50, seed=4)


def test_the_files_hold_different_texts(tmp_path: Path) -> None:
    write(tmp_path / "topics", train=60, validation=20, test=10, seed=5)
    texts = []
    for split, size in (("train", 60), ("validation", 20), ("test", 10)):
        with (tmp_path / "topics" / f"{split}.csv").open(encoding="utf-8", newline="") as file:
            found = list(csv.DictReader(file))
        assert len(found) == size
        assert list(found[0]) == ["text", *TOPICS]
        texts += [row.pop("text") for row in found]
        assert all(set(row.values()) <= {"0", "1"} for row in found)
    assert texts == [text for text, _ in make(90, seed=5)]
    assert len(set(texts)) == 90


def test_the_command_writes_the_files(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "experiments.multilabel.data.topics", str(tmp_path)]
    subprocess.run([*command, "--train", "9", "--validation", "3", "--test", "2"], check=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "test.csv",
        "train.csv",
        "validation.csv",
    ]
