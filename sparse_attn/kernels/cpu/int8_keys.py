"""Keys of a cache as int8: most keys of a decoding step are ruled out by them and never read."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from sparse_attn.kernels.cpu import build
from sparse_attn.kernels.cpu.kernel_args import View

PANEL = 64  # keys that lie together, see cached.h
NUMBERS = 12  # bytes of a key's scale and bounds


def empty_int8(keys: Tensor) -> Tensor | None:
    """Allocate int8 keys for keys (B, Hkv, N, D) of whole panels; None if they are not used."""
    dim, library = keys.shape[3], build.library()
    plain = keys.device.type == "cpu" and keys.dtype == torch.float32
    if not plain or isinstance(library, str) or not library.has_int8_keys(ctypes.c_int64(dim)):
        return None
    shape = *keys.shape[:2], keys.shape[2] // PANEL, PANEL * (dim + NUMBERS)
    return keys.new_empty(shape, dtype=torch.uint8)


def quantise(keys: Tensor, int8: Tensor, first: int, end: int) -> None:
    """Write the keys [first, end) into the int8 keys."""
    library = build.library()
    assert not isinstance(library, str)
    views = [View(tensor.data_ptr(), tensor.stride()) for tensor in (keys, int8)]
    numbers = (*keys.shape[:2], keys.shape[3], first, end)
    library.quantise_keys(*map(ctypes.byref, views), *map(ctypes.c_int64, numbers))
