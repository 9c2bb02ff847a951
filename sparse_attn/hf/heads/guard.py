"""Check that the logits of a patched model are the log p of its head.

`refuse_changed_logits` raises early if config or parameters show a change. Any other change shows
in the first logits, which hooks compare with the output of the head. The hooks are functions with
thread-local state, so a copy of the model or its head, such as a replica of nn.DataParallel or
PEFT's modules_to_save, works like the original.
"""

from __future__ import annotations

import threading
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from sparse_attn.heads.base import Head
from sparse_attn.hf.config import models_in
from sparse_attn.hf.hooks import Flag, drop_hooks, keep_key
from sparse_attn.hf.layers import source_of_forward

# config entries for arithmetic after a head, and the value that switches it off
SWITCHES = {
    "final_logit_softcapping": None,  # Gemma 2
    "logits_soft_cap": None,  # RecurrentGemma
    "output_logit_soft_cap": None,  # xLSTM
    "logit_scale": 1,  # Cohere
    "logits_scaling": 1,  # Granite
    "lm_head_multiplier": 1,  # Falcon-H1
}

CHECKED = "_sparse_attn_checked"  # flag of a head whose model returns its output as logits

# no subclass with class attributes: torch.compile would lose assignments to them
_calls = threading.local()


def owners(root: PreTrainedModel, head: nn.Module) -> list[PreTrainedModel]:
    """Return the models in `root`, including `root`, with this output embedding."""
    return [m for _, m in models_in(root) if m.get_output_embeddings() is head]


def refuse_changed_logits(root: PreTrainedModel, head: nn.Module) -> None:
    """Raise ValueError if config or parameters show that logits are not the head's output."""
    lost = "so they would no longer be log p"
    for owner in owners(root, head):
        config, name = owner.config.get_text_config(decoder=True), type(owner).__name__
        # Aya Vision has the config of Cohere's language model, but does not apply its scale
        # private: no attribute tells which entries of its config a model uses
        used = source_of_forward(type(owner))
        for key, off in SWITCHES.items():
            if key in used and (value := getattr(config, key, off)) not in (off, None):
                raise ValueError(
                    f"{name} changes its logits after the head (config.{key}={value}), {lost}; set "
                    f"that to {off}, or use another model"
                )
        holders = [m for m in owner.modules() if m is owner or head in m.children()]
        # one that is still to be loaded has no values, and was looked at when the head was saved
        if bias := next(filter(None, (_other_bias(head, holder) for holder in holders)), None):
            raise ValueError(
                f"{name} adds its {bias} to the logits, {lost}; use a checkpoint where a buffer of "
                "that name is zero, or another model"
            )


def _other_bias(head: nn.Module, holder: nn.Module) -> str | None:
    """Find a bias over words besides the head's, by name."""
    words = (len(cast(Tensor, head.weight)),)
    for name, buffer in holder.named_buffers("", False):
        if buffer.shape[-1:] == words and not buffer.is_meta and buffer.count_nonzero():
            return name
    # if the head has a bias, such as BERT's, the parameter is a second name for it, or unused
    for name, parameter in holder.named_parameters("", False):
        if parameter.shape == words and head.bias is None:
            return name
    return None


def last_call() -> tuple[Head, Tensor] | None:
    """Return the head and its hidden states (..., hidden) during the forward that called it."""
    return cast("tuple[Head, Tensor] | None", getattr(_calls, "last", None))


def install_guard(root: PreTrainedModel, head: nn.Module) -> None:
    """Add the hooks to model and head; a removed head keeps its hooks."""
    remove_guard(root)
    keep_key(root.register_forward_pre_hook(_begin, with_kwargs=True))
    keep_key(head.register_forward_hook(_keep_call))
    keep_key(head.register_forward_hook(_keep_rows))
    keep_key(root.register_forward_hook(_check_called))
    keep_key(root.register_forward_hook(_check_logits))
    head.__dict__[CHECKED] = Flag()


def remove_guard(root: PreTrainedModel) -> None:
    """Remove the hooks from the model."""
    drop_hooks(root, _begin, _check_called, _check_logits)


def _begin(model: nn.Module, inputs: Any, options: dict[str, Any]) -> None:
    """Forward pre-hook of the model: forget an aborted forward, and refuse TRL's fused head."""
    _calls.last = _calls.kept = None
    if options.get("fused_lm_head"):
        raise RuntimeError(
            f"{type(model).__name__}: its trainer, such as TRL's SFTTrainer or DPOTrainer, asked "
            "for fused_lm_head, which computes softmax from the weight of the output layer instead "
            "of calling the patched head; train with Trainer of Transformers, whose loss is the "
            "head's, or call unpatch_lm_head, which leaves patched attention as it is"
        )


def _keep_call(head: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
    """Forward hook of the head: keep the call for `last_call`."""
    _calls.last = cast(Head, head), inputs[0]


def _keep_rows(head: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
    """Forward hook of the head, until `_check_logits` has seen its rows."""
    if head.__dict__[CHECKED].done:
        return
    rows = output.detach().flatten(0, -2)
    # a classifier may pick any row; over a vocabulary, all rows would be too large to keep
    _calls.kept = head, _ends(rows) if isinstance(head, Head) else rows.clone()


def _check_called(model: nn.Module, inputs: Any, output: Any) -> None:
    """Forward hook of the model: logits and losses must come from the head."""
    called = last_call() is not None
    _calls.last = None
    names = output if isinstance(output, dict) else ["logits"]
    if not called and any("logits" in name or "loss" in name for name in names):
        raise RuntimeError(
            f"{type(model).__name__} computed its output without calling its patched head, so it "
            "is the plain head's; unpatch it with unpatch_lm_head or unpatch_multilabel_head, or "
            "disable what multiplies by its weight instead, such as use_liger_kernel"
        )


def _check_logits(model: PreTrainedModel, inputs: Any, output: Any) -> None:
    """Forward hook of the model: its first or last row of logits must be a row of the head's.

    Eager mode checks until the first logits. A compiled model asserts in each call, without a
    device synchronisation.
    """
    kept, _calls.kept = getattr(_calls, "kept", None), None
    if kept is None:
        return
    head, rows = kept
    logits = _logits_of(output, rows.shape[-1:])
    if logits is None or not logits.numel() or logits.is_meta:
        return
    ends = _ends(logits.detach().flatten(0, -2)).unsqueeze(1)  # [2, 1, V]
    # broadcast first, because equal_nan of torch 2.11 fails with broadcasting
    ends, rows = torch.broadcast_tensors(ends, rows.to(ends))
    equal = torch.isclose(ends, rows, rtol=0, atol=0, equal_nan=True).all(-1).any()
    message = (
        f"{type(model).__name__} changes its logits after the patched head, so they are not log p; "
        "use another model"
    )
    if torch.compiler.is_compiling():
        # private: no public assertion spares the device a synchronisation
        torch._assert_async(equal, message)
        return
    if not equal:
        raise RuntimeError(message)
    head.__dict__[CHECKED].done = True


def _logits_of(output: Any, words: torch.Size) -> Tensor | None:
    if isinstance(output, dict):
        return output.get("logits")
    tensors = [
        x for x in ([output] if isinstance(output, Tensor) else output) if isinstance(x, Tensor)
    ]
    return next((x for x in tensors if x.dim() > 1 and x.shape[-1:] == words), None)


def _ends(rows: Tensor) -> Tensor:
    """Copy the first and the last of rows [N, V], [2, V]."""
    return torch.cat([rows[:1], rows[-1:]])
