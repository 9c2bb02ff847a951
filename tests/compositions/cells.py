"""One cell: a subject, a setup and an action."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest
import torch

from sparse_attn.kernels import dispatch

from .actions import ACTIONS, STEP, Action, Answer, gradients, step
from .pair import two_processes
from .setups import NOTHING, SETUPS, Setup
from .subjects import SUBJECTS, Subject

Cell = tuple[Subject, Setup, Action]
EQUAL = "equal"
# what may raise ValueError, by subject and action, and what the message says
REFUSED = {("LM head, entmax", "generate, guidance_scale"): "or use a mapping without zeros"}


def cells() -> Iterator[Cell]:
    """Each subject with each setup, or else with each action."""
    for subject in SUBJECTS:
        yield from ((subject, setup, STEP) for setup in SETUPS if not setup.soak)
        yield from ((subject, NOTHING, action) for action in ACTIONS if action.suits(subject))


def crossed() -> Iterator[Cell]:
    """Each subject with each setup and action together.

    But no text in 16 bits: rounding decides between words, and Transformers' own static cache is
    in 32 bits, which refuses 16.
    """
    for subject in SUBJECTS:
        for setup in SETUPS:
            for action in ACTIONS:
                rounded = action.generates and setup.tolerance > NOTHING.tolerance
                if action.suits(subject) and not rounded:
                    yield subject, setup, action


def verdict(subject: Subject, setup: Setup, action: Action) -> str:
    """`EQUAL`, or the error of `REFUSED` that is raised instead.

    Raises:
        AssertionError: the numbers are others.
    """
    model = setup.apply(subject.build(), subject)
    if remedy := REFUSED.get((subject.name, action.name)):
        with pytest.raises(ValueError, match=remedy) as raised:
            action.answer(model, subject)
        return str(raised.value)
    actual = action.answer(model, subject)
    with reference():
        expected = action.expected(setup.expected(subject.build(), subject), subject)
    assert_close(actual, expected, setup.tolerance)
    if subject.plain and not action.own:
        plain = setup.expected(subject.build(patched=False), subject)
        assert_close(actual, action.expected(plain, subject), setup.tolerance)
    return EQUAL


def in_two_processes() -> None:
    """The gradients of every subject under DDP are those of one process.

    Raises:
        AssertionError: they are others.
    """
    found = two_processes()
    for subject in SUBJECTS:
        for patched in (True, False) if subject.plain else (True,):
            with reference():
                step(model := subject.build(patched), subject)
            assert_close(found[subject.name], gradients(model), NOTHING.tolerance)


@contextmanager
def reference() -> Iterator[None]:
    """The reference alone computes attention."""
    with patch.dict(dispatch.AUTOMATIC, cpu=("reference",)):
        yield


def assert_close(actual: Answer, expected: Answer, tolerance: float) -> None:
    """Each tensor differs by at most `tolerance` times its norm, and has the same infinities."""
    assert actual.keys() == expected.keys(), actual.keys() ^ expected.keys()
    for name, tensor in expected.items():
        other, finite = actual[name], tensor.isfinite()
        assert torch.equal(other[~finite], tensor[~finite]), f"{name}: infinities or NaN differ"
        error = (other[finite].double() - tensor[finite].double()).norm()
        assert error <= tolerance * tensor[finite].double().norm(), f"{name}: differs by {error}"
