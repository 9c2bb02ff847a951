"""Makes the demo's entailment set. Run as: python -m demo.entailment

Sentence pairs in the RTE layout of GLUE, labelled by what the sentences mean:

- voice, role, contrast, negation, relative: a sentence is a set of signed facts, such as
  "helped(nurse,judge)" or "not-helped(nurse,judge)", and entails every sentence whose facts are
  among its own.
- quantifier: all, most (more than half), some and no over "poodles" < "dogs" < "animals" and
  "slept in the barn" < "slept". Entailment is monotonicity; there is one of every kind at least.

Pairs come in squares: two premises, two hypotheses, and each premise entails just one of them.

                   hypothesis 1      hypothesis 2
    premise 1      entailment        not_entailment
    premise 2      not_entailment    entailment

So every sentence is seen as often with one label as with the other, and whatever adds up evidence
word by word, from one sentence or from both, is left with chance: the two have to be compared.
Both splits use the same words, but some pairs of words are held out of train and met in dev only.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations, product
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
Row = tuple[str, str, str]  # premise, hypothesis, label

SEED = 0
SQUARES = {"train": 100, "dev": 17}  # of four pairs, for each phenomenon
HELD_OUT = 5  # one in so many pairs of words is held out of train
DATA = Path(__file__).parent / "data" / "ENTAIL"
HEADER = ("index", "sentence1", "sentence2", "label")

PEOPLE = (
    *("doctor", "lawyer", "nurse", "teacher", "pilot", "farmer", "singer", "baker", "judge"),
    *("painter", "dancer", "soldier", "waiter", "sailor", "writer"),
)
VERBS = {  # past tense, the same word as the participle: base form
    "thanked": "thank",
    "called": "call",
    "helped": "help",
    "visited": "visit",
    "followed": "follow",
    "praised": "praise",
    "invited": "invite",
    "warned": "warn",
    "watched": "watch",
    "blamed": "blame",
    "trusted": "trust",
    "pushed": "push",
}

# Sentence: its facts. {a}, {b}, {c} are people, {v}, {w} verbs in the past, {V}, {W} their bases.
HYPOTHESES = {
    "The {a} {v} the {b}.": "{v}({a},{b})",
    "The {b} was {v} by the {a}.": "{v}({a},{b})",
    "The {a} did not {V} the {b}.": "not-{v}({a},{b})",
    "The {b} was not {v} by the {a}.": "not-{v}({a},{b})",
}
PREMISES = {
    "voice": HYPOTHESES,
    "role": {
        "The {a} {v} the {b} and was {w} by the {c}.": "{v}({a},{b}) {w}({c},{a})",
        "The {a} was {v} by the {b} and {w} the {c}.": "{v}({b},{a}) {w}({a},{c})",
    },
    "contrast": {
        "The {a} {v} the {b} but not the {c}.": "{v}({a},{b}) not-{v}({a},{c})",
        "The {a} was {v} by the {b} but not by the {c}.": "{v}({b},{a}) not-{v}({c},{a})",
        "It was the {a}, not the {b}, who {v} the {c}.": "{v}({a},{c}) not-{v}({b},{c})",
    },
    "negation": {
        "The {a} {v} the {b} but did not {W} the {c}.": "{v}({a},{b}) not-{w}({a},{c})",
        "The {a} did not {V} the {b} but {w} the {c}.": "not-{v}({a},{b}) {w}({a},{c})",
        "The {a} who {v} the {b} did not {W} the {c}.": "{v}({a},{b}) not-{w}({a},{c})",
        "The {a} who did not {V} the {b} {w} the {c}.": "not-{v}({a},{b}) {w}({a},{c})",
    },
    "relative": {
        "The {a} who {v} the {b} {w} the {c}.": "{v}({a},{b}) {w}({a},{c})",
        "The {a} who the {b} {v} {w} the {c}.": "{v}({b},{a}) {w}({a},{c})",
        "The {a} {w} the {c} who {v} the {b}.": "{w}({a},{c}) {v}({c},{b})",
        "The {a} {w} the {c} who the {b} {v}.": "{w}({a},{c}) {v}({b},{c})",
    },
}

BRANCHES = (  # two kinds, what both of them are, and what all of those are
    ("poodles", "beagles", "dogs", "animals"),
    ("robins", "crows", "birds", "animals"),
    ("ponies", "stallions", "horses", "animals"),
    ("bees", "ants", "insects", "animals"),
    ("pianists", "drummers", "musicians", "people"),
    ("surgeons", "dentists", "doctors", "people"),
    ("swimmers", "runners", "athletes", "people"),
    ("painters", "sculptors", "artists", "people"),
)
ACTIONS = (
    *("slept", "ate", "waited", "hid", "rested"),
    *("played", "arrived", "vanished", "jumped", "moved"),
)
PLACES = ("in the barn", "near the river", "on the hill", "in the garden", "at the station")

# (premise's, hypothesis's quantifier): how the noun and how the predicate may change, if at all.
MONOTONICITY = {
    ("all", "all"): ("same down", "same up"),
    ("all", "most"): ("same down", "same up"),
    ("all", "some"): ("same up down", "same up"),
    ("most", "most"): ("same", "same up"),
    ("most", "some"): ("same up", "same up"),
    ("some", "some"): ("same up", "same up"),
    ("no", "no"): ("same down", "same down"),
}


@dataclass(frozen=True)
class Told:
    """A sentence and the signed facts that it tells."""

    text: str
    facts: frozenset[str]

    def entails(self, other: Told) -> bool:
        """Whether the other's facts are among this one's."""
        return other.facts <= self.facts


@dataclass(frozen=True)
class Quantified:
    """A quantifier, and what falls under the noun and under the predicate that it relates."""

    text: str
    quantifier: str
    noun: frozenset[str]
    predicate: frozenset[str]

    def entails(self, other: Quantified) -> bool:
        """Whether noun and predicate change as the two quantifiers allow."""
        noun, predicate = MONOTONICITY.get((self.quantifier, other.quantifier), ("", ""))
        return (
            change(self.noun, other.noun) in noun.split()
            and change(self.predicate, other.predicate) in predicate.split()
        )


S = TypeVar("S", Told, Quantified)


def change(old: frozenset[str], new: frozenset[str]) -> str:
    """Where a step from one set to the other leads: same, up, down, or away."""
    if old == new:
        return "same"
    return "up" if old < new else "down" if old > new else "away"


def tell(templates: Mapping[str, str], people: Sequence[str], verbs: Sequence[str]) -> list[Told]:
    """Every sentence that the templates make of these people and verbs."""
    told = {}
    slots = "".join(templates)
    casts = permutations(people, 3 if "{c}" in slots else 2)
    pasts = permutations(verbs, 2 if "{w}" in slots else 1)
    for cast, past in product(casts, pasts):
        base = [VERBS[verb] for verb in past]
        words = {
            **dict(zip("abc", cast, strict=False)),
            **dict(zip("vw", past, strict=False)),
            **dict(zip("VW", base, strict=False)),
        }
        for text, facts in templates.items():
            sentence = Told(text.format(**words), frozenset(facts.format(**words).split()))
            told[sentence.text] = sentence
    return list(told.values())


def quantify(branch: Sequence[str], action: str, place: str) -> list[Quantified]:
    """Every quantified sentence about this branch, this action, and the action at this place."""
    kind, sister, family, top = branch
    nouns = {kind: {kind}, sister: {sister}}
    nouns[family] = {kind, sister, family}  # the name of a noun also stands for its other kinds
    nouns[top] = nouns[family] | {top}
    predicates = {f"{action} {place}": {place}, action: {place, "elsewhere"}}
    quantifiers = dict.fromkeys(quantifier for pair in MONOTONICITY for quantifier in pair)
    return [
        Quantified(
            f"{quantifier.capitalize()} {noun} {predicate}.",
            quantifier,
            frozenset(nouns[noun]),
            frozenset(predicates[predicate]),
        )
        for quantifier, noun, predicate in product(quantifiers, nouns, predicates)
    ]


def pick(rng: random.Random, items: Sequence[T], count: int) -> list[T]:
    """Different items in random order; of random, only random() is the same on every Python."""
    return sorted(items, key=lambda _: rng.random())[:count]


def held_out(*places: int) -> bool:
    """Whether two of these words, given by their places in the lists, are kept for dev."""
    return any((i + j) % HELD_OUT == 0 for i, j in combinations(places, 2))


def told_square(rng: random.Random, phenomenon: str, dev: bool) -> list[Row]:
    """A square of sentences that tell facts.

    It has one person and one verb more than a premise needs, so that a hypothesis can be wrong by
    naming another and not only by mixing up those named, too hard to learn alone in three epochs.
    """
    templates = PREMISES[phenomenon]
    slots = "".join(templates)
    size = 4 if "{c}" in slots else 3
    casts = [cast for cast in combinations(range(len(PEOPLE)), size) if held_out(*cast) == dev]
    people = [PEOPLE[place] for place in pick(rng, casts, 1)[0]]
    verbs = pick(rng, list(VERBS), 3 if "{w}" in slots else 2)
    return square(rng, tell(templates, people, verbs), tell(HYPOTHESES, people, verbs))


def quantified_square(rng: random.Random, dev: bool) -> list[Row]:
    """A square of quantified sentences."""
    words = list(product(range(len(BRANCHES)), range(len(ACTIONS))))
    branch, action = pick(rng, [places for places in words if held_out(*places) == dev], 1)[0]
    sentences = quantify(BRANCHES[branch], ACTIONS[action], pick(rng, PLACES, 1)[0])
    return square(rng, sentences, sentences)


def square(rng: random.Random, premises: Sequence[S], hypotheses: Sequence[S]) -> list[Row]:
    """Four rows, of two premises that each entail just one of two hypotheses."""
    while True:
        first = pick(rng, premises, 1)[0]
        yes = [h for h in hypotheses if first.entails(h) and h.text != first.text]
        if not yes:
            continue
        no = [h for h in hypotheses if not first.entails(h)]
        one, other = pick(rng, yes, 1)[0], pick(rng, no, 1)[0]
        seconds = [
            p
            for p in premises
            if p.entails(other) and not p.entails(one) and p.text not in (one.text, other.text)
        ]
        if seconds:
            pair = (first, pick(rng, seconds, 1)[0])
            return [(p.text, h.text, label(p, h)) for p in pair for h in (one, other)]


def label(premise: S, hypothesis: S) -> str:
    """The label of a pair as RTE spells it."""
    return "entailment" if premise.entails(hypothesis) else "not_entailment"


def make(seed: int = SEED) -> dict[str, list[Row]]:
    """The rows of both splits, in random order, no pair twice."""
    rng = random.Random(seed)
    rows: dict[str, list[Row]] = {split: [] for split in SQUARES}
    seen: set[tuple[str, str]] = set()
    for split, phenomenon in product(SQUARES, (*PREMISES, "quantifier")):
        missing, dev = SQUARES[split], split == "dev"
        while missing:
            quantified = phenomenon == "quantifier"
            four = quantified_square(rng, dev) if quantified else told_square(rng, phenomenon, dev)
            pairs = {(premise, hypothesis) for premise, hypothesis, _ in four}
            if not pairs & seen:
                rows[split] += four
                seen |= pairs
                missing -= 1
    return {split: pick(rng, part, len(part)) for split, part in rows.items()}


def write(folder: Path = DATA) -> None:
    """Write train.tsv and dev.tsv as the GLUE download lays them out."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, rows in make().items():
        lines = [HEADER, *((str(index), *row) for index, row in enumerate(rows))]
        text = "".join("\t".join(line) + "\n" for line in lines)
        (folder / f"{split}.tsv").write_bytes(text.encode())


if __name__ == "__main__":
    write()
