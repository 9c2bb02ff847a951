"""Attention with a probability mapping in place of softmax, as a kernel of Hugging Face's hub.

`attention(query, key, value, Mapping("entmax", alpha=1.5), causal=True)` is the function alone. In
Transformers, `attn_implementation="ORG/REPO:entmax,alpha=1.5"` calls `flash_attn_forward`.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from sparse_attn.kernels.dispatch import attention
from sparse_attn.mappings import Mapping, mapping_names

__all__ = ["Mapping", "attention", "flash_attn_forward", "mapping_names", "supports_flash_attn"]

# with `flash_attn_forward` it makes Transformers pass the boolean mask that it passes to SDPA
supports_flash_attn = True
REFUSED = ("cu_seq_lens_q", "cu_seq_lens_k", "cache", "indices", "block_indices")
_mappings: dict[str, Mapping] = {}


def flash_attn_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    position_bias: Tensor | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """out = map(scaling * q k^T) v, where the model's attention implementation names the mapping.

    Args:
        module: the attention module; after the colon of `module.config._attn_implementation` stands
            a mapping and its parameters, such as `r-softmax,r=0.15`.
        query: (B, H, Q, D). key, value: (B, Hkv, K, D) with Hkv dividing H.
        attention_mask: boolean, True = attend, broadcastable to (B, H, Q, K). It holds causality
            and window; without one, and with more than one query, the arguments hold.
        scaling: factor of the scores, 1/sqrt(D) if None.
        dropout: probability of dropping a weight.
        is_causal: query i attends to keys j <= i; `module.is_causal` if None.
        sliding_window: query i attends to keys with |i - j| < sliding_window.
        softcap: scores become softcap * tanh(scores / softcap).
        position_bias: added to the scaled scores.
        s_aux: (H,), the score of a virtual key of value 0.

    Returns:
        (B, Q, H, D), and None for the weights, which are not kept.

    Raises:
        ValueError: the implementation names no mapping, a wrong one, or one that learns parameters
            or takes weights of the keys.
        NotImplementedError: packed sequences, a paged cache or selected keys.
    """
    for name in REFUSED:
        if kwargs.get(name) is not None:
            raise NotImplementedError(
                f"{type(module).__name__} passes {name}, which this kernel does not take; use the "
                "library sparse-attn or another attention implementation"
            )
    if is_causal is None:
        is_causal = getattr(module, "is_causal", False)
    alone = attention_mask is None and query.shape[2] > 1
    out = attention(
        query,
        key,
        value,
        _mapping(module),
        mask=attention_mask,
        causal=is_causal and alone,
        window=sliding_window if alone else None,
        scale=scaling,
        dropout=dropout,
        softcap=softcap,
        bias=position_bias,
        sink=s_aux,
    )
    return out.transpose(1, 2).contiguous(), None


def _mapping(module: nn.Module) -> Mapping:
    config: Any = module.config
    implementation: str = config._attn_implementation
    if implementation not in _mappings:
        _mappings[implementation] = _parsed(implementation)
    return _mappings[implementation]


def _parsed(implementation: str) -> Mapping:
    name, *settings = implementation.partition(":")[2].split(",")
    try:
        pairs = [(key, float(number)) for key, number in (text.split("=") for text in settings)]
    except ValueError:
        pairs = []
    parameters: dict[str, Any] = dict(pairs)
    if not name or len(parameters) < len(settings):
        raise ValueError(
            f"attn_implementation={implementation!r}: expected a mapping after the colon, and "
            "PARAMETER=NUMBER after each comma, each parameter once, such as "
            '"ORG/REPO:r-softmax,r=0.15"'
        )
    mapping = Mapping(name, **parameters)
    if any(parameter.per_entry for parameter in mapping.spec.parameters):
        reason = "takes a weight for each key, and a name holds only numbers"
    elif any(True for _ in mapping.parameters()):
        reason = "learns parameters, which the model would neither train nor save"
    else:
        return mapping
    raise ValueError(
        f"attn_implementation={implementation!r}: {name} {reason}; use patch_model of the library "
        "sparse-attn"
    )
