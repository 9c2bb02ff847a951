"""`attention`: entry point to all implementations."""

from __future__ import annotations

from numbers import Integral
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from sparse_attn.kernels import cpu, flex, reference, triton
from sparse_attn.kernels.checks import check
from sparse_attn.kernels.inputs import (
    AttentionInputs,
    AttentionOutput,
    as_autocast,
    fold_weights,
)
from sparse_attn.mappings import Mapping

IMPLEMENTATIONS: dict[str, ModuleType] = {
    "triton": triton,
    "cpu": cpu,
    "flex": flex,
    "reference": reference,
}
# by preference; flex last, because it compiles for a long time on the CPU
AUTOMATIC = {"cuda": ("triton", "flex", "reference"), "cpu": ("cpu", "reference")}


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mapping: Mapping,
    *,
    mask: Tensor | None = None,
    key_lengths: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    bias: Tensor | None = None,
    sink: Tensor | None = None,
    softcap: float | None = None,
    causal: bool = False,
    window: int | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
    query_input: Tensor | None = None,
    impl: str | None = None,
) -> Tensor:
    """out = dropout(map(scale q k^T + bias)) v, without storing the weights if possible.

    Args:
        query: (B, H, Q, D), any strides.
        key, value: (B, Hkv, K, D) and (B, Hkv, K, Dv), Hkv dividing H: query head h attends to key
            head h // (H / Hkv).
        mapping: the `Mapping` from scores to weights, computed in at least float32.
        mask: boolean, True = attend, broadcastable to (B, H, Q, K).
        key_lengths: (B,) integers; later keys are padding and not computed. Clamped to [0, K].
        cu_seqlens: (sequences + 1,) integers from 0 to Q, for sequences one after another in a
            batch of 1: tokens from cu_seqlens[s] to cu_seqlens[s + 1] only attend to each other.
            Needs K = Q. On a GPU the values are not checked.
        bias: added to the scaled scores, broadcastable to (B, H, Q, K); -inf masks.
        sink: (H,), the score of a virtual key of value 0 for each head, for a mapping without the
            parameter `sink`.
        softcap: scores become softcap * tanh(scores / softcap) before the bias.
        causal: query i attends to keys j <= i.
        window: query i attends to keys with |i - j| < window.
        scale: factor of the scores, 1/sqrt(D) if None.
        dropout: probability of dropping a weight, in [0, 1); the rest is scaled by 1 / (1 -
            dropout).
        query_input: (B, Q, query_size), for a mapping with `query_size`.
        impl: `reference`, `cpu`, `triton` or `flex`; None for the fastest that supports the call.

    Returns:
        (B, H, Q, Dv) in the dtype of query, or of autocast; zeros if a query has no valid key.

    Raises:
        TypeError, ValueError: an argument of wrong dtype, shape or range.
        NotImplementedError: the implementation `impl` does not support this call, and why.
    """
    if all(isinstance(tensor, Tensor) for tensor in (query, key, value)):
        query, key, value = as_autocast(query, key, value)
        plain = key_lengths is cu_seqlens is bias is sink is softcap is None
        if plain and window is query_input is impl is None:
            again = run_again(
                query, key, value, mapping, mask, causal, scale, dropout, queries_first=False
            )
            if again is not None:
                return again
    if isinstance(window, Integral) and not isinstance(window, int):
        window = int(window)  # a NumPy integer
    inputs = AttentionInputs(
        query,
        key,
        value,
        mapping,
        mask=mask,
        key_lengths=key_lengths,
        cu_seqlens=cu_seqlens,
        bias=bias,
        sink=sink,
        softcap=softcap,
        causal=causal,
        window=window,
        scaling=scale,
        dropout=dropout,
        query_input=query_input,
    )
    return run(inputs, impl).output


def run(inputs: AttentionInputs, impl: str | None = None) -> AttentionOutput:
    """Compute `attention`, with the weights and statistics requested by `inputs`.

    Raises as `attention`.
    """
    check(inputs)
    if not inputs.need_weights:
        inputs = fold_weights(inputs)
    result: AttentionOutput = IMPLEMENTATIONS[choose(inputs, impl)].attention(inputs)
    if inputs.need_statistics and result.statistics is None:
        result = result._replace(statistics=reference.row_statistics(inputs))
    return result


def run_again(query: Tensor, *arguments: Any, queries_first: bool) -> Tensor | None:
    """Return the output of `triton.attend_again`, None where the kernels are not in use."""
    if torch.compiler.is_compiling() or not triton.INSTALLED:
        return None
    if AUTOMATIC.get(query.device.type, ())[:1] != ("triton",):
        return None
    return triton.repeat_call.attend_again(query, *arguments, queries_first=queries_first)


def choose(inputs: AttentionInputs, impl: str | None = None) -> str:
    """Return the name of the implementation for this call: `impl`, or the first that supports it.

    Raises:
        ValueError: there is no `impl`.
        NotImplementedError: `impl` does not support this call, and why.
    """
    if impl is None:
        names = AUTOMATIC.get(inputs.query.device.type, ("reference",))
        if inputs.need_weights or inputs.needs_aten:
            names = ("reference",)
        return next(n for n in names if IMPLEMENTATIONS[n].unsupported_reason(inputs) is None)
    if impl not in IMPLEMENTATIONS:
        raise ValueError(f"impl={impl!r}: expected one of {', '.join(IMPLEMENTATIONS)}, or None")
    reason = IMPLEMENTATIONS[impl].unsupported_reason(inputs)
    if reason is not None:
        raise NotImplementedError(
            f"impl={impl!r} does not support this call: {reason}; omit impl to use one that does"
        )
    return impl
