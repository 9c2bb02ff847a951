"""Hooks that raise where a patched head is not what gives a model its logits.

They are functions, and what they keep belongs to the thread: a copy of the model or of its head,
such as a replica of nn.DataParallel or PEFT's modules_to_save, works as the original does.
"""

from __future__ import annotations

import threading
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from sparse_attn.heads.base import Head

# bfloat16 rounds the log p of a uniform distribution over 260,000 classes by 0.03
TOLERANCE = 0.05


# torch.compile would lose what is set on a subclass that has the attribute from the start
_calls = threading.local()


def last_call() -> tuple[Head, Tensor] | None:
    """The head, and its hidden states (..., hidden), while the forward that called it goes on."""
    return cast("tuple[Head, Tensor] | None", getattr(_calls, "last", None))


def install_guard(root: PreTrainedModel, head: Head) -> None:
    """Watch the forward of the model from now on; a head that is taken out takes its hook along."""
    remove_guard(root)
    head.register_forward_hook(_keep)
    root.register_forward_hook(_check_called)
    root.register_forward_hook(_check_sum)


def remove_guard(root: PreTrainedModel) -> None:
    for hook in (_check_called, _check_sum):
        _remove(root, hook)


def _keep(head: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
    """Forward hook of the head."""
    _calls.last = cast(Head, head), inputs[0]


def _check_called(model: nn.Module, inputs: Any, output: Any) -> None:
    """Forward hook of the model: logits and losses must come from the head."""
    called = last_call() is not None
    _calls.last = None
    names = output if isinstance(output, dict) else ["logits"]
    if not called and any("logits" in name or "loss" in name for name in names):
        raise RuntimeError(
            f"{type(model).__name__} computed its output without calling its patched head, so it "
            "is that of the plain one; take the head out with unpatch_lm_head or "
            "unpatch_multilabel_head, or switch off what replaces it, such as use_liger_kernel"
        )


def _check_sum(model: PreTrainedModel, inputs: Any, output: Any) -> None:
    """Forward hook of the model, until the first logits: they must be log p."""
    logits = output.get("logits") if isinstance(output, dict) else None
    if logits is None or torch.compiler.is_compiling():
        return
    total = logits.detach().flatten(0, -2)[-1].float().logsumexp(-1)  # one token [V]: log 1
    if total.abs() > TOLERANCE:  # False for NaN
        raise RuntimeError(
            f"{type(model).__name__} changes its logits after the patched head: log p sums to "
            f"p = {total.exp():.3g} instead of 1; use another model"
        )
    _remove(model, _check_sum)


def _remove(root: nn.Module, wanted: Any) -> None:
    # by value: the handle of a hook does not survive deepcopy; replicas in threads share the dict
    hooks = root._forward_hooks
    for key in [key for key, hook in tuple(hooks.items()) if hook is wanted]:
        hooks.pop(key, None)
