"""Changes between a forward pass and its recomputation in backward, by activation checkpointing."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import torch

KEPT = 1000  # changes that a forward pass may be away from its backward pass


class Changes:
    """States of an object, and since when they hold. Copies and pickles start without any.

    The time is the number of autograd's next node: the node that recomputes was made by the forward
    pass. Each thread counts for itself, so changes in one thread say nothing about another.
    """

    def __init__(self) -> None:
        self.states: deque[tuple[int, Any]] = deque(maxlen=KEPT)
        self.is_of_copy = False  # not pickled: a copy has the fingerprint of the original
        self._thread = 0

    def add(self, before: Any, after: Any) -> None:
        """Note a change of state."""
        node = self._running()
        if not self.states:
            self.states.append((0, before))
        # private: torch has no public clock of its nodes
        next_node = torch._C._autograd._get_sequence_nr
        self.states.append((next_node() if node is None else node._sequence_nr() + 1, after))

    def refuse_recomputation(self, name: str) -> None:
        """Raise RuntimeError in backward if the forward pass had another state."""
        if not self.states or torch.compiler.is_compiling():
            return
        if (node := self._running()) is None:
            return
        began, first = node._sequence_nr(), self.states[0][1]
        then = next((state for since, state in reversed(self.states) if since <= began), first)
        if then != self.states[-1][1]:
            raise RuntimeError(
                f"{name} was changed between the forward pass and backward, in which activation "
                "checkpointing computes its layer again; call backward() before patch_model, "
                "unpatch_model, set_value, the step of a schedule or the end of a patched() block"
            )

    def _running(self) -> Any:
        """Return the node that runs backward; outside of it forget changes in another thread."""
        # private: torch cannot be asked publicly for it
        node = torch._C._current_autograd_node()
        if node is None and self._thread != threading.get_ident():
            self.states.clear()
            self._thread = threading.get_ident()
        return node

    def __reduce__(self) -> tuple[type[Changes], tuple[()]]:
        return Changes, ()
