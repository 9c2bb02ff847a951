"""One call of the compiled library: its arguments, and the tensors they point to."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from sparse_attn.kernels.call import rows_dense
from sparse_attn.kernels.cpu import build
from sparse_attn.kernels.statistics import COLUMNS

TILE_BYTES = 96 * 1024  # scores of a tile: with their gradients and the keys, less than a L2 cache
MOST_ROWS = 96
SERIAL_WORK = 2**21  # multiply-adds up to which waking the threads costs more than it saves
ROW_STEP = 6  # rows of the block that the matrix product keeps in registers


class View(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("stride", ctypes.c_int64 * 4))


_INTEGERS = "batch heads key_heads queries keys dim value_dim segments segment_rows tile_rows"
_VIEWS = "query key value mask bias out grad_query grad_key grad_value grad_bias grad_parameter"


class Arguments(ctypes.Structure):
    """`Arguments` of rows.cpp, field by field."""

    _fields_ = (
        ("mapping", ctypes.c_char_p),
        *((name, ctypes.c_int64) for name in f"{_INTEGERS} threads".split()),
        *((name, ctypes.c_int64) for name in ("all_batches", "all_heads", "causal", "window")),
        *((name, ctypes.c_double) for name in ("scale", "softcap", "dropout")),
        *((name, ctypes.c_void_p) for name in ("seed", "lengths", "parameter")),
        ("want_parameter", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("special", "statistics")),
        *((name, View) for name in _VIEWS.split()),
    )


class Job:
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
        self.arguments = Arguments()
        dtype = computed(query).dtype
        self.query, self.key, self.value = (rows_dense(t.to(dtype)) for t in (query, key, value))
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
        self.arguments.parameter = self._pointer(parameter.double().contiguous())
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

    def measure(self, special: Tensor | None) -> Tensor:
        """Have the statistics of every row written to what is returned, (B, H, Q, COLUMNS)."""
        statistics = self.query.new_zeros(*self.query.shape[:3], len(COLUMNS))
        self.arguments.statistics = self._pointer(statistics)
        if special is not None:
            self.arguments.special = self._pointer(special.contiguous().view(torch.uint8))
        return statistics

    def put(self, name: str, tensor: Tensor) -> None:
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


def computed(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _flat(tensor: Tensor) -> Tensor:
    """4 dimensions, the last with stride 1, or a single entry."""
    while tensor.dim() < 4:
        tensor = tensor.unsqueeze(0)
    if tensor.stride(-1) == 0:
        tensor = tensor[..., :1]
    return rows_dense(tensor)
