"""Windows of a long text, and numbers hidden in them, as tokens of a causal language model."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from sparse_attn.reports.text import counted

NEEDLE = "\nThe secret number is {}. Remember it.\n"
QUESTION = "\nWhat is the secret number? The secret number is"
DIGITS = 7
# successive multiples of the golden ratio, modulo 1, are spread evenly
GOLDEN = 0.6180339887


class Window(NamedTuple):
    """Tokens to read; the last `scored` of them are to be predicted."""

    ids: tuple[int, ...]
    scored: int


def starts(tokens: int, length: int, stride: int, most: int | None) -> list[int]:
    """Return where windows of this length start: every `stride` tokens, at most `most`, spread.

    A rest that fills no window is left out.
    """
    every = list(range(0, tokens - length + 1, stride))
    if most is None or most >= len(every):
        return every
    if most == 1:
        return every[:1]
    return [every[round(i * (len(every) - 1) / (most - 1))] for i in range(most)]


def cut_windows(
    ids: Sequence[int], first: Sequence[int], length: int, stride: int, most: int | None
) -> list[Window]:
    """Cut a text into windows; each scores the `stride` tokens at its end.

    The first window scores all of its tokens if no window is left out.

    Args:
        ids: tokens of the text.
        first: tokens that the tokenizer puts before every text.
        length: tokens of a window, with these.
        most: number of windows; None for all.
    """
    room = length - len(first)
    found = []
    chosen = starts(len(ids), room, stride, most)
    whole = len(chosen) == len(starts(len(ids), room, stride, None))
    for start in chosen:
        predicted = room - (not first)  # the first token has nothing before it
        scored = predicted if start == 0 and whole else min(stride, predicted)
        found.append(Window((*first, *ids[start : start + room]), scored))
    return found


def hide_numbers(
    windows: Sequence[Window], first: Sequence[int], tokenizer: Any, count: int
) -> list[Window]:
    """Hide a number in each of `count` windows, and ask for it at their end.

    Depths and windows are spread evenly from the start to the end, unrelated to each other. The
    numbers are drawn with the window's index as seed. The scored tokens are those of the number.

    Raises:
        ValueError: there are fewer windows, or they are too short for needle and question.
    """

    def tokens(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    if count > len(windows):
        raise ValueError(
            f"--needles {count}: the text has {counted(len(windows), 'window')}; give a longer "
            "text, or a smaller --max_length"
        )
    found = []
    # depths that rise with the windows would be confounded with them
    depths = sorted(range(count), key=lambda index: (index + 0.5) * GOLDEN % 1)
    for index, depth in enumerate(depths):
        number = str(random.Random(index).randrange(10 ** (DIGITS - 1), 10**DIGITS))
        needle, question = tokens(NEEDLE.format(number)), tokens(QUESTION)
        # together, because a tokenizer may join the number with the space before it
        asked = tokens(f"{QUESTION} {number}")
        shared = sum(
            1
            for _ in takewhile(lambda pair: pair[0] == pair[1], zip(question, asked, strict=False))
        )
        question, answer = asked[:shared], asked[shared:]
        # spread over the text
        text = list(windows[index * len(windows) // count].ids[len(first) :])
        added = len(needle) + len(question) + len(answer)
        if len(text) < 2 * added:
            raise ValueError(
                f"--max_length {len(text) + len(first)}: needle and question alone take {added} "
                "tokens; allow more"
            )
        text = text[: len(text) - added]
        at = round(depth / max(1, count - 1) * len(text))
        ids = [*first, *text[:at], *needle, *text[at:], *question, *answer]
        found.append(Window(tuple(ids), len(answer)))
    return found
