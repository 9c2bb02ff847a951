"""Attention on the CPU in C++ tiles; nothing of size queries x keys is kept, backward included."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from sparse_attn.kernels import build
from sparse_attn.kernels.call import Call

POINTWISE = ("softmax", "sigsoftmax", "taylor-softmax", "spherical-softmax", "softmax-abs")
NORMALIZED = ("normalized-relu", "normalized-sigmoid")
SPARSE = ("t-softmax", "r-softmax", "sparsemax", "sparsegen", "sparsecone", "sparsehourglass")
NAMES = frozenset((*POINTWISE, *NORMALIZED, *SPARSE, "entmax"))
TILE_BYTES = 96 * 1024  # scores of a tile: with their gradients and the keys, less than a L2 cache
MOST_ROWS = 96
SERIAL_WORK = 2**21  # multiply-adds up to which waking the threads costs more than it saves
ROW_STEP = 6  # rows of the block that the matrix product keeps in registers


def refusal(call: Call) -> str | None:
    """Why these kernels cannot do the call, None if they can."""
    if call.query.device.type != "cpu":
        return f"the tensors are on {call.query.device}, not on the CPU"
    if call.mapping.spec.kernel not in NAMES:
        return f"there is no kernel for {call.mapping.name}"
    return _build_refusal()


@torch.compiler.assume_constant_result
def _build_refusal() -> str | None:
    result = build.library()
    return result if isinstance(result, str) else None


def attention(call: Call) -> Tensor:
    """out = dropout(map(scores)) v, (B, H, Q, Dv), in the memory order (B, Q, H, Dv)."""
    kernel = call.mapping.spec.kernel
    assert kernel is not None
    seed = torch.randint(2**62, (1,)) if call.dropout else None
    out: Tensor = _forward(
        call.query,
        call.key,
        call.value,
        call.mask,
        call.key_lengths,
        call.bias,
        call.parameter(),
        seed,
        kernel,
        call.scale,
        call.softcap or 0.0,
        call.dropout,
        call.causal,
        call.window or 0,
    )
    return out.transpose(1, 2)


@torch.library.custom_op("sparse_attn::cpu_forward", mutates_args=(), device_types="cpu")
def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    lengths: Tensor | None,
    bias: Tensor | None,
    parameter: Tensor,
    seed: Tensor | None,
    kernel: str,
    scale: float,
    softcap: float,
    dropout: float,
    causal: bool,
    window: int,
) -> Tensor:
    """(B, Q, H, Dv), contiguous."""
    job = _Job(query, key, value, mask, lengths, bias, parameter, seed)
    job.options(kernel, scale, softcap, dropout, causal, window)
    out = job.query.new_empty(_out_shape(query, value))
    if not key.shape[2]:
        out.zero_()
    elif out.numel():
        job.put("out", out.transpose(1, 2))
        job.run(backward=False)
    return out.to(query.dtype)


@_forward.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *args: Any) -> Tensor:
    return query.new_empty(_out_shape(query, value))


def _out_shape(query: Tensor, value: Tensor) -> tuple[int, int, int, int]:
    return query.shape[0], query.shape[2], query.shape[1], value.shape[3]


@torch.library.custom_op("sparse_attn::cpu_backward", mutates_args=(), device_types="cpu")
def _backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    lengths: Tensor | None,
    bias: Tensor | None,
    parameter: Tensor,
    seed: Tensor | None,
    kernel: str,
    scale: float,
    softcap: float,
    dropout: float,
    causal: bool,
    window: int,
    want_bias: bool,
    want_parameter: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of query, key, value, bias (empty if not wanted) and parameter."""
    job = _Job(query, key, value, mask, lengths, bias, parameter, seed)
    job.options(kernel, scale, softcap, dropout, causal, window)
    by_bias = _bias_gradient(job.query, bias, want_bias).zero_()
    by_query, by_key, by_value = (torch.empty_like(t) for t in (job.query, job.key, job.value))
    if not (grad.numel() and key.shape[2]):
        for gradient in (by_query, by_key, by_value):
            gradient.zero_()
        by_query, by_key, by_value = _cast((by_query, by_key, by_value), query.dtype)
        return by_query, by_key, by_value, by_bias, torch.zeros_like(parameter)
    job.put("out", _rows(grad.to(job.query.dtype).transpose(1, 2)))
    job.put("grad_query", by_query)
    parts = job.split(by_bias if want_bias else None)
    by_key, key_parts = job.partial("grad_key", by_key, parts)
    by_value, value_parts = job.partial("grad_value", by_value, parts)
    by_parameter = job.query.new_empty(*query.shape[:2], 1, parts)
    job.put("grad_parameter", by_parameter)
    job.arguments.want_parameter = want_parameter
    job.run(backward=True)
    if parts > 1:
        torch.sum(key_parts, 0, out=by_key)
        torch.sum(value_parts, 0, out=by_value)
    by_query, by_key, by_value = _cast((by_query, by_key, by_value), query.dtype)
    by_parameter = by_parameter.sum((0, 2, 3)).to(parameter.dtype)
    return by_query, by_key, by_value, by_bias, by_parameter


@_backward.register_fake
def _(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    lengths: Tensor | None,
    bias: Tensor | None,
    parameter: Tensor,
    *args: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    by_bias = _bias_gradient(_computed(query), bias, args[-2])
    by_query, by_key, by_value = (torch.empty_like(_rows(t)) for t in (query, key, value))
    return by_query, by_key, by_value, by_bias, torch.empty_like(parameter)


def _bias_gradient(query: Tensor, bias: Tensor | None, wanted: bool) -> Tensor:
    return query.new_empty(bias.shape if bias is not None and wanted else (0,))


def _cast(grads: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    return tuple(gradient.to(dtype) for gradient in grads)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:8])
    ctx.options = inputs[8:]


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    tensors = ctx.saved_tensors
    bias = tensors[5]
    want_bias, want_parameter = ctx.needs_input_grad[5], ctx.needs_input_grad[6]
    by_query, by_key, by_value, by_bias, by_parameter = _backward(
        grad, *tensors, *ctx.options, want_bias, want_parameter
    )
    by_bias = by_bias.to(bias.dtype) if want_bias else None
    by_parameter = by_parameter if want_parameter else None
    none = (None,) * (len(ctx.options) + 1)
    return by_query, by_key, by_value, None, None, by_bias, by_parameter, *none


_forward.register_autograd(_differentiate, setup_context=_save)


class _View(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("stride", ctypes.c_int64 * 4))


_INTEGERS = "batch heads key_heads queries keys dim value_dim segments segment_rows tile_rows"
_VIEWS = "query key value mask bias out grad_query grad_key grad_value grad_bias grad_parameter"


class _Arguments(ctypes.Structure):
    """`Arguments` of rows.cpp, field by field."""

    _fields_ = (
        ("mapping", ctypes.c_char_p),
        *((name, ctypes.c_int64) for name in f"{_INTEGERS} threads".split()),
        *((name, ctypes.c_int64) for name in ("all_batches", "all_heads", "causal", "window")),
        *((name, ctypes.c_double) for name in ("scale", "softcap", "dropout")),
        *((name, ctypes.c_void_p) for name in ("seed", "lengths", "parameter")),
        ("want_parameter", ctypes.c_int64),
        *((name, _View) for name in _VIEWS.split()),
    )


class _Job:
    """One call of the library: its arguments, and the tensors they point to."""

    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        lengths: Tensor | None,
        bias: Tensor | None,
        parameter: Tensor,
        seed: Tensor | None,
    ) -> None:
        self.kept: list[Tensor] = []
        self.arguments = _Arguments()
        dtype = _computed(query).dtype
        self.query, self.key, self.value = (_rows(t.to(dtype)) for t in (query, key, value))
        for name in ("query", "key", "value"):
            self.put(name, getattr(self, name))
        (batch, heads, queries, dim), keys = query.shape, key.shape[2]
        shape = (batch, heads, queries, keys)
        if mask is not None:
            self.put("mask", _flat(mask).expand(shape).view(torch.uint8))
        if bias is not None:
            self.put("bias", _flat(bias.to(dtype)).expand(shape))
        sizes = (batch, heads, key.shape[1], queries, keys, dim, value.shape[3])
        for field, size in zip(_INTEGERS.split(), sizes, strict=False):
            setattr(self.arguments, field, size)
        self.arguments.parameter = self._pointer(parameter.float().contiguous())
        if lengths is not None:
            self.arguments.lengths = self._pointer(lengths.to(torch.int64).contiguous())
        if seed is not None:
            self.arguments.seed = self._pointer(seed)
        self._tile(dtype.itemsize)

    def options(
        self,
        kernel: str,
        scale: float,
        softcap: float,
        dropout: float,
        causal: bool,
        window: int,
    ) -> None:
        arguments = self.arguments
        arguments.mapping = kernel.encode()
        arguments.scale, arguments.softcap, arguments.dropout = scale, softcap, dropout
        arguments.causal, arguments.window = causal, window

    def put(self, name: str, tensor: Tensor, first: int = 0) -> None:
        """Point the view `name` to a tensor of 4 dimensions."""
        view = getattr(self.arguments, name)
        view.data = self._pointer(tensor)
        view.stride[:] = tensor.stride()

    def _pointer(self, tensor: Tensor) -> int:
        self.kept.append(tensor)
        return tensor.data_ptr()

    def _tile(self, itemsize: int) -> None:
        """Tiles of equal size whose scores stay in cache; segments only where threads idle."""
        arguments = self.arguments
        most = TILE_BYTES // max(1, arguments.keys * itemsize)
        most = min(MOST_ROWS, max(2 * ROW_STEP, most // ROW_STEP * ROW_STEP))
        tiles = -(-arguments.queries // most) or 1
        rows = -(-arguments.queries // tiles)
        arguments.tile_rows = -(-rows // ROW_STEP) * ROW_STEP or ROW_STEP
        work = arguments.batch * arguments.heads * arguments.queries * arguments.keys
        work *= arguments.dim + arguments.value_dim
        arguments.threads = torch.get_num_threads() if work > SERIAL_WORK else 1
        self._segment(arguments.batch * arguments.key_heads)

    def _segment(self, units: int) -> None:
        arguments = self.arguments
        tiles = -(-arguments.queries // arguments.tile_rows) or 1
        enough = 2 * arguments.threads if arguments.threads > 1 else 1
        parts = min(tiles, -(-enough // max(1, units)))
        arguments.segment_rows = -(-tiles // parts) * arguments.tile_rows
        arguments.segments = -(-arguments.queries // arguments.segment_rows) or 1

    def split(self, by_bias: Tensor | None) -> int:
        """The number of segments, with a gradient of bias of which no two tasks share an entry."""
        arguments = self.arguments
        if by_bias is not None:
            shape = (arguments.batch, arguments.heads, arguments.queries, arguments.keys)
            view = by_bias.expand(shape)
            self.put("grad_bias", view)
            shared = [stride == 0 for stride in view.stride()]
            arguments.all_batches, arguments.all_heads = shared[:2]
            units = (1 if shared[0] else arguments.batch) * (
                1 if shared[1] else arguments.key_heads
            )
            self._segment(units)
            if shared[2]:
                arguments.segments, arguments.segment_rows = 1, arguments.queries
        return int(arguments.segments)

    def partial(self, name: str, grad: Tensor, parts: int) -> tuple[Tensor, Tensor]:
        """Room for the gradient of each segment: [segments, ...]."""
        rooms = grad.unsqueeze(0) if parts == 1 else grad.new_empty((parts, *grad.shape))
        self.put(name, rooms[0])
        getattr(self.arguments, name).stride[3] = rooms.stride(0)
        return grad, rooms

    def run(self, backward: bool) -> None:
        library = build.library()
        if isinstance(library, str):
            raise RuntimeError(library)
        double = self.query.dtype == torch.float64
        function = library.attention_double if double else library.attention_float
        function(ctypes.byref(self.arguments), ctypes.c_int64(backward))


def _computed(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _rows(tensor: Tensor) -> Tensor:
    """With the last dimension contiguous."""
    return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] == 1 else tensor.contiguous()


def _flat(tensor: Tensor) -> Tensor:
    """4 dimensions, the last with stride 1, or a single entry."""
    while tensor.dim() < 4:
        tensor = tensor.unsqueeze(0)
    if tensor.stride(-1) == 0:
        tensor = tensor[..., :1]
    return _rows(tensor)
