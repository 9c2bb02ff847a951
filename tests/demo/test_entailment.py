"""The demo's entailment set: reproducible, balanced, without shortcuts, and rightly labelled.

The labels are derived again from the text alone: each sentence is parsed by a grammar written for
this test, and entailment is decided by going through worlds, not by the generator's rules.
"""

import csv
import re
from collections import Counter
from collections.abc import Callable
from functools import cache
from itertools import product

import numpy as np
import pytest
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression

from demo.entailment import DATA, HEADER, make, write

Facts = dict[tuple[str, str, str], bool]  # (verb, agent, patient): whether it happened


def read(split: str) -> list[tuple[str, str, str]]:
    with (DATA / f"{split}.tsv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    assert tuple(rows[0]) == HEADER
    assert [row[0] for row in rows[1:]] == [str(index) for index in range(len(rows) - 1)]
    return [(premise, hypothesis, label) for _, premise, hypothesis, label in rows[1:]]


TRAIN, DEV = read("train"), read("dev")

# Noun phrase and verb, then one pattern per construction, and the facts that it states:
# agent, verb and patient by the names of the pattern's groups, "!" for a fact that is denied.
N, V = r"the (?P<{}>\w+)", r"(?P<{}>\w+)"
GRAMMAR = {
    f"{N} {V} {N}": ("abc", ["a b c"]),
    f"{N} was {V} by {N}": ("abc", ["c b a"]),
    f"{N} did not {V} {N}": ("abc", ["! a b c"]),
    f"{N} was not {V} by {N}": ("abc", ["! c b a"]),
    f"{N} {V} {N} and was {V} by {N}": ("abcde", ["a b c", "e d a"]),
    f"{N} was {V} by {N} and {V} {N}": ("abcde", ["c b a", "a d e"]),
    f"{N} {V} {N} but not {N}": ("abcd", ["a b c", "! a b d"]),
    f"{N} was {V} by {N} but not by {N}": ("abcd", ["c b a", "! d b a"]),
    f"it was {N}, not {N}, who {V} {N}": ("abcd", ["a c d", "! b c d"]),
    f"{N} {V} {N} but did not {V} {N}": ("abcde", ["a b c", "! a d e"]),
    f"{N} did not {V} {N} but {V} {N}": ("abcde", ["! a b c", "a d e"]),
    f"{N} who {V} {N} did not {V} {N}": ("abcde", ["a b c", "! a d e"]),
    f"{N} who did not {V} {N} {V} {N}": ("abcde", ["! a b c", "a d e"]),
    f"{N} who {V} {N} {V} {N}": ("abcde", ["a b c", "a d e"]),
    f"{N} who {N} {V} {V} {N}": ("abcde", ["b c a", "a d e"]),
    f"{N} {V} {N} who {V} {N}": ("abcde", ["a b c", "c d e"]),
    f"{N} {V} {N} who {N} {V}": ("abcde", ["a b c", "d e c"]),
}
QUANTIFIED = re.compile(r"(all|most|some|no) (\w+) (\w+)( \w+ the \w+)?")


def stem(verb: str) -> str:
    """The same for both forms: thank and thanked, invite and invited."""
    return verb.removesuffix("ed").removesuffix("e")


@cache
def facts(sentence: str) -> Facts:
    """What the only pattern that fits the sentence states."""
    readings = []
    for pattern, (names, stated) in GRAMMAR.items():
        found = re.fullmatch(pattern.format(*names), sentence)
        if found is None or "was" in found.groups():
            continue
        reading: Facts = {}
        for fact in stated:
            agent, verb, patient = (found[name] for name in fact.removeprefix("! ").split())
            reading[stem(verb), agent, patient] = not fact.startswith("!")
        readings.append(reading)
    assert len(readings) == 1, f"{len(readings)} readings of {sentence!r}"
    return readings[0]


def follows_from_facts(premise: str, hypothesis: str) -> bool:
    """Whether the hypothesis holds in every world in which the premise does."""
    given, claimed = facts(premise), facts(hypothesis)
    atoms = list(given | claimed)
    worlds = [
        dict(zip(atoms, truth, strict=True)) for truth in product([True, False], repeat=len(atoms))
    ]
    return all(
        all(world[atom] is truth for atom, truth in claimed.items())
        for world in worlds
        if all(world[atom] is truth for atom, truth in given.items())
    )


# A branch of nouns has four groups: its two kinds, the family's others, and all the others.
KINDS = [r"(poodl|robin|poni|bee|pianist|surgeon|swimmer|painter)e?s"]
KINDS += [r"(beagl|crow|stallion|ant|drummer|dentist|runner|sculptor)e?s"]
FAMILIES, TOPS = r"(dog|bird|horse|insect|musician|doctor|athlete|artist)s", r"(animals|people)"
# A world counts, for every group, those who did it there, those who did it elsewhere, and the rest.
# Three of the last group outvote one of each kind: "most people" need not be "some musicians".
COUNTS = [range(3)] * 9 + [range(4)] * 3
WORLDS = np.array(list(product(*COUNTS)), dtype=np.int8).reshape(-1, 4, 3)
WORLDS = WORLDS[(WORLDS[:, :2].sum(-1) > 0).all(-1)]  # there is one of every kind at least
TRUE_OF: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "all": lambda did, number: did == number,
    "most": lambda did, number: 2 * did > number,
    "some": lambda did, number: did > 0,
    "no": lambda did, number: did == 0,
}


def groups(noun: str) -> tuple[int, ...]:
    """Which of its branch's groups the noun covers."""
    nouns = {KINDS[0]: (0,), KINDS[1]: (1,), FAMILIES: (0, 1, 2), TOPS: (0, 1, 2, 3)}
    return next(covered for pattern, covered in nouns.items() if re.fullmatch(pattern, noun))


@cache
def holds(quantifier: str, covered: tuple[int, ...], placed: bool) -> np.ndarray:
    """In which worlds the quantified sentence is true."""
    those = WORLDS[:, list(covered)]
    did = those[:, :, : 1 if placed else 2].sum((1, 2))
    return TRUE_OF[quantifier](did, those.sum((1, 2)))


def follows_from_worlds(premise: re.Match[str], hypothesis: re.Match[str]) -> bool:
    """Whether no small world makes the premise true and the hypothesis false."""
    assert premise[3] == hypothesis[3]
    assert premise[4] is None or hypothesis[4] is None or premise[4] == hypothesis[4]
    true = [holds(s[1], groups(s[2]), s[4] is not None) for s in (premise, hypothesis)]
    return not (true[0] & ~true[1]).any()


def label(premise: str, hypothesis: str) -> str:
    """The label that the two sentences' meanings give."""
    first, second = (text.lower().removesuffix(".") for text in (premise, hypothesis))
    one, two = QUANTIFIED.fullmatch(first), QUANTIFIED.fullmatch(second)
    follows = follows_from_worlds(one, two) if one and two else follows_from_facts(first, second)
    return "entailment" if follows else "not_entailment"


def accuracy(text: Callable[[tuple[str, str, str]], str]) -> float:
    """Dev accuracy of a logistic regression on the bag of words of this text."""
    words = CountVectorizer(token_pattern=r"\w+")
    model = LogisticRegression(max_iter=1000)
    model.fit(words.fit_transform(map(text, TRAIN)), [row[2] for row in TRAIN])
    return model.score(words.transform(map(text, DEV)), [row[2] for row in DEV])


def test_committed_files_are_what_the_seed_makes(tmp_path) -> None:
    write(tmp_path)
    for name in ("train.tsv", "dev.tsv"):
        assert (tmp_path / name).read_bytes() == (DATA / name).read_bytes()
    assert make(1)["dev"] != DEV


@pytest.mark.parametrize(("rows", "count"), [(TRAIN, 2400), (DEV, 408)], ids=["train", "dev"])
def test_count_and_balance(rows: list[tuple[str, str, str]], count: int) -> None:
    assert Counter(row[2] for row in rows) == {
        "entailment": count // 2,
        "not_entailment": count // 2,
    }


def test_no_pair_twice() -> None:
    pairs = [row[:2] for row in TRAIN + DEV]
    assert len(set(pairs)) == len(pairs)
    assert all(premise != hypothesis for premise, hypothesis in pairs)


def test_no_premise_of_facts_in_both_splits() -> None:
    """Quantified premises of the widest kind, such as "All animals ate.", may recur."""
    premises = [
        {row[0] for row in rows if row[0].startswith(("The", "It"))} for rows in (TRAIN, DEV)
    ]
    assert not premises[0] & premises[1]


def test_every_sentence_meets_both_labels_equally() -> None:
    for side in (0, 1):
        balance: Counter[str] = Counter()
        for row in TRAIN + DEV:
            balance[row[side]] += 1 if row[2] == "entailment" else -1
        assert not any(balance.values())


@pytest.mark.parametrize(
    "text",
    [lambda row: row[0], lambda row: row[1], lambda row: f"{row[0]} {row[1]}"],
    ids=["premise", "hypothesis", "both"],
)
def test_bag_of_words_is_left_with_chance(text: Callable[[tuple[str, str, str]], str]) -> None:
    assert 0.38 < accuracy(text) < 0.62


@pytest.mark.parametrize("rows", [TRAIN, DEV], ids=["train", "dev"])
def test_labels_follow_from_meaning(rows: list[tuple[str, str, str]]) -> None:
    wrong = [row for row in rows if label(row[0], row[1]) != row[2]]
    assert not wrong, f"{len(wrong)} wrong labels, such as {wrong[:3]}"


def test_dev_combines_known_words_anew() -> None:
    """Dev has train's words only, and in most rows a couple of them that never meet in train."""
    rows = [
        [re.findall(r"\w+", f"{row[0]} {row[1]}".lower()) for row in split]
        for split in (TRAIN, DEV)
    ]
    assert set().union(*rows[1]) <= set().union(*rows[0])
    met = {couple for words in rows[0] for couple in product(words, words)}
    new = [not met.issuperset(product(words, words)) for words in rows[1]]
    assert sum(new) > 0.6 * len(new)
