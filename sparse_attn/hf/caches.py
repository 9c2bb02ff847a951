"""A cache for `generate` that keeps its keys as int8 too."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedConfig
from transformers.cache_utils import DynamicLayer

from sparse_attn.hf.attention import INT8_KEYS
from sparse_attn.kernels.cpu.int8_keys import PANEL, empty_int8, quantise


class ScreeningCache(DynamicCache):
    """Cache for `generate` that makes decoding after a long text faster on a CPU.

    Sparsemax, entmax, max-gap, t-softmax and sparsegen give most keys a weight of 0. This cache
    also keeps the keys in int8. From these, each new token finds the keys that can have a weight,
    and reads only them. The output stays exact. The int8 keys take 15 % more memory for heads of
    64, need float32 and a processor with AVX-512 VNNI, and are left out elsewhere.

    New tokens are written in place, while `DynamicCache` copies the cache for each token. Tensors
    that you take from the cache can therefore change after `crop`.

    Args:
        config: config of the model. Layers with a sliding window stay those of Transformers.
    """

    layers: list[Any]

    def __init__(self, config: PreTrainedConfig | None = None) -> None:
        super().__init__(config=config)
        if config is None:
            self.layer_class_to_replicate = ScreeningLayer
        self.layers = [
            ScreeningLayer() if type(layer) is DynamicLayer else layer for layer in self.layers
        ]


class ScreeningLayer(DynamicLayer):
    """Layer of a `ScreeningCache`; its keys and values are the first part of longer tensors."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._stored: list[Tensor] = []  # keys, values and, if they are used, int8 keys
        self._version = 0

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what only the original may write to."""
        return {**self.__dict__, "_stored": []}

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append keys and values; return all."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        states = key_states, value_states, self.keys, self.values
        with_graph = torch.is_grad_enabled() and any(t.requires_grad for t in states)
        if with_graph or torch.compiler.is_compiling():
            return super().update(key_states, value_states, *args, **kwargs)
        # tensors of inference mode could not be written to outside it
        with torch.inference_mode(False), torch.no_grad():
            self._append(key_states, value_states)
        return self.keys, self.values

    def _append(self, key_states: Tensor, value_states: Tensor) -> None:
        first = self.get_seq_length()
        end = first + key_states.shape[2]
        if self._continues(key_states, value_states) and end <= self._stored[0].shape[2]:
            keys, values, *int8 = self._stored
            keys[:, :, first:end], values[:, :, first:end] = key_states, value_states
        else:
            first, spare = 0, end // 8 + PANEL
            spare -= (end + spare) % PANEL
            keys, values = (
                torch.cat([old, new, new.new_empty(*new.shape[:2], spare, new.shape[3])], dim=2)
                for old, new in ((self.keys, key_states), (self.values, value_states))
            )
            int8 = [panels for panels in [empty_int8(keys)] if panels is not None]
        for panels in int8:
            quantise(keys, panels, first, end)
        self._show([keys, values, *int8], end)

    def _continues(self, *states: Tensor) -> bool:
        """Whether the stored keys and values are still those of the layer, and fit the states."""
        return (
            bool(self._stored)
            and self._stored[0]._version == self._version
            and all(
                shown.data_ptr() == whole.data_ptr()
                and shown.stride() == whole.stride()
                and _kind(shown) == _kind(whole) == _kind(new)
                for shown, whole, new in zip(
                    (self.keys, self.values), self._stored, states, strict=False
                )
            )
        )

    def _show(self, stored: list[Tensor], length: int) -> None:
        keys, values, *int8 = self._stored = stored
        self._version = keys._version
        self.keys, self.values = keys[:, :, :length], values[:, :, :length]
        for panels in int8:
            setattr(self.keys, INT8_KEYS, panels)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Reorder the batch for beam search."""
        length = self.get_seq_length()
        if not length or not self._continues(self.keys, self.values):
            super().reorder_cache(beam_idx)
            return
        with torch.inference_mode(False), torch.no_grad():
            self._show([t.index_select(0, beam_idx.to(t.device)) for t in self._stored], length)

    def reset(self) -> None:
        """Forget all tokens."""
        self.is_initialized = False  # Transformers 5.17 would keep the length
        super().reset()


def _kind(states: Tensor) -> tuple[Any, ...]:
    return states.shape[:2], states.shape[3], states.dtype, states.device
