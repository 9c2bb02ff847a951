"""The demo's texts, and the task made of them."""

from collections import Counter
from pathlib import Path

import pytest

from experiments.demo.order import DATA, make, write
from experiments.demo.pairs import read_pairs

PAIRS = read_pairs()
SPLITS = make(PAIRS)


def test_pairs_are_many_and_say_nothing_twice() -> None:
    texts = [text.lower() for pair in PAIRS for text in pair]
    assert len(PAIRS) >= 200
    assert not [text for text, count in Counter(texts).items() if count > 1]


@pytest.mark.parametrize(
    ("column", "words", "mark"),
    [("question", 12, "?"), ("answer", 20, "."), ("distractor", 15, ".")],
)
def test_pairs_are_short_sentences(column: str, words: int, mark: str) -> None:
    for text in (getattr(pair, column) for pair in PAIRS):
        assert 3 <= len(text.split()) <= words, text
        assert text == " ".join(text.split())
        assert text[0].isupper() or text[0].isdigit(), text
        assert text.endswith(mark), text


def test_committed_task_is_what_the_seed_makes(tmp_path: Path) -> None:
    write(tmp_path)
    for name in ("train.tsv", "dev.tsv"):
        assert (tmp_path / name).read_bytes() == (DATA / name).read_bytes()


@pytest.mark.parametrize("split", SPLITS)
def test_both_labels_have_the_same_words(split: str) -> None:
    bags = {
        label: Counter(
            " ".join(sorted(text[:-1].split())) for text, own in SPLITS[split] if own == label
        )
        for label in ("sentence", "shuffled")
    }
    assert bags["sentence"] == bags["shuffled"]
    assert len({text for text, _ in SPLITS[split]}) == len(SPLITS[split])


def test_no_text_of_dev_is_in_train() -> None:
    train, dev = ({" ".join(sorted(text.split())) for text, _ in SPLITS[name]} for name in SPLITS)
    assert not train & dev
    assert len(SPLITS["dev"]) > 250
