"""Block sizes, grids and the two custom operators through which PyTorch sees the kernels."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from sparse_attn.kernels.triton.backward import query_kernel
from sparse_attn.kernels.triton.backward_keys import key_kernel
from sparse_attn.kernels.triton.forward import forward_kernel
from sparse_attn.kernels.triton.names import Flags, Map, Pairs, Shape, Sizes

SHORT = 1024  # keys of a row that stay on the chip
ROWS_HELD = 6  # rows in shared memory for each of a tile, by what the compiler reports, at most
HOPPER = 232448  # bytes of shared memory of a block, where there is no device to ask
WHOLE = 128  # queries of a head whose backward pass is one program,
WHOLE_BYTES = 256  # if their rows are no larger

FAMILIES = {
    "pointwise": (
        "softmax",
        "sigsoftmax",
        "taylor-softmax",
        "spherical-softmax",
        "softmax-abs",
        "normalized-relu",
        "normalized-sigmoid",
    ),
    "threshold": ("t-softmax", "r-softmax"),
    "projection": (
        "sparsemax",
        "sparsegen",
        "sparsecone",
        "sparsehourglass",
        "entmax",
        "entmax-1.5",
    ),
}
KINDS = {kind: family for family, kinds in FAMILIES.items() for kind in kinds}
SKIPPING = ("sparsemax", "sparsegen", "entmax", "entmax-1.5")  # no support, no gradient


def plan(
    query: Tensor,
    key: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    lengths: Tensor | None,
    kind: str,
    softcap: float,
    causal: bool,
    window: int,
    scale: float,
    dropout: float,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments shared by all kernels, run-time ones and compile-time ones."""
    batch, heads, rows, _ = query.shape
    keys = key.shape[2]
    full = (batch, heads, rows, keys)
    nothing = (0, 0, 0, 0)
    mask_argument = query if mask is None else mask.expand(full).view(torch.uint8)
    bias_argument = query if bias is None else bias.expand(full)
    mask_strides = nothing if mask is None else mask_argument.stride()
    bias_strides = nothing if bias is None else bias_argument.stride()
    # the same row of the mask for every query and head: what is past its end is padding
    padding = mask is not None and mask_strides[1:3] == (0, 0)
    precision = "tf32x3" if torch.get_float32_matmul_precision() == "highest" else "tf32"
    run_time = {
        "lengths": query if lengths is None else lengths,
        "pairs": Pairs._make((mask_argument, *mask_strides, bias_argument, *bias_strides)),
        "sizes": Sizes(heads, heads // key.shape[1], rows, keys, batch * heads * rows),
        "scaling": (scale, softcap),
        "rate": dropout,
    }
    compile_time = {
        "MAP": Map(KINDS[kind], kind, skips(kind, key)),
        "FLAGS": Flags(
            mask=mask is not None,
            padding=padding,
            bias=bias is not None,
            softcap=softcap > 0,
            causal=causal,
            window=window,
            precision=precision,
            lengths=lengths is not None,
            dropout=dropout > 0,
        ),
    }
    return run_time, compile_time


def row_bytes(tensor: Tensor) -> int:
    """Shared memory for one row of queries, keys or values; float32 is held in two halves."""
    halves = 2 if tensor.dtype == torch.float32 else 1
    return max(16, triton.next_power_of_2(tensor.shape[3])) * tensor.element_size() * halves


def shared_memory(tensor: Tensor) -> int:
    """Bytes of shared memory that one program may use."""
    if tensor.device.type != "cuda":
        return HOPPER
    properties = torch.cuda.get_device_properties(tensor.device)
    return properties.shared_memory_per_block_optin  # type: ignore[attr-defined]


def is_short(key: Tensor) -> bool:
    """Whether a whole row of scores, and the keys under it, fit on the chip."""
    # a third is left for queries and scratch; keys are padded to a power of two
    room = shared_memory(key) * 2 // 3 // row_bytes(key)
    return key.shape[2] <= min(SHORT, 1 << (room.bit_length() - 1))


def tile_side(key: Tensor) -> int:
    """Queries and keys of a tile where a row takes several: the largest of 64, 32 and 16."""
    side = shared_memory(key) // (ROWS_HELD * row_bytes(key))
    return 64 if side >= 64 else 32 if side >= 32 else 16


def skips(kind: str, key: Tensor) -> bool:
    """Whether tiles without support are marked and passed over."""
    return kind in SKIPPING and not is_short(key)


def forward_shape(query: Tensor, key: Tensor) -> tuple[Shape, int]:
    """SHAPE of the forward kernel and its number of warps."""
    dim = query.shape[3]
    block_d = max(16, triton.next_power_of_2(dim))
    if not is_short(key):
        side = tile_side(key)
        return Shape(side, side, dim, block_d, False, False), 4
    block_n = max(16, triton.next_power_of_2(key.shape[2]))
    block_m = min(64, max(16, 16384 // block_n))
    return Shape(block_m, block_n, dim, block_d, True, False), 4 if block_n <= 128 else 8


def backward_shape(query: Tensor, key: Tensor) -> tuple[Shape, int, bool]:
    """SHAPE of the query kernel, its number of warps, and whether it is WHOLE."""
    dim = query.shape[3]
    block_d = max(16, triton.next_power_of_2(dim))
    longest = max(query.shape[2], key.shape[2])
    side = tile_side(key)
    if key.shape[2] > WHOLE or not is_short(key) or row_bytes(key) > WHOLE_BYTES:
        return Shape(side, side, dim, block_d, False, False), 4, False
    block_n = max(16, triton.next_power_of_2(key.shape[2]))
    whole = longest <= WHOLE and query.shape[1] == key.shape[1]
    block_m = max(16, triton.next_power_of_2(query.shape[2])) if whole else 64
    return Shape(block_m, block_n, dim, block_d, True, False), 8 if block_n == 128 else 4, whole


def half_of(shape: Shape, padded: bool) -> Shape | None:
    """SHAPE for heads whose padding leaves at most half of the keys."""
    if not (padded and shape.short and shape.block_n >= 64):
        return None
    return shape._replace(block_n=shape.block_n // 2, halved=True)


def rows_last_contiguous(tensor: Tensor) -> Tensor:
    """The tensor, copied only where its last dimension is strided."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


@torch.library.custom_op("sparse_attn::triton_forward", mutates_args=())
def triton_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    theta: Tensor,
    mask: Tensor | None,
    lengths: Tensor | None,
    bias: Tensor | None,
    seed: Tensor | None,
    kind: str,
    softcap: float,
    causal: bool,
    window: int,
    scale: float,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """out (B, H, Q, D), row statistics, indices of owning keys, live tiles."""
    query, key, value = map(rows_last_contiguous, (query, key, value))
    out, stats, indices, alive = _outputs(query, key, kind)
    run_time, compile_time = plan(
        query, key, mask, bias, lengths, kind, softcap, causal, window, scale, dropout
    )
    shape, warps = forward_shape(query, key)
    padded = lengths is not None or compile_time["FLAGS"].padding
    grid = (triton.cdiv(query.shape[2], shape.block_m) * query.shape[0] * query.shape[1],)
    with torch.cuda.device_of(query):
        forward_kernel[grid](
            query, key, value, out,
            query.stride(), key.stride(), value.stride(), out.stride(),
            stats, indices, alive, alive.shape[-1], theta, run_time.pop("lengths"),
            theta if seed is None else seed,
            **run_time, **compile_time, SHAPE=shape, HALF=half_of(shape, padded),
            num_warps=warps, num_stages=2,
        )  # fmt: skip
    return out, stats, indices, alive


@triton_forward.register_fake
def _(
    query: Tensor, key: Tensor, value: Tensor, theta: Tensor, mask: Any, lengths: Any, bias: Any,
    seed: Any, kind: str, *options: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    return _outputs(query, key, kind)


def _outputs(query: Tensor, key: Tensor, kind: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Empty outputs of the forward pass; `out` in the layout that Transformers goes on with."""
    batch, heads, rows, dim = query.shape
    out = query.new_empty(batch, rows, heads, dim).transpose(1, 2)
    pointwise = KINDS[kind] == "pointwise"
    lines = batch * heads * rows
    stats = query.new_empty(2 if pointwise else 5, lines, dtype=torch.float32)
    indices = query.new_empty(1 if pointwise else 2, 1 if pointwise else lines, dtype=torch.int32)
    tiles = (1, 1, 1)
    if skips(kind, key):
        side = tile_side(key)
        tiles = (batch * heads, -(-rows // side), -(-key.shape[2] // side))
    return out, stats, indices, query.new_zeros(tiles, dtype=torch.int8)


@torch.library.custom_op("sparse_attn::triton_backward", mutates_args=())
def triton_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    stats: Tensor,
    indices: Tensor,
    alive: Tensor,
    theta: Tensor,
    mask: Tensor | None,
    lengths: Tensor | None,
    bias: Tensor | None,
    seed: Tensor | None,
    learns: bool,
    kind: str,
    softcap: float,
    causal: bool,
    window: int,
    scale: float,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients to query, key, value and the parameter of each head (H,)."""
    q, k, v, g = map(rows_last_contiguous, (query, key, value, grad))
    dq, dk, dv = map(torch.empty_like, (q, k, v))
    run_time, compile_time = plan(
        q, k, mask, bias, lengths, kind, softcap, causal, window, scale, dropout
    )
    lines = stats.shape[1]
    row_gradients = stats.new_empty(2 if KINDS[kind] == "pointwise" else 3, lines)
    shape, warps, whole = backward_shape(q, k)
    padded = lengths is not None or compile_time["FLAGS"].padding
    shared = (
        stats, indices, row_gradients, alive, alive.shape[-1], theta, run_time.pop("lengths"),
        theta if seed is None else seed,
    )  # fmt: skip
    options = {**run_time, **compile_time, "num_stages": 2}
    batch, heads = q.shape[:2]
    with torch.cuda.device_of(q):
        query_kernel[(triton.cdiv(q.shape[2], shape.block_m) * batch * heads,)](
            q, k, v, out, g, dq, dk, dv,
            q.stride(), k.stride(), v.stride(), out.stride(), g.stride(), dq.stride(), dk.stride(),
            dv.stride(), *shared, **options, SHAPE=shape, HALF=half_of(shape, padded),
            MOMENTS=learns or KINDS[kind] != "pointwise", WHOLE=whole, num_warps=warps,
        )  # fmt: skip
        if not whole:
            side = tile_side(k)
            tile = Shape(side, side, shape.dim, shape.block_d, False, False)
            key_kernel[(triton.cdiv(k.shape[2], side) * batch * k.shape[1],)](
                q, k, v, g, dk, dv,
                q.stride(), k.stride(), v.stride(), g.stride(), dk.stride(), dv.stride(),
                *shared, **options, SHAPE=tile, num_warps=4,
            )  # fmt: skip
    d_theta = row_gradients[1].view(batch, heads, -1).sum((0, 2))
    return dq, dk, dv, d_theta


@triton_backward.register_fake
def _(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, stats: Tensor,
    indices: Tensor, alive: Tensor, theta: Tensor, *options: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    q, k, v = map(rows_last_contiguous, (query, key, value))
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), torch.empty_like(theta)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    query, key, value, theta, mask, lengths, bias, seed, *ctx.options = inputs
    ctx.save_for_backward(query, key, value, *output, theta, mask, lengths, bias, seed)


def _gradients(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    learns = ctx.needs_input_grad[3]
    gradients = triton_backward(grad, *ctx.saved_tensors, learns, *ctx.options)
    return *gradients[:3], gradients[3] if learns else None, *(None,) * 10


triton_forward.register_autograd(_gradients, setup_context=_keep)
