"""Values that a call of attention must return besides its output, and for whom."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from transformers.utils.output_capturing import (
    _active_collector,  # private: no argument tells that attention weights are collected
)

from sparse_attn.kernels.inputs import AttentionInputs
from sparse_attn.kernels.operators import has_hooks
from sparse_attn.mappings import Mapping

OBSERVER = "_sparse_attn_observer"


class Observer(Protocol):
    """Observer of every call of an attention module, set as its attribute OBSERVER."""

    keeps_weights: bool

    def special(self, batch: int, keys: int) -> Tensor | None:
        """Return the keys to sum the mass of, (B, K), bool; None for none."""

    def see(self, inputs: AttentionInputs, rows: Tensor, weights: Tensor | None) -> None:
        """Record a call: its `kernels.statistics` by row, and the weights if kept."""


class Requested(NamedTuple):
    """Values that a call must return besides its output."""

    weights: bool  # to the caller, or to Transformers' collector
    separate_weights: bool  # to the collector, while the output is of the kernel that runs again
    observer: Observer | None

    @property
    def only_output(self) -> bool:
        """Whether the call must give nothing besides its output."""
        return not self.weights and not self.separate_weights and self.observer is None

    @classmethod
    def of(cls, module: nn.Module, mapping: Mapping, kwargs: dict[str, Any]) -> Requested:
        """Return what this call of the module must give."""
        collected = _are_collected_here()
        # the recomputation has no collector, and must run the same kernel
        in_graph = torch.compiler.is_compiling()
        separate = collected and not in_graph and module.training and is_recomputed(module)
        # private: nn.Module has no public way to ask which hooks it has
        observed = (
            kwargs.get("output_attentions")
            or mapping._forward_hooks
            or mapping._forward_pre_hooks
            or mapping._backward_hooks
            or mapping._backward_pre_hooks
        )
        weights = bool(observed) or (collected and not separate)
        return cls(weights, separate, module.__dict__.get(OBSERVER))


def is_recomputed(module: nn.Module) -> bool:
    """Whether activation checkpointing may run this forward pass again.

    With reentrance it runs without gradients, otherwise under hooks for saved tensors.
    """
    return has_hooks() or (module.training and not torch.is_grad_enabled())


def _are_collected_here() -> bool:
    """Return `_are_collected` in eager mode and in a graph."""
    # Dynamo traces a collector set in the same graph, but not one set outside
    outside = torch.compiler.is_compiling() and not _active_collector.compiling
    return _are_collected_outside() if outside else _are_collected()


def _are_collected() -> bool:
    """Whether Transformers collects attention weights of the current forward pass."""
    return any("attentions" in name for name in _active_collector.get() or {})


@torch.compiler.assume_constant_result
def _are_collected_outside() -> bool:
    """Return `_are_collected` as of making the graph, for layers compiled one by one."""
    return _are_collected()
