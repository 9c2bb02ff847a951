"""Validated inputs and the output of an attention call."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional as F

from sparse_attn.kernels.by_head import by_head, exact_dtype, theta
from sparse_attn.kernels.dropout import draw_seed
from sparse_attn.kernels.operators import OperatorInputs
from sparse_attn.kernels.packed import check_packed, own_sequence
from sparse_attn.mappings import Mapping
from sparse_attn.mappings.base import check_boolean
from sparse_attn.mappings.specs import Kernel
from sparse_attn.mappings.variants import BETA, DELTA, GAMMA, SINK, length_factor

Rows = slice | Tensor  # of queries: a part, or their indices


class AttentionOutput(NamedTuple):
    """Result of an implementation."""

    output: Tensor  # [B, H, Q, Dv]
    weights: Tensor | None = None  # [B, H, Q, K], before dropout, in at least float32
    statistics: Tensor | None = None  # [B, H, Q, COLUMNS]


@dataclass(frozen=True)
class AttentionInputs:
    """Validated arguments of `attention`."""

    query: Tensor  # [B, H, Q, D]
    key: Tensor  # [B, Hkv, K, D]
    value: Tensor  # [B, Hkv, K, Dv]
    mapping: Mapping
    mask: Tensor | None = None  # bool, broadcasts to [B, H, Q, K]
    key_lengths: Tensor | None = None  # [B]
    cu_seqlens: Tensor | None = None  # [sequences + 1]
    bias: Tensor | None = None  # broadcasts to [B, H, Q, K]
    sink: Tensor | None = None  # [H], instead of the mapping's sink
    softcap: float | None = None
    causal: bool = False
    window: int | None = None
    scaling: float | None = None
    dropout: float = 0.0
    need_weights: bool = False
    need_statistics: bool = False  # see `kernels.statistics`
    special_keys: Tensor | None = None  # [B, K], bool: the statistics report their mass
    query_input: Tensor | None = None  # [B, Q, size], for a mapping with a factor of each query

    def __post_init__(self) -> None:
        self._check_tensors()
        self._check_sink()
        self._check_query_input()
        self._check_masks()
        self._check_numbers()

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Shape of the scores, B, H, Q, K."""
        return (*self.query.shape[:3], self.key.shape[2])

    @property
    def scale(self) -> float:
        """Factor of the scores."""
        return self.query.shape[-1] ** -0.5 if self.scaling is None else self.scaling

    @property
    def groups(self) -> int:
        """Query heads per key head."""
        return self.query.shape[1] // self.key.shape[1]

    @property
    def needs_aten(self) -> bool:
        """Whether custom operators cannot be used: torch.export, torch.func and forward mode."""
        # private: is_exporting returns it, but Dynamo 2.11 takes that for True in every graph
        if torch.compiler._is_exporting_flag:
            return True
        if torch.compiler.is_compiling():
            return False
        # private: torch.func cannot be asked publicly whether a transform runs
        if torch._C._are_functorch_transforms_active():
            return True
        # private: the public unpack_dual takes a microsecond for each tensor
        if forward_ad._current_level < 0:
            return False
        inputs = (self.query, self.key, self.value, self.bias, self.sink, self.query_input)
        given = (t for t in inputs if t is not None)
        return any(forward_ad.unpack_dual(t).tangent is not None for t in given)

    @property
    def learns_bias(self) -> bool:
        """Whether the bias needs a gradient, also for the factor of a row."""
        return self.bias is not None and (self.bias.requires_grad or self.learns_factor)

    @property
    def learns_factor(self) -> bool:
        """Whether the row factor of `scaled-NAME` has a learned parameter."""
        kernel, learned = self.mapping.spec.kernel, self.mapping.learned
        scaled = kernel is not None and kernel.scaled
        by_name = any(p.name in learned for p in (DELTA, BETA, GAMMA))
        return scaled and (by_name or self.query_input is not None)

    @property
    def has_sink(self) -> bool:
        """Whether the call or the mapping has a virtual key."""
        return self.sink is not None or self.mapping.has_sink

    @property
    def sinks(self) -> Tensor | None:
        """Scores of the heads' virtual keys, (H,), with their graph; None without sinks."""
        if not self.has_sink:
            return None
        sink = self.mapping.value(SINK.name) if self.sink is None else self.sink
        most = torch.finfo(exact_dtype(self.query)).max
        # infinity counts as the largest number, as in the mappings' functions
        if isinstance(sink, Tensor):
            return by_head(SINK.name, sink, self.query).clamp(-most, most)
        return by_head(SINK.name, max(-most, min(sink, most)), self.query)

    @property
    def kernel_reason(self) -> str | None:
        """Reason why the mapping's kernel does not compute this call, None if it does."""
        kernel = self.mapping.spec.kernel
        if kernel is None:
            return f"there is no kernel for {self.mapping.name}"
        for p in self.mapping.spec.parameters:
            if p.name not in kernel.constants:
                continue
            value = self.mapping.value(p.name)
            if isinstance(value, Tensor) or value != p.default:  # learned, or one per head
                return f"the kernels have {p.name} = {p.shown_default} alone"
        if kernel.scaled and self.softcap is not None:
            return f"{self.mapping.name} scales the scores after softcap, the kernels before"
        return None

    def for_operator(self, kernel: Kernel | None = None) -> OperatorInputs:
        """Return the arguments of the operators; `kernel` is the mapping's by default."""
        kernel = kernel or self.mapping.spec.kernel
        assert kernel is not None
        query, bias = self._scaled() if kernel.scaled else (self.query, self.bias)
        seed = draw_seed(self.query.device) if self.dropout else None
        return OperatorInputs(
            query,
            self.key,
            self.value,
            theta(self.mapping, kernel, self.query),
            self.sinks,
            bias,
            self.mask,
            self.key_lengths,
            self.cu_seqlens,
            seed,
            kernel.name,
            kernel.family,
            kernel.skips,
            self.scale,
            self.softcap or 0.0,
            self.dropout,
            bool(self.causal),
            # clamped to the longest row, so that sums do not overflow
            0 if self.window is None else min(self.window, 2**30),
        )

    def _scaled(self) -> tuple[Tensor, Tensor | None]:
        """Return query and bias, in at least float32, times each row's factor of `scaled-NAME`."""
        factor = self.row_factor().unsqueeze(-1)
        if self.bias is None:
            return self.query * factor, None
        # the factor may be 0, and its gradient must not meet the infinity
        masked = self.bias == -torch.inf
        bias = self.bias.masked_fill(masked, 0.0) * factor
        return self.query * factor, bias.masked_fill(masked, -torch.inf)

    def row_factor(self) -> Tensor:
        """Return the factor of each row of `scaled-NAME`, broadcastable to (B, H, Q)."""
        n = self._number().to(exact_dtype(self.query))
        if self.query_input is not None:
            return self.mapping.factor_of_queries(self.query_input, n)
        values = [self.parameter(p.name)[:, None] for p in (DELTA, BETA, GAMMA)]
        return length_factor(n, *values)

    def parameter(self, name: str | None) -> Tensor:
        """Return the parameter `name` for each head, (H,), with its graph; 0 if `name` is None.

        In float64 if the inputs are, else float32.
        """
        return by_head(name or "", self.mapping.value(name) if name else 0.0, self.query)

    def valid(self, rows: Rows | None = None) -> Tensor | None:
        """Keys that these queries may attend to, broadcasts to (B, H, rows, K); None for all."""
        rows = (
            slice(None) if rows is None else rows
        )  # not a default argument, which Dynamo 2.11 cannot trace
        queries, keys = self.shape[2:]
        i = torch.arange(queries, device=self.query.device)[rows, None]
        j = torch.arange(keys, device=self.query.device)
        parts = [] if self.mask is None else [select_rows(self.mask, rows)]
        if self.key_lengths is not None:
            parts.append(j < self.key_lengths[:, None, None, None])
        if self.cu_seqlens is not None:
            first, last = (t[rows, None] for t in own_sequence(self.cu_seqlens, queries))
            parts += [j >= first, j < last]
        if self.causal:
            parts.append(j <= i)
        if self.window is not None:
            parts.append((i - j).abs() < self.window)
        return functools.reduce(torch.logical_and, parts) if parts else None

    def counted(self, rows: Rows | None = None) -> Tensor | None:
        """Return `valid` without keys with a bias of -inf."""
        valid = self.valid(rows)
        if self.bias is None:
            return valid
        seen = (self.bias if rows is None else select_rows(self.bias, rows)) != -torch.inf
        return seen if valid is None else valid & seen

    def _number(self) -> Tensor:
        """Count the valid keys of each query, (B, H, Q); each dimension may be 1.

        Takes linear memory, unless the mask or bias differs between queries.
        """
        given = [None if t is None else _one_row(t) for t in (self.mask, self.bias)]
        if any(t is not None and t.dim() > 1 and t.shape[-2] != 1 for t in given):
            counted = self.counted()
            assert counted is not None
            return counted.expand(*counted.shape[:-1], self.shape[3]).sum(-1)
        mask, bias = given
        i, j = (torch.arange(size, device=self.query.device) for size in self.shape[2:])
        seen = j[None] >= 0
        if mask is not None:
            seen = seen & mask
        if bias is not None:
            seen = seen & (bias != -torch.inf)
        if self.key_lengths is not None:
            seen = seen & (j < self.key_lengths[:, None, None, None])
        if not self.causal and self.window is None and self.cu_seqlens is None:
            return seen.sum(-1)
        first, last = torch.zeros_like(i), torch.full_like(i, len(j))
        if self.cu_seqlens is not None:
            first, last = own_sequence(self.cu_seqlens, len(i))
        if self.window is not None:
            width = min(self.window, 2**30)
            first = torch.maximum(first, (i - width + 1).clamp(max=len(j)))
            last = torch.minimum(last, i + width)
        if self.causal:
            last = torch.minimum(last, i + 1)
        before = F.pad(seen.cumsum(-1), (1, 0))[..., 0, :]  # [..., K + 1]
        return before[..., last] - before[..., first]

    def _check_tensors(self) -> None:
        q, k, v = self.query, self.key, self.value
        if not hasattr(self.mapping, "spec"):  # PEFT wraps a Mapping
            raise TypeError(
                f"mapping: expected a sparse_attn.Mapping, got {self.mapping!r}; create one with "
                "Mapping(name, **parameters)"
            )
        self._check_kinds()
        for name, tensor in (("query", q), ("key", k), ("value", v)):
            if tensor.dim() != 4:
                raise ValueError(
                    f"{name}: expected 4 dimensions (batch, heads, length, head_dim), got shape "
                    f"{tuple(tensor.shape)}"
                )
            if not tensor.is_floating_point():
                raise TypeError(
                    f"{name}: expected a floating-point tensor, got {tensor.dtype}; use .float()"
                )
            if tensor.dtype != q.dtype:
                raise TypeError(
                    f"{name}: expected the dtype of query, {q.dtype}, got {tensor.dtype}; cast "
                    f"with .to({q.dtype})"
                )
        batch, heads, _, dim = q.shape
        shape = k.shape
        if dim == 0:
            raise ValueError(f"query: head_dim must be at least 1, got shape {tuple(q.shape)}")
        if shape[0] != batch or shape[3] != dim:
            raise ValueError(
                f"key: expected batch {batch} and head_dim {dim} as in query, got shape "
                f"{tuple(shape)}"
            )
        if shape[1] == 0 or heads % shape[1]:
            raise ValueError(f"key: its heads, {shape[1]}, must divide those of query, {heads}")
        if v.shape[:3] != shape[:3]:
            raise ValueError(
                f"value: expected batch, heads and length of key, {tuple(shape[:3])}, got shape "
                f"{tuple(v.shape)}"
            )

    def _check_query_input(self) -> None:
        scale, given = getattr(self.mapping, "by_query", None), self.query_input
        if scale is None and given is None:
            return
        if scale is None:
            raise ValueError(
                f"query_input: {self.mapping.name} does not depend on it; leave it out, or create "
                "the mapping with query_size"
            )
        if self.mapping.num_heads != self.query.shape[1]:
            raise ValueError(
                f"mapping: expected num_heads={self.query.shape[1]}, the heads of query, for a "
                f"factor of each, got {self.mapping.num_heads}"
            )
        expected = (self.query.shape[0], self.query.shape[2], scale.size)
        if given is None or given.shape != expected:
            got = "None" if given is None else f"shape {tuple(given.shape)}"
            raise ValueError(
                f"query_input: expected the input of each query (batch, queries, query_size) = "
                f"{expected}, got {got}; without query_size (per='head') none is needed"
            )

    def _check_sink(self) -> None:
        if self.sink is None:
            return
        if self.sink.shape != self.query.shape[1:2] or not self.sink.is_floating_point():
            raise ValueError(
                f"sink: expected {self.query.shape[1]} floating-point numbers, one for each head "
                f"of query, got {self.sink.dtype} of shape {tuple(self.sink.shape)}"
            )
        self.mapping.spec_with_sink()

    def _check_kinds(self) -> None:
        needed = ("query", "key", "value")
        optional = ("mask", "key_lengths", "cu_seqlens", "bias", "sink", "query_input")
        for name in (*needed, *optional):
            tensor = getattr(self, name)
            if tensor is None and name not in needed:
                continue
            if not isinstance(tensor, Tensor):
                raise TypeError(f"{name}: expected a tensor, got {type(tensor).__name__}")
            if tensor.device != self.query.device:
                raise ValueError(
                    f"{name}: expected the device of query, {self.query.device}, got "
                    f"{tensor.device}"
                )

    def _check_numbers(self) -> None:
        rate = self.dropout
        if isinstance(rate, Tensor) or not (rate == 0 or _between(0.0, rate, 1.0)):
            raise ValueError(f"dropout={rate!r}: expected a number in [0, 1)")
        if self.softcap is not None and not _between(0.0, self.softcap, math.inf):
            raise ValueError(f"softcap={self.softcap!r}: expected a finite number above 0, or None")
        if not isinstance(self.window, (int, torch.SymInt)) and isinstance(self.window, Integral):
            object.__setattr__(self, "window", int(self.window))  # a NumPy integer
        whole = isinstance(self.window, (int, torch.SymInt)) and not isinstance(self.window, bool)
        if self.window is not None and not (whole and self.window >= 1):
            raise ValueError(f"window={self.window!r}: expected an integer of at least 1, or None")
        if self.causal not in (True, False):
            raise TypeError(f"causal={self.causal!r}: expected True or False")
        if not _between(-math.inf, self.scale, math.inf):
            raise ValueError(f"scale={self.scale!r}: expected a finite number")

    def _check_masks(self) -> None:
        if self.mask is not None:
            check_boolean(self.mask, additive="bias=mask")
        if self.bias is not None and not self.bias.is_floating_point():
            raise TypeError(
                f"bias: expected a floating-point tensor, got {self.bias.dtype}; pass a boolean "
                "mask as mask="
            )
        for name, tensor in (("mask", self.mask), ("bias", self.bias)):
            if tensor is not None and not _broadcasts(tensor.shape, self.shape):
                raise ValueError(
                    f"{name}: shape {tuple(tensor.shape)} does not broadcast to (batch, heads, "
                    f"queries, keys) = {self.shape}; pass a tensor (batch, keys) as "
                    f"{name}[:, None, None, :]"
                )
        lengths = self.key_lengths
        whole = lengths is not None and lengths.dtype in (torch.int32, torch.int64)
        if lengths is not None and (lengths.shape != self.shape[:1] or not whole):
            raise ValueError(
                f"key_lengths: expected {self.shape[0]} int32 or int64, one for each sequence, got "
                f"{lengths.dtype} of shape {tuple(lengths.shape)}"
            )
        if self.cu_seqlens is not None:
            check_packed(self.cu_seqlens, self.query, self.key)
            if lengths is not None:
                raise ValueError("key_lengths: packed sequences have no padding; drop key_lengths")


def _broadcasts(shape: torch.Size, target: tuple[int, ...]) -> bool:
    pairs = zip(reversed(shape), reversed(target), strict=False)
    return len(shape) <= len(target) and all(a in (1, b) for a, b in pairs)


def _between(low: float, value: Any, high: float) -> bool:
    """Whether the value is a number between the ends."""
    try:
        # also for symbolic numbers in compiled graphs
        return bool(low < value < high)
    except TypeError:
        return False


def select_rows(tensor: Tensor, rows: Rows) -> Tensor:
    """Select rows of a tensor that broadcasts to (B, H, Q, K)."""
    return tensor[..., rows, :] if tensor.dim() > 1 and tensor.shape[-2] > 1 else tensor


def _one_row(tensor: Tensor) -> Tensor:
    """Return the single row of a tensor (B, H, Q, K) that was expanded from one row."""
    return tensor[..., :1, :] if tensor.dim() > 1 and tensor.stride(-2) == 0 else tensor


def as_autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Cast the tensors as autocast does for SDPA: all to its dtype, except float64."""
    device = tensors[0].device.type
    # the meta device has no autocast
    if device == "meta" or not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return tuple(t if t.dtype == torch.float64 else t.to(dtype) for t in tensors)


SOFTMAX = Mapping("softmax")


def fold_weights(inputs: AttentionInputs) -> AttentionInputs:
    """Turn weighted-softmax into softmax of scores + log weights, the same function."""
    if inputs.mapping.name != "weighted-softmax":
        return inputs
    weights = inputs.mapping.value("weights")
    if not isinstance(weights, Tensor):
        weights = inputs.query.new_full((1,), 1.0 if weights > 0 else 0.0)  # a constant cancels
    if not _broadcasts(weights.shape, inputs.shape):
        raise ValueError(
            f"weights: shape {tuple(weights.shape)} does not broadcast to (batch, heads, queries, "
            f"keys) = {inputs.shape}; give one weight, or one for each key"
        )
    bias = weights.to(inputs.query.device, exact_dtype(inputs.query)).log()
    return replace(
        inputs, mapping=SOFTMAX, bias=bias if inputs.bias is None else bias + inputs.bias
    )
