"""Arguments of the compiled library."""

from __future__ import annotations

import ctypes
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from sparse_attn.kernels.cpu import build
from sparse_attn.kernels.operators import OperatorInputs, rows_dense
from sparse_attn.kernels.packed import boundaries
from sparse_attn.kernels.statistics import COLUMNS

TILE_BYTES = 96 * 1024  # scores of a tile, which fit in an L2 cache with gradients and keys
MOST_ROWS = 96
SERIAL_WORK = 2**21  # multiply-adds up to which one thread is faster than many
ROW_STEP = 6  # rows of a block of a matrix product in registers
LONG = 256  # keys beyond which rows are long: backward takes parts of them
FOUND = 7  # numbers of 8 bytes kept of a row, see `Found` in args.h


class View(ctypes.Structure):
    """View of a 4-dimensional tensor."""

    _fields_ = (("data", ctypes.c_void_p), ("stride", ctypes.c_int64 * 4))


def _fields(kind: Any, names: str) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names.split()]


class KernelArgs(ctypes.Structure):
    """`KernelArgs` of args.h, field by field, and the tensors it points to.

    Attributes:
        tensors: query, key and value in the compute dtype.
    """

    _fields_ = (
        ("kernel", ctypes.c_char_p),
        *_fields(ctypes.c_int64, "batch heads key_heads queries keys dim value_dim"),
        *_fields(ctypes.c_int64, "segments segment_rows tile_rows threads all_batches all_heads"),
        *_fields(ctypes.c_int64, "want_parameter keep_lists keep_weights causal window"),
        *_fields(ctypes.c_double, "scale softcap dropout least"),
        *_fields(ctypes.c_void_p, "seed key_lengths starts parameter sink special_keys"),
        *_fields(ctypes.c_void_p, "statistics found columns scores lists"),
        *_fields(ctypes.c_int64, "entries"),
        *_fields(View, "query key value mask bias out result int8_keys"),
        *_fields(View, "grad_query grad_key grad_value grad_bias grad_parameter"),
    )

    def __init__(self, inputs: OperatorInputs) -> None:
        super().__init__()
        self._kept: list[Tensor] = []
        query, key, value = (rows_dense(exact(tensor)) for tensor in inputs[:3])
        self.tensors = query, key, value
        self.batch, self.heads, self.queries, self.dim = query.shape
        _, self.key_heads, self.keys, self.value_dim = value.shape
        self._shape = shape = (*query.shape[:3], key.shape[2])
        self.kernel = inputs.kernel.encode()
        self.causal, self.window, self.dropout = inputs.causal, inputs.window, inputs.dropout
        self.scale, self.softcap = inputs.scale, inputs.softcap
        for name, tensor in (("query", query), ("key", key), ("value", value)):
            self.point(name, tensor)
        if inputs.mask is not None:
            self.point("mask", _flat(inputs.mask).expand(shape).view(torch.uint8))
        if inputs.bias is not None:
            self.point("bias", _flat(inputs.bias.to(query.dtype)).expand(shape))
        self.parameter = self._pointer(inputs.parameter.double().contiguous())
        if inputs.sink is not None:
            self.sink = self._pointer(inputs.sink.double().contiguous())
        if inputs.key_lengths is not None:
            self.key_lengths = self._pointer(inputs.key_lengths.to(torch.int64).contiguous())
        if inputs.seed is not None:
            self.seed = self._pointer(inputs.seed)
        self._rows, scores = self.queries, self.batch * self.queries * self.keys
        if inputs.cu_seqlens is not None:
            self.starts = self._pointer(inputs.cu_seqlens.to(torch.int64).contiguous())
            lengths = [b - a for a, b in pairwise(boundaries(inputs.cu_seqlens, self.queries))]
            self.batch, scores = len(lengths), sum(n * n for n in lengths)
            self._rows = self.keys = max(lengths)
        work = self.heads * scores * (self.dim + self.value_dim)
        self.threads = torch.get_num_threads() if work > SERIAL_WORK else 1
        self._tile(query.itemsize)

    def point(self, name: str, tensor: Tensor) -> None:
        """Point the view `name` to a 4-dimensional tensor."""
        view = getattr(self, name)
        view.data = self._pointer(tensor)
        view.stride[:] = tensor.stride()
        if tensor.shape[0] == 1:  # all packed sequences are in one entry
            view.stride[0] = 0

    def _pointer(self, tensor: Tensor) -> int:
        self._kept.append(tensor)
        return tensor.data_ptr()

    def measure(self, special_keys: Tensor | None) -> Tensor:
        """Request the row statistics; return their buffer (B, H, Q, COLUMNS)."""
        query = self.tensors[0]
        statistics = query.new_zeros(*query.shape[:3], len(COLUMNS))
        self.statistics = self._pointer(statistics)
        if special_keys is not None:
            self.special_keys = self._pointer(special_keys.contiguous().view(torch.uint8))
        return statistics

    def _tile(self, itemsize: int) -> None:
        """Choose equal tiles whose scores fit in cache; segments only if threads would be idle."""
        most = TILE_BYTES // max(1, self.keys * itemsize)
        most = min(MOST_ROWS, max(2 * ROW_STEP, most // ROW_STEP * ROW_STEP))
        rows = -(-self._rows // max(1, -(-self._rows // most)))
        self.tile_rows = max(1, -(-rows // ROW_STEP)) * ROW_STEP
        self._segment(self.batch * self.key_heads)

    def _segment(self, units: int) -> None:
        """Split the queries of a key head for enough tasks; `units` counts unsplit ones."""
        tiles = max(1, -(-self._rows // self.tile_rows))
        enough = 2 * self.threads if self.threads > 1 else 1
        parts = min(tiles, -(-enough // max(1, units)))
        self.segment_rows = -(-tiles // parts) * self.tile_rows
        self.segments = max(1, -(-self._rows // self.segment_rows))

    def add_up(self, grad_bias: Tensor) -> None:
        """Request the gradient of bias; two tasks must not share an entry."""
        view = grad_bias.expand(self._shape)
        self.point("grad_bias", view)
        self.all_batches, self.all_heads, all_queries, all_keys = (s == 0 for s in view.stride())
        if self.starts:
            self.all_batches = all_queries and all_keys
        batches = 1 if self.all_batches else self.batch
        self._segment(batches * (1 if self.all_heads else self.key_heads))
        if all_queries:
            self.segments, self.segment_rows = 1, self._rows

    def by_segment(self, name: str, like: Tensor) -> Tensor:
        """Allocate the buffer for the gradient of each segment, [segments, ...]."""
        if self.segments == 1:
            parts = torch.empty_like(like).unsqueeze(0)
        else:
            parts = like.new_empty((self.segments, *like.shape))
        self.point(name, parts[0])
        getattr(self, name).stride[3] = parts.stride(0)
        return parts

    def run(self, backward: bool) -> None:
        """Compute `out`, or with `backward` the gradients from the gradient in `out`."""
        self._call("attention", ctypes.c_int64(backward))

    def find(self, lists: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Compute `out`; return the support where it is a small part of a tile, with `lists`.

        Returns `Found` of each row, (B, H, Q, FOUND); columns and scores of the supports,
        (entries,).
        """
        query = self.tensors[0]
        self.keep_lists = lists
        found = query.new_empty((*query.shape[:3], FOUND), dtype=torch.int64)
        self.found = self._pointer(found)
        self.run(backward=False)
        columns = scores = None
        try:
            columns = query.new_empty(self.entries, dtype=torch.int32)
            scores = query.new_empty(self.entries)
            self.columns, self.scores = self._pointer(columns), self._pointer(scores)
        finally:  # also frees them
            self._call("collect")
        return found, columns, scores

    def list_weights(self, least: float) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the weights above `least`, and no `out`.

        Returns their number in each row, (B, H, Q); their columns and values, (entries,), row by
        row.
        """
        self.keep_weights, self.least = True, least
        found, columns, weights = self.find(lists=False)
        return found[..., 1], columns, weights

    def remember(self, found: Tensor, columns: Tensor, scores: Tensor, result: Tensor) -> None:
        """Set the support that the forward pass found, and its output."""
        self.found, self.columns = self._pointer(found), self._pointer(columns)
        self.scores = self._pointer(scores)
        if self.keys > LONG:  # shorter packed sequences do not need it
            self.point("result", result)

    def _call(self, name: str, *arguments: ctypes.c_int64) -> None:
        library = build.library()
        if isinstance(library, str):
            raise RuntimeError(library)
        kind = "double" if self.tensors[0].dtype == torch.float64 else "float"
        getattr(library, f"{name}_{kind}")(ctypes.byref(self), *arguments)


def exact(tensor: Tensor) -> Tensor:
    """Cast the tensor to the compute dtype."""
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


def _flat(tensor: Tensor) -> Tensor:
    """Return a view with 4 dimensions, the last with stride 1 or a single entry."""
    tensor = tensor[(None,) * (4 - tensor.dim())]
    return rows_dense(tensor[..., :1] if tensor.stride(-1) == 0 else tensor)
