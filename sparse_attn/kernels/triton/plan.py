"""Choose the kernel, tiles and arguments of a call."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from sparse_attn.kernels.operators import OperatorInputs
from sparse_attn.kernels.triton.names import Flags, Map, Pairs, Shape, Sizes

SHORT = 1024  # most keys of a row kept on chip
ROWS_HELD = 6  # most rows in shared memory per row of a tile, as the compiler reports
HOPPER = 232448  # shared memory per block in bytes, if there is no device to query
WHOLE = 128  # most queries of a head for a backward pass in one program,
WHOLE_BYTES = 256  # and most bytes per row


def plan(inputs: OperatorInputs) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments shared by all kernels, run-time ones and compile-time ones."""
    query, mask, bias, lengths = inputs.query, inputs.mask, inputs.bias, inputs.key_lengths
    batch, heads, rows, _ = query.shape
    key_heads, keys = inputs.key.shape[1:3]
    nothing = (query, 0, 0, 0, 0)  # placeholder that the flags exclude
    wide = nothing if mask is None else _pointed(mask.view(torch.uint8))
    pairs = Pairs(*wide, *(nothing if bias is None else _pointed(bias)))
    run_time = {
        "theta": inputs.parameter,
        "sink": inputs.sink,
        "lengths": query if lengths is None else lengths.contiguous(),
        "seed": inputs.parameter if inputs.seed is None else inputs.seed,
        "pairs": pairs,
        "sizes": Sizes(heads, heads // key_heads, rows, keys, batch * heads * rows),
        "scaling": (inputs.scale, inputs.softcap),
        "rate": inputs.dropout,
    }
    flags = Flags(
        mask=mask is not None,
        # one mask row for all queries and heads: keys past its end are padding
        padding=mask is not None and pairs.mask_h == pairs.mask_m == 0,
        bias=bias is not None,
        softcap=inputs.softcap > 0,
        causal=inputs.causal,
        window=inputs.window,
        precision=product_precision(query.dtype),
        lengths=lengths is not None,
        dropout=inputs.dropout > 0,
        sink=inputs.sink is not None,
    )
    return run_time, {"MAP": Map(inputs.family, inputs.kernel, skips(inputs)), "FLAGS": flags}


def _pointed(tensor: Tensor) -> tuple[Any, ...]:
    """What broadcasts to the scores, and its strides; views of it would take longer to make."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    strides = [0 if length == 1 else step for length, step in steps]
    return tensor, *[0] * (4 - len(strides)), *strides


def product_precision(dtype: torch.dtype) -> str:
    """Precision of float32 products, as set in PyTorch; others are exact."""
    if dtype != torch.float32:
        return "tf32"
    setting = torch.backends.cuda.matmul.fp32_precision
    if setting == "none":
        setting = torch.backends.fp32_precision  # type: ignore[attr-defined]
    return "tf32" if setting == "tf32" else "tf32x3"


def block_of(length: int) -> int:
    """Block size for `length`: a power of two, large enough for tl.dot."""
    return max(16, 1 << (length - 1).bit_length())


def row_bytes(tensor: Tensor) -> int:
    """Shared memory for one row of queries, keys or values; float32 is stored in two halves."""
    halves = 2 if tensor.dtype == torch.float32 else 1
    return block_of(tensor.shape[3]) * tensor.element_size() * halves


def shared_memory(tensor: Tensor) -> int:
    """Shared memory available to one program, in bytes."""
    return _room(tensor.device) if tensor.device.type == "cuda" else HOPPER


@torch.compiler.assume_constant_result
def _room(device: torch.device) -> int:
    return _room_of(device)


@functools.cache
def _room_of(device: torch.device) -> int:
    """Shared memory per block, 0 where the products of the kernels are not supported."""
    properties: Any = torch.cuda.get_device_properties(device)
    if torch.version.hip is not None or properties.major < 8:
        return 0
    return int(properties.shared_memory_per_block_optin)


def runs_on(tensor: Tensor) -> bool:
    """Whether the GPU supports the kernels' products and fits their smallest tiles."""
    return ROWS_HELD * 16 * row_bytes(tensor) <= shared_memory(tensor)


def is_short(key: Tensor) -> bool:
    """Whether a row of scores and its keys fit on chip."""
    # leave a third for queries and scratch; keys are padded to a power of two
    room = shared_memory(key) * 2 // 3 // row_bytes(key)
    return key.shape[2] <= min(SHORT, 1 << (room.bit_length() - 1))


def tile_side(key: Tensor) -> int:
    """Tile size for rows of several tiles: the largest of 64, 32 and 16 that fits."""
    side = shared_memory(key) // (ROWS_HELD * row_bytes(key))
    return 64 if side >= 64 else 32 if side >= 32 else 16


def fits_whole(key: Tensor) -> bool:
    """Whether queries, keys, values and gradients of a whole head fit on chip."""
    return 4 * WHOLE * row_bytes(key) <= min(shared_memory(key), 4 * WHOLE * WHOLE_BYTES)


def skips(inputs: OperatorInputs) -> bool:
    """Whether tiles without support are marked and skipped."""
    return inputs.skips and not is_short(inputs.key)


def needs_moments(inputs: OperatorInputs) -> bool:
    """Whether the gradient of the scores needs row sums that `out` does not hold."""
    return inputs.family in ("threshold", "projection") or inputs.kernel == "clipped-softmax"


def tiled(key: Tensor) -> Shape:
    """SHAPE for rows of several tiles."""
    side, dim = tile_side(key), key.shape[3]
    return Shape(side, side, dim, block_of(dim), False, False)


def forward_shape(key: Tensor) -> tuple[Shape, int]:
    """SHAPE of the forward kernel and its number of warps."""
    if not is_short(key):
        return tiled(key), 4
    dim, block_n = key.shape[3], block_of(key.shape[2])
    block_m = min(64, max(16, 16384 // block_n))
    return Shape(block_m, block_n, dim, block_of(dim), True, False), 4 if block_n <= 128 else 8


def backward_shape(query: Tensor, key: Tensor) -> tuple[Shape, int, bool]:
    """SHAPE of the query kernel, its number of warps, and whether it is WHOLE."""
    if key.shape[2] > WHOLE or not is_short(key) or not fits_whole(key):
        return tiled(key), 4, False
    dim, block_n = key.shape[3], block_of(key.shape[2])
    whole = query.shape[2] <= WHOLE and query.shape[1] == key.shape[1]
    block_m = block_of(query.shape[2]) if whole else 64
    shape = Shape(block_m, block_n, dim, block_of(dim), True, False)
    return shape, 8 if block_n == 128 else 4, whole


def half_of(shape: Shape, flags: Flags) -> Shape | None:
    """SHAPE for heads whose padding is at least half of the keys."""
    padded = flags.lengths or flags.padding
    if not (padded and shape.short and shape.block_n >= 64):
        return None
    return shape._replace(block_n=shape.block_n // 2, halved=True)
