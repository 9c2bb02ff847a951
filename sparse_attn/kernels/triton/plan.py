"""Choose the kernel, tiles and arguments of a call."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sparse_attn.kernels.dropout import BITS, scale_of, share_of
from sparse_attn.kernels.operators import OperatorInputs
from sparse_attn.kernels.triton import settings
from sparse_attn.kernels.triton.names import Flags, Map, Pairs, Shape, Sizes
from sparse_attn.kernels.triton.settings import Setting

SHORT = 128  # most keys of a row in one tile, and most queries and keys of a head that is WHOLE
KEPT_TILE, KEPT_DIM = 64, 64  # keys of a tile of a row kept on chip, and largest head_dim
# most keys of such a row, in blocks of 64 and of 32 queries: with more, loops of the compiled code
# (of softpick all of it) would use local memory; sigmoid and relu take one pass over most rows, and
# gain nothing
KEPT = (256, 0)
KEPT_BY_KERNEL = {
    "top-p-softmax": (128, 256),
    "softpick": (0, 0),
    "entmax": (0, 0),
    "sigmoid": (0, 0),
    "relu": (0, 0),
}
SHORT_BYTES = 256  # most bytes per row of keys or queries
TILE_BYTES = 16384  # most for a tile of queries, keys or values; beyond, registers spill
LEAST_SIDE = 16  # least side of a tile
ROWS_HELD = 7  # most rows in shared memory per row of a tile, as the compiler reports
HOPPER = 232448  # shared memory per block in bytes, used without a device to query
FEW, MANY = 16, 2048  # most queries and least keys to split the keys over programs
PART = 8  # least tiles of a part
STORED = 4096  # scores of a tile with split keys
MOST_PLANS = 1024
_OPTIONS = OperatorInputs._fields.index("kernel")

Options = dict[str, int]  # options of a launch


class LaunchPlan(NamedTuple):
    """Arguments shared by all calls of one layout."""

    fixed: tuple[Any, ...]  # sizes, scaling and dropping of every kernel
    map: Map
    of_mask: Any  # strides
    of_bias: Any
    flags: Flags
    forward: tuple[Shape, Options]
    backward: tuple[Shape, Options, bool]
    backward_flags: Flags
    keys: tuple[Shape, Options]
    split: tuple[int, int] | None  # for few queries: parts of the keys, and tiles per part
    compiled: dict[Any, Any]  # kernels by what else than the layout decides about them

    def arguments(self, inputs: OperatorInputs) -> tuple[Any, ...]:
        """Return the arguments of every kernel from theta to dropping, in the order of all."""
        query, mask, bias = inputs.query, inputs.mask, inputs.bias
        bounds = inputs.key_lengths if inputs.cu_seqlens is None else inputs.cu_seqlens
        masks = query if mask is None else mask, *self.of_mask
        biases = query if bias is None else bias, *self.of_bias
        return (
            inputs.parameter,
            inputs.sink,
            query if bounds is None else bounds.contiguous(),
            inputs.parameter if inputs.seed is None else inputs.seed,
            Pairs._make((*masks, *biases)),
            *self.fixed,
        )


_PLANS: dict[tuple[Any, ...], LaunchPlan] = {}


def plan(inputs: OperatorInputs, grad: bool, moments: bool) -> LaunchPlan:
    """Return the plan of this layout; cached, because making one takes as long as a launch."""
    query, key, value, mask, bias = *inputs[:3], inputs.mask, inputs.bias
    lengths, ends = inputs.key_lengths, inputs.cu_seqlens
    layout = (
        query.shape,
        key.shape,
        query.stride(),
        key.stride(),
        value.stride(),
        query.dtype,
        query.device,
        None if mask is None else (mask.shape, mask.stride()),
        None if bias is None else (bias.shape, bias.stride(), bias.dtype),
        None if lengths is None else lengths.dtype,
        None if ends is None else (len(ends), ends.dtype),
        inputs.sink is None,
        product_precision(query.dtype),
        grad,
        moments,
        *inputs[_OPTIONS:],
    )
    found = _PLANS.get(layout)
    if found is None:
        if len(_PLANS) >= MOST_PLANS:
            _PLANS.clear()
        found = _PLANS[layout] = _plan(inputs, grad, moments)
    return found


def _plan(inputs: OperatorInputs, grad: bool, moments: bool) -> LaunchPlan:
    query, key, mask, bias = inputs.query, inputs.key, inputs.mask, inputs.bias
    heads, rows = query.shape[1:3]
    key_heads, keys = key.shape[1:3]
    packed = inputs.cu_seqlens
    of_mask, of_bias = _strides(mask), _strides(bias)
    # a single mask row for all queries and heads: keys past its end are padding
    padding = mask is not None and of_mask[1] == of_mask[2] == 0
    flags = Flags(
        plain=bias is None and inputs.softcap == 0 and inputs.scale > 0,
        ragged=bias is not None or (mask is not None and not padding),
        mask=mask is not None,
        padding=padding,
        bias=bias is not None,
        softcap=inputs.softcap > 0,
        causal=inputs.causal,
        window=inputs.window,
        precision=product_precision(query.dtype),
        lengths=inputs.key_lengths is not None,
        packed=packed is not None,
        dropout=inputs.dropout > 0,
        sink=inputs.sink is not None,
    )
    backward = shape, _, whole = backward_shape(inputs, flags)
    # a single loop for the one or two tiles of a whole head
    backward_flags = flags._replace(ragged=True) if whole and not shape.full else flags
    sizes = Sizes(heads, heads // key_heads, rows, keys, 0 if packed is None else len(packed))
    return LaunchPlan(
        (sizes, (inputs.scale, inputs.softcap), _dropping(inputs.dropout)),
        Map(inputs.family, inputs.kernel, skips(inputs, grad), grad, moments),
        of_mask,
        of_bias,
        flags,
        forward_shape(inputs, flags, grad),
        backward,
        backward_flags,
        keys_shape(inputs),
        None if grad else split_of(inputs),
        {},
    )


def _dropping(rate: float) -> tuple[int, float]:
    """Return `cut` and `scale` of names.Drop."""
    return (share_of(rate) << (32 - BITS)) - 2**31, scale_of(rate)


def _strides(tensor: Tensor | None) -> tuple[int, ...]:
    """Return strides of a tensor broadcast to the scores; 0 for None, which the flags exclude."""
    if tensor is None:
        return 0, 0, 0, 0
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    strides = [0 if length == 1 else step for length, step in steps]
    return (*[0] * (4 - len(strides)), *strides)


def product_precision(dtype: torch.dtype) -> str:
    """Return PyTorch's setting for the precision of float32 products; other products are exact."""
    if dtype != torch.float32:
        return "tf32"
    setting = torch.backends.cuda.matmul.fp32_precision
    if setting == "none":
        setting = torch.backends.fp32_precision  # type: ignore[attr-defined]
    return "tf32" if setting == "tf32" else "tf32x3"


def block_of(length: int) -> int:
    """Return the block size for `length`: a power of two, large enough for tl.dot."""
    return max(16, 1 << (length - 1).bit_length())


def row_bytes(tensor: Tensor, dtype: torch.dtype | None = None) -> int:
    """Shared memory for one row of queries, keys or values; float32 is stored in two halves."""
    dtype = dtype or tensor.dtype
    halves = 2 if dtype == torch.float32 else 1
    return block_of(tensor.shape[3]) * dtype.itemsize * halves


def shared_memory(tensor: Tensor) -> int:
    """Shared memory available to one program, in bytes."""
    return _room(tensor.device) if tensor.device.type == "cuda" else HOPPER


@functools.cache
def _properties(device: torch.device) -> Any:
    return torch.cuda.get_device_properties(device)


@torch.compiler.assume_constant_result
def _room(device: torch.device) -> int:
    return _room_of(device)


@functools.cache
def _room_of(device: torch.device) -> int:
    """Shared memory per block in bytes; 0 if the GPU does not support the kernels' products."""
    properties = _properties(device)
    if torch.version.hip is not None or properties.major < 8:
        return 0
    return int(properties.shared_memory_per_block_optin)


def runs_on(tensor: Tensor, dtype: torch.dtype) -> bool:
    """Whether the GPU supports the kernels' products and fits their smallest tiles in `dtype`."""
    return ROWS_HELD * LEAST_SIDE * row_bytes(tensor, dtype) <= shared_memory(tensor)


def is_short(key: Tensor) -> bool:
    """Whether all keys of a head fit on chip."""
    fits = 4 * SHORT * row_bytes(key) <= shared_memory(key) and row_bytes(key) <= SHORT_BYTES
    return key.shape[2] <= SHORT and fits


def tile_side(key: Tensor) -> int:
    """Tile size for rows of several tiles: 64, or 32 or 16 for large dims."""
    side = min(64, TILE_BYTES // row_bytes(key))
    room = shared_memory(key) // (ROWS_HELD * row_bytes(key))
    return side if side <= room else side // 2


def kept_rows(inputs: OperatorInputs) -> int:
    """Queries of a block whose rows stay on chip in several tiles, 0 if they do not.

    A row of up to 128 keys without padding is in a single tile instead.
    """
    key = inputs.key
    if inputs.family == "pointwise" or tile_side(key) < KEPT_TILE:
        return 0
    if block_of(key.shape[3]) > KEPT_DIM:
        return 0
    limits = KEPT_BY_KERNEL.get(inputs.kernel, KEPT)
    searched = inputs.kernel in ("r-softmax", "top-p-softmax")
    if searched and settings.capability_of(key.device) != settings.HOPPER:
        limits = (SHORT, 0)  # compiled for 8.0, loops of more keys use local memory
    blocks = zip((64, 32), limits, strict=True)
    return next((rows for rows, most in blocks if key.shape[2] <= most), 0)


def skips(inputs: OperatorInputs, grad: bool) -> bool:
    """Whether tiles without support are listed and skipped; kept tiles are listed for gradients."""
    return inputs.skips and not is_short(inputs.key) and (grad or not kept_rows(inputs))


def needs_moments(inputs: OperatorInputs, learned: bool) -> bool:
    """Whether the gradient needs sums over rows that no output of the forward pass gives."""
    if inputs.kernel in ("sparsecone", "sparsehourglass", "adaptive-temperature"):
        return True
    if inputs.family == "threshold" and inputs.query.shape[3] < LEAST_SIDE:
        return True  # see `scores.gradient_dot`
    return learned and inputs.family != "truncated"


def tiled(key: Tensor) -> Shape:
    """Default SHAPE for rows of several tiles."""
    side, dim = tile_side(key), key.shape[3]
    return Shape(side, side, dim, block_of(dim), 0, False)


def setting_of(kernel: str, inputs: OperatorInputs) -> Setting:
    """Return the setting for rows of several tiles: the best measured on this GPU, or the default.

    Tile lists for the backward pass need square tiles, so other settings are not used with them.
    """
    key, side = inputs.key, tile_side(inputs.key)
    square = Setting(side, side)
    if is_short(key) or key.dtype == torch.float32:  # settings are of half precision
        return square
    names = inputs.kernel, inputs.family
    found = settings.best(inputs.query.device, kernel, names, row_bytes(key), key.shape[2])
    listed = kernel != "inference" and skips(inputs, True)
    return square if found is None or (listed and found[:2] != (side, side)) else found


def forward_setting(inputs: OperatorInputs, grad: bool) -> Setting:
    """Return the setting of the forward kernel, which lists tiles if some are skipped."""
    if rows := kept_rows(inputs):
        return Setting(rows, KEPT_TILE)
    return setting_of("forward" if grad else "inference", inputs)


def forward_shape(inputs: OperatorInputs, flags: Flags, grad: bool) -> tuple[Shape, Options]:
    """Return SHAPE and launch options of the forward kernel."""
    key, setting = inputs.key, forward_setting(inputs, grad)
    block_n = block_of(key.shape[2])
    # several tiles: a head with mostly padding then computes one of two
    padded = (flags.lengths or flags.padding) and block_n > 64
    if is_short(key) and not padded:
        full = _is_full(key, block_n, flags)
        shape = Shape(64, block_n, key.shape[3], block_of(key.shape[3]), 1, full)
    else:
        shape = sized(key, setting)
        if kept_rows(inputs):
            full = _is_full(key, KEPT_TILE, flags)
            shape = shape._replace(kept=-(-key.shape[2] // KEPT_TILE), full=full)
    return shape, setting.options


def sized(key: Tensor, setting: Setting) -> Shape:
    """SHAPE for rows of several tiles with a setting."""
    return tiled(key)._replace(block_m=setting.block_m, block_n=setting.block_n)


def _is_full(key: Tensor, block_n: int, flags: Flags) -> bool:
    """Whether all scores of all tiles are valid."""
    masked = flags.ragged or flags.causal or flags.window or flags.lengths or flags.padding
    return not flags.packed and key.shape[2] % block_n == 0 and not masked


def backward_shape(inputs: OperatorInputs, flags: Flags) -> tuple[Shape, Options, bool]:
    """Return SHAPE and launch options of the query kernel, and whether it is WHOLE."""
    query, key = inputs.query, inputs.key
    tile = tiled(key)
    if not is_short(key) or query.shape[2] > SHORT or query.shape[1] != key.shape[1]:
        setting = setting_of("queries", inputs)
        return sized(key, setting), setting.options, False
    block_m = block_of(query.shape[2])
    block_n = min(tile.block_n, block_of(key.shape[2]))
    full = _is_full(key, block_n, flags)
    shape = tile._replace(block_m=block_m, block_n=block_n, full=full)
    setting = Setting(block_m, block_n, warps=8 if block_m == SHORT else 4)
    return shape, setting.options, True


def keys_shape(inputs: OperatorInputs) -> tuple[Shape, Options]:
    """Return SHAPE and launch options of the keys' kernel."""
    setting = setting_of("keys", inputs)
    return sized(inputs.key, setting), setting.options


def split_of(inputs: OperatorInputs) -> tuple[int, int] | None:
    """Return parts of the keys and tiles per part if few queries leave the GPU mostly idle."""
    batch, heads, rows, _ = inputs.query.shape
    tiles = -(-inputs.key.shape[2] // tile_side(inputs.key))
    on_gpu = inputs.query.device.type == "cuda"
    processors = _properties(inputs.query.device).multi_processor_count if on_gpu else 132
    parts = min(tiles // PART, 4 * processors // (batch * heads))
    if rows > FEW or inputs.key.shape[2] < MANY or inputs.dropout > 0 or parts < 2:
        return None
    chunk = -(-tiles // parts)
    return -(-tiles // chunk), chunk


def decode_shapes(query: Tensor, key: Tensor) -> tuple[Shape, Shape]:
    """Return SHAPE for few queries: for products, and for stored scores."""
    shape = tiled(key)._replace(block_m=FEW)
    block_m = 1 << (query.shape[2] - 1).bit_length()
    return shape, shape._replace(block_m=block_m, block_n=STORED // block_m, stored=True)
