"""Checks of the arguments of an attention call."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from sparse_attn.kernels.inputs import AttentionInputs, broadcasts
from sparse_attn.kernels.packed import check_packed
from sparse_attn.mappings.base import check_boolean


def check(inputs: AttentionInputs) -> None:
    """Raise TypeError or ValueError for an argument of wrong type, shape or range."""
    _check_tensors(inputs)
    _check_sink(inputs)
    _check_query_input(inputs)
    _check_masks(inputs)
    _check_numbers(inputs)


def _check_tensors(inputs: AttentionInputs) -> None:
    q, k, v = inputs.query, inputs.key, inputs.value
    if not hasattr(inputs.mapping, "spec"):  # PEFT wraps a Mapping
        raise TypeError(
            f"mapping: expected a sparse_attn.Mapping, got {inputs.mapping!r}; create one with "
            "Mapping(name, **parameters)"
        )
    _check_kinds(inputs)
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
            f"key: expected batch {batch} and head_dim {dim} as in query, got shape {tuple(shape)}"
        )
    if shape[1] == 0 or heads % shape[1]:
        raise ValueError(f"key: its heads, {shape[1]}, must divide those of query, {heads}")
    if v.shape[:3] != shape[:3]:
        raise ValueError(
            f"value: expected batch, heads and length of key, {tuple(shape[:3])}, got shape "
            f"{tuple(v.shape)}"
        )


def _check_kinds(inputs: AttentionInputs) -> None:
    needed = ("query", "key", "value")
    optional = ("mask", "key_lengths", "cu_seqlens", "bias", "sink", "query_input")
    for name in (*needed, *optional):
        tensor = getattr(inputs, name)
        if tensor is None and name not in needed:
            continue
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name}: expected a tensor, got {type(tensor).__name__}")
        if tensor.device != inputs.query.device:
            raise ValueError(
                f"{name}: expected the device of query, {inputs.query.device}, got {tensor.device}"
            )


def _check_sink(inputs: AttentionInputs) -> None:
    if inputs.sink is None:
        return
    if inputs.sink.shape != inputs.query.shape[1:2] or not inputs.sink.is_floating_point():
        raise ValueError(
            f"sink: expected {inputs.query.shape[1]} floating-point numbers, one for each head "
            f"of query, got {inputs.sink.dtype} of shape {tuple(inputs.sink.shape)}"
        )
    inputs.mapping.spec_with_sink()


def _check_query_input(inputs: AttentionInputs) -> None:
    scale, given = getattr(inputs.mapping, "by_query", None), inputs.query_input
    if scale is None and given is None:
        return
    if scale is None:
        raise ValueError(
            f"query_input: {inputs.mapping.name} does not depend on it; leave it out, or create "
            "the mapping with query_size"
        )
    if inputs.mapping.num_heads != inputs.query.shape[1]:
        raise ValueError(
            f"mapping: expected num_heads={inputs.query.shape[1]}, the heads of query, for a "
            f"factor of each, got {inputs.mapping.num_heads}"
        )
    expected = (inputs.query.shape[0], inputs.query.shape[2], scale.size)
    if given is None or given.shape != expected:
        got = "None" if given is None else f"shape {tuple(given.shape)}"
        raise ValueError(
            f"query_input: expected the input of each query (batch, queries, query_size) = "
            f"{expected}, got {got}; without query_size (per='head') none is needed"
        )


def _check_masks(inputs: AttentionInputs) -> None:
    if inputs.mask is not None:
        check_boolean(inputs.mask, additive="bias=mask")
    if inputs.bias is not None and not inputs.bias.is_floating_point():
        raise TypeError(
            f"bias: expected a floating-point tensor, got {inputs.bias.dtype}; pass a boolean "
            "mask as mask="
        )
    for name, tensor in (("mask", inputs.mask), ("bias", inputs.bias)):
        if tensor is not None and not broadcasts(tensor.shape, inputs.shape):
            raise ValueError(
                f"{name}: shape {tuple(tensor.shape)} does not broadcast to (batch, heads, "
                f"queries, keys) = {inputs.shape}; pass a tensor (batch, keys) as "
                f"{name}[:, None, None, :]"
            )
    lengths = inputs.key_lengths
    whole = lengths is not None and lengths.dtype in (torch.int32, torch.int64)
    if lengths is not None and (lengths.shape != inputs.shape[:1] or not whole):
        raise ValueError(
            f"key_lengths: expected {inputs.shape[0]} int32 or int64, one for each sequence, got "
            f"{lengths.dtype} of shape {tuple(lengths.shape)}"
        )
    if inputs.cu_seqlens is not None:
        check_packed(inputs.cu_seqlens, inputs.query, inputs.key)
        if lengths is not None:
            raise ValueError("key_lengths: packed sequences have no padding; drop key_lengths")


def _check_numbers(inputs: AttentionInputs) -> None:
    rate = inputs.dropout
    if isinstance(rate, Tensor) or not (rate == 0 or _between(0.0, rate, 1.0)):
        raise ValueError(f"dropout={rate!r}: expected a number in [0, 1)")
    if inputs.softcap is not None and not _between(0.0, inputs.softcap, math.inf):
        raise ValueError(f"softcap={inputs.softcap!r}: expected a finite number above 0, or None")
    window = inputs.window
    whole = isinstance(window, (int, torch.SymInt)) and not isinstance(window, bool)
    if window is not None and not (whole and window >= 1):
        raise ValueError(f"window={window!r}: expected an integer of at least 1, or None")
    if inputs.causal not in (True, False):
        raise TypeError(f"causal={inputs.causal!r}: expected True or False")
    if not _between(-math.inf, inputs.scale, math.inf):
        raise ValueError(f"scale={inputs.scale!r}: expected a finite number")


def _between(low: float, value: Any, high: float) -> bool:
    """Whether the value is a number between the ends."""
    try:
        # also for symbolic numbers in compiled graphs
        return bool(low < value < high)
    except TypeError:
        return False
