"""Forward hooks of a patched model, which raise instead of computing softmax unnoticed."""

from __future__ import annotations

import threading
import weakref
import zlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel

from sparse_attn.hf.attention import NAME, REACHED
from sparse_attn.hf.layers import AttentionLayer, config_of
from sparse_attn.hf.requested import is_recomputed
from sparse_attn.mappings.changes import Changes


class Flag:
    """State of a module's call, which its copies and pickles do not keep.

    So a call does not change the fingerprint of a pickled model in `datasets`.
    """

    def __init__(self) -> None:
        self.done = False  # whether our attention was called
        # input of the module, if its mapping depends on it; by thread, as several may call one
        # model, and weak, because recomputation in checkpointing stops before the call ends
        self.inputs: dict[int, Any] = {}
        self.mappings = Changes()
        self.is_recomputed = False  # whether a call may be computed again in backward

    def keep_input(self, given: Any) -> None:
        """Keep the input of a call until `drop_input`."""
        if torch.compiler.is_compiling():  # a graph holds the input itself
            self.inputs[0] = given
        elif isinstance(given, Tensor):
            self.inputs[threading.get_ident()] = weakref.ref(given)

    def kept_input(self) -> Any:
        """Return the input of this call, None if there is none."""
        if torch.compiler.is_compiling():
            return self.inputs.get(0)
        found = self.inputs.get(threading.get_ident())
        return None if found is None else found()

    def drop_input(self) -> None:
        """Forget the input of a call that is over."""
        self.inputs.pop(0 if torch.compiler.is_compiling() else threading.get_ident(), None)

    def __reduce__(self) -> tuple[type[Flag], tuple[()]]:
        return Flag, ()


def keep_key(handle: RemovableHandle) -> None:
    """Give a new hook the same key in every model, for the fingerprints of `datasets`.

    PyTorch's keys are numbers that count the hooks of the process.
    """
    hooks = handle.hooks_dict_ref()
    assert hooks is not None
    hook = hooks[handle.id]
    key = -zlib.crc32(f"{hook.__module__}.{hook.__qualname__}".encode())
    assert hooks.get(key, hook) is hook, f"two hooks with the key of {hook}"
    for table in (hooks, *(extra() for extra in handle.extra_dict_ref)):
        if handle.id in table:
            table[key] = table.pop(handle.id)


def add_layer_hooks(layers: Sequence[AttentionLayer]) -> None:
    """Add the hooks of attention modules, once."""
    for layer in layers:
        drop_hooks(layer.module, refuse_recomputation, _check_dispatch, _check_reached)
        keep_key(layer.module.register_forward_pre_hook(_check_dispatch, with_kwargs=True))
        keep_key(layer.module.register_forward_hook(_check_reached))


def remove_layer_hooks(layers: Sequence[AttentionLayer]) -> None:
    """Remove the hooks and their flags."""
    for layer in layers:
        drop_hooks(layer.module, _check_dispatch, _check_reached)
        flag = layer.module.__dict__.pop(REACHED, None)
        if flag is not None and flag.is_recomputed:
            layer.module.__dict__[REACHED] = flag
            keep_key(layer.module.register_forward_pre_hook(refuse_recomputation))


def _check_dispatch(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise if the attention implementation has been switched; keep the input if it is needed."""
    refuse_recomputation(module)
    if getattr(getattr(module, NAME), "by_query", None) is not None:
        given = args[0] if args else kwargs.get("hidden_states")
        module.__dict__[REACHED].keep_input(given)
    config = config_of(module)
    # private: configs have no public name for their attention implementation
    implementation = config._attn_implementation
    if implementation == NAME:
        return
    raise RuntimeError(
        f"{type(module).__name__} is patched with {getattr(module, NAME).name}, but the "
        f"model's attention implementation was changed to {implementation!r}; call "
        f"unpatch_model first, or model.set_attn_implementation({NAME!r}) to go back. Whisper's "
        "return_token_timestamps makes this change; it needs unpatch_model"
    )


def set_mapping(module: nn.Module, mapping: nn.Module | None) -> None:
    """Set the mapping of an attention module; None for softmax, of the model itself."""
    before = getattr(module, NAME, None)
    if mapping is not None:
        setattr(module, NAME, mapping)
    elif before is not None:
        delattr(module, NAME)
    # weak, because old mappings may be large
    states = [None if m is None else weakref.ref(m) for m in (before, mapping)]
    module.__dict__.setdefault(REACHED, Flag()).mappings.add(*states)


def refuse_recomputation(module: nn.Module, args: Any = None) -> None:
    """Forward pre-hook: raise in backward if the forward pass had another mapping, or softmax.

    It stays after unpatching, if activation checkpointing may call the module again.
    """
    if torch.compiler.is_compiling():
        return
    flag = module.__dict__[REACHED]
    flag.mappings.refuse_recomputation(type(module).__name__)
    flag.is_recomputed |= is_recomputed(module)


def _check_reached(module: nn.Module, args: Any, output: Any) -> None:
    """Raise if the module's forward bypassed the attention interface."""
    reached = module.__dict__[REACHED]
    if reached.inputs:
        reached.drop_input()
    if not reached.done:
        raise RuntimeError(
            f"{type(module).__name__} is patched with {getattr(module, NAME).name}, but computed "
            "its output without it, bypassing the attention interface; unpatch this model"
        )


def ask_for_weights(
    root: PreTrainedModel, args: Any, kwargs: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Set output_attentions=True, which a config allows only with eager attention."""
    return args, {"output_attentions": True, **kwargs}


def asks_for_weights(root: PreTrainedModel) -> bool:
    """Whether every call of this model returns attention weights."""
    # private: nn.Module has no public way to ask which hooks it has
    return ask_for_weights in root._forward_pre_hooks.values()


def drop_hooks(module: nn.Module, *functions: Any) -> None:
    """Remove these forward hooks from a module, if present."""
    # private: nn.Module has no public way to find a hook without its handle
    options = (module._forward_pre_hooks_with_kwargs, module._forward_hooks_always_called)
    for hooks in (
        module._forward_pre_hooks,
        module._forward_hooks,
    ):
        # by value, because handles do not survive deepcopy; replicas in threads share these tables
        for key in [key for key, hook in tuple(hooks.items()) if hook in functions]:
            for table in (hooks, *options):
                table.pop(key, None)
