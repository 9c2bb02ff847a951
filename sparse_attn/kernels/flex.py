"""Pointwise mappings through FlexAttention: softmax(log g(scores)), with score_mod log g."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

from sparse_attn.kernels.inputs import AttentionInputs, AttentionOutput

LOG_ZERO = torch.finfo(torch.float32).min / 2


def unsupported_reason(inputs: AttentionInputs) -> str | None:
    """Return why FlexAttention does not support the call, None if it does."""
    spec = inputs.mapping.spec
    if inputs.has_sink:
        return "FlexAttention is called without attention sinks"
    if spec.log_g is None or spec.weights is not None:
        return f"{spec.name} is not pointwise with fixed log g, which FlexAttention needs"
    if any(p.per_entry for p in spec.parameters):
        return f"{spec.name} has a parameter for each score"
    if inputs.key_lengths is not None:
        return "it would compute the padding that key_lengths leaves out"
    if inputs.cu_seqlens is not None:
        return "it would compute the scores between packed sequences"
    if inputs.query.dtype == torch.float64:
        return "FlexAttention computes in float32, the inputs are float64"
    if inputs.dropout:
        return f"FlexAttention has no dropout, got dropout={inputs.dropout}"
    if 0 in inputs.shape:
        return f"the scores are empty, shape {inputs.shape}"
    leaves = (inputs.query, inputs.key, inputs.value)
    learns = torch.is_grad_enabled() and any(t.requires_grad for t in leaves)
    if inputs.query.device.type == "cpu" and learns:
        return "FlexAttention has no backward pass on the CPU"
    if inputs.query.device.type == "cpu" and inputs.mapping.learned:
        return "FlexAttention has no gradient to parameters on the CPU"
    if inputs.bias is not None and inputs.bias.requires_grad:
        return "the gradient to bias would need an atomic sum"
    return None


def attention(inputs: AttentionInputs) -> AttentionOutput:
    """out = softmax(log g(scores)) v, (B, H, Q, Dv)."""
    tensors = [inputs.query, inputs.key, inputs.value]
    if not torch.is_grad_enabled():
        # flex only checks requires_grad, which it refuses on the CPU
        tensors = [tensor.detach() for tensor in tensors]
    output = _compiled(inputs.query.device.type)(
        *tensors,
        score_mod=_score_mod(inputs),
        scale=inputs.scale,
        enable_gqa=inputs.groups > 1,
    )
    return AttentionOutput(output)


@functools.cache
def _compiled(device: str) -> Callable[..., Tensor]:
    # torch 2.13 generates CPU code that does not compile for every score_mod
    return torch.compile(flex_attention, backend="eager" if device == "cpu" else "inductor")


def _score_mod(inputs: AttentionInputs) -> Callable[..., Tensor]:
    log_g = inputs.mapping.spec.log_g
    assert log_g is not None
    softcap = inputs.softcap
    values = [inputs.parameter(p.name) for p in inputs.mapping.spec.parameters]
    bias = None if inputs.bias is None else inputs.bias.expand(inputs.shape)
    valid = inputs.valid()
    valid = None if valid is None else valid.expand(inputs.shape)

    def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        score = score.float()
        if softcap is not None:
            score = softcap * torch.tanh(score / softcap)
        if bias is not None:
            score = score + bias[b, h, i, j]
        inside = score != -torch.inf
        if valid is not None:
            inside = inside & valid[b, h, i, j]
        # g(-inf) is not 0 for even functions
        score = torch.where(inside, score, 0.0)
        log_weight = log_g(score, *(value[h] for value in values))
        # log 0 is represented by the lowest finite number, which the kernel's change of base turns
        # into -inf
        return torch.where(inside, log_weight.clamp(min=LOG_ZERO), -torch.inf)

    return score_mod
