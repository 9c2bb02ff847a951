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
        self._states: deque[tuple[int, Any]] = deque(maxlen=KEPT)
        self._thread = 0

    def add(self, before: Any, after: Any) -> None:
        """Note a change of state."""
        self._of_this_thread()
        if not self._states:
            self._states.append((0, before))
        # private: torch has no public clock of its nodes
        self._states.append((torch._C._autograd._get_sequence_nr(), after))

    def refuse_recomputation(self, name: str) -> None:
        """Raise RuntimeError in backward if the forward pass had another state."""
        if not self._states or torch.compiler.is_compiling():
            return
        # private: torch cannot be asked publicly whether it runs backward
        if torch._C._current_graph_task_id() == -1:
            self._of_this_thread()
            return
        # private: nor for the node that is running
        node = torch._C._current_autograd_node()
        began = 0 if node is None else node._sequence_nr()
        first, last = self._states[0][1], self._states[-1][1]
        then = next((state for since, state in reversed(self._states) if since <= began), first)
        if then != last:
            raise RuntimeError(
                f"{name} was changed between the forward pass and backward, in which activation "
                "checkpointing computes its layer again; call backward() before patch_model, "
                "unpatch_model, set_value, the step of a schedule or the end of a patched() block"
            )

    def _of_this_thread(self) -> None:
        """Forget the changes in another thread."""
        if self._thread != threading.get_ident():
            self._states.clear()
            self._thread = threading.get_ident()

    def __reduce__(self) -> tuple[type[Changes], tuple[()]]:
        return Changes, ()
