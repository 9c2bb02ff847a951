"""Inputs and the output of an attention call."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional as F

from sparse_attn.kernels.by_head import by_head, exact_dtype, theta
from sparse_attn.kernels.dropout import draw_seed
from sparse_attn.kernels.operators import OperatorInputs
from sparse_attn.kernels.packed import own_sequence
from sparse_attn.mappings import Mapping
from sparse_attn.mappings.specs import Kernel
from sparse_attn.mappings.variants import BETA, DELTA, GAMMA, SINK, length_factor

Rows = slice | Tensor  # of queries: a part, or their indices


class AttentionOutput(NamedTuple):
    """Result of an implementation."""

    output: Tensor  # [B, H, Q, Dv]
    weights: Tensor | None = None  # [B, H, Q, K], before dropout, in at least float32
    statistics: Tensor | None = None  # [B, H, Q, COLUMNS]


@dataclass
class AttentionInputs:
    """Arguments of `attention`, which `dispatch.run` checks."""

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
    int8_keys: Tensor | None = None  # of the same keys, see `kernels.cpu.int8_keys`

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


def broadcasts(shape: torch.Size, target: tuple[int, ...]) -> bool:
    """Whether a tensor of this shape broadcasts to the target without more dimensions."""
    pairs = zip(reversed(shape), reversed(target), strict=False)
    return len(shape) <= len(target) and all(a in (1, b) for a, b in pairs)


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
    if not broadcasts(weights.shape, inputs.shape):
        raise ValueError(
            f"weights: shape {tuple(weights.shape)} does not broadcast to (batch, heads, queries, "
            f"keys) = {inputs.shape}; give one weight, or one for each key"
        )
    bias = weights.to(inputs.query.device, exact_dtype(inputs.query)).log()
    return replace(
        inputs, mapping=SOFTMAX, bias=bias if inputs.bias is None else bias + inputs.bias
    )
