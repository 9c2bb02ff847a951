"""Attention and mask functions that Transformers calls.

Importing this module registers both under one name. The `Mapping` that `patch_model` sets on an
attention module decides which mapping it uses.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import bidirectional_mask_function, eager_mask, sdpa_mask

from sparse_attn.hf.requested import Requested
from sparse_attn.kernels.dispatch import run, run_again
from sparse_attn.kernels.inputs import AttentionInputs, as_autocast
from sparse_attn.kernels.reference import exact_weights

NAME = "sparse_attn"
ONLY_BY_US = f"{NAME}.load_pretrained"  # the implementation of heads alone in version 1
CAUSAL = "_sparse_attn_causal"  # version of a mask that is causality alone, as its attribute
INT8_KEYS = "_sparse_attn_int8_keys"  # of a cache, as an attribute of its keys
REACHED = "_sparse_attn_reached"  # flag of an attention module that has called us
MASKED = -9e3  # in additive masks, positions at or below it are masked, such as -1e4 plus a bias
REFUSED = {
    "sinks": "attention sinks that differ from query to query",
    "indices": "keys selected by an index",
    "block_indices": "blocks selected by an index",
}
# model types that append additive entries in the dtype of their mask, which must not be boolean
ADDITIVE = ("deepseek_v4",)
NOT_PATCHED = (
    f"attn_implementation={NAME!r} is set, but this model holds no mapping; load it by the class "
    "that was saved patched, or call sparse_attn.patch_model(model, ...). If it is the reference "
    "model that TRL's DPOTrainer loads, give that one yourself: ref_model=copy.deepcopy(model)"
)


class Unsaved(str):
    """The name of this implementation, which a config does not save.

    Used while an unpatched model is recorded, so that saving it saves the plain model.
    """


def sparse_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    position_bias: Tensor | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attention with a mapping for softmax: p = map(scaling * q k^T), out = p v.

    Args:
        module: the attention module; `module.sparse_attn` is its `Mapping`.
        query: (B, H, Q, D). key, value: (B, Hkv, K, D) with Hkv dividing H.
        attention_mask: (B or 1, H or 1, Q, K) boolean, True = attend, or additive, or None.
        scaling: factor of the scores, 1/sqrt(D) if None.
        position_bias: added to the scaled scores before masking (T5).
        softcap: scores become softcap * tanh(scores / softcap) before masking (Gemma 2).
        s_aux: (H,), the model's own sinks: the score of a virtual key of value 0 (GPT-OSS).
        kwargs: other arguments of the model. `cu_seq_lens_q` and `cu_seq_lens_k` are the boundaries
            of packed sequences, (sequences + 1,), with B = 1; a mask applies inside them.

    Returns:
        The output (B, Q, H, D), and the attention weights (B, H, Q, K) before dropout if they are
        observed, else None.

    Raises:
        RuntimeError: the module holds no mapping.
        NotImplementedError: the model passes key indices or a sink for each query, which no mapping
            defines, packed queries and keys of different sequences, or position_bias and softcap
            together.
        ValueError: `s_aux` for a mapping with a sink of its own, or that cannot have one; values
            of pruned heads; a mask of integers or of another shape; packed sequences in a batch of
            several, or with other keys.
    """
    mapping = getattr(module, NAME, None)
    if mapping is None:
        raise RuntimeError(f"{type(module).__name__}: {NOT_PATCHED}")
    if mapping.num_heads not in (None, query.shape[1]):
        raise ValueError(
            f"{type(module).__name__} has {query.shape[1]} heads, but {mapping.name} has values of "
            f"{mapping.num_heads} heads; call patch_model again after pruning heads"
        )
    # getattr would search a module's parameters, buffers and submodules for a missing name
    if (reached := module.__dict__.get(REACHED)) is not None:
        reached.done = True
    query_input = None
    if getattr(mapping, "by_query", None) is not None:
        query_input = _input_of(module, reached)
    for name, meaning in REFUSED.items():
        if kwargs.get(name) is not None:
            raise NotImplementedError(
                f"{type(module).__name__} passes {name} ({meaning}), which {mapping.name} does not "
                "define; unpatch this model"
            )
    query, key, value = as_autocast(query, key, value)
    mask, bias, causal = _split_mask(module, query, key, attention_mask, kwargs.get("is_causal"))
    if position_bias is not None:
        if softcap is not None:
            raise NotImplementedError(
                f"{type(module).__name__} passes position_bias and softcap together, whose order "
                "no known model defines; unpatch this model"
            )
        bias = position_bias if bias is None else position_bias + bias
    requested = Requested.of(module, mapping, kwargs)
    ends = _boundaries(module, kwargs)
    causal = causal and query.shape[2] > 1
    dropout = dropout if module.training else 0.0
    if requested.only_output and bias is softcap is s_aux is ends is None:
        again = run_again(
            query, key, value, mapping, mask, causal, scaling, dropout, queries_first=True
        )
        if again is not None:
            return again, None
    observer = requested.observer
    inputs = AttentionInputs(
        query,
        key,
        value,
        mapping,
        mask=mask,
        cu_seqlens=ends,
        bias=bias,
        sink=s_aux,
        softcap=softcap,
        causal=causal,
        scaling=scaling,
        dropout=dropout,
        need_weights=requested.weights or (observer is not None and observer.keeps_weights),
        need_statistics=observer is not None,
        special_keys=None if observer is None else observer.special(key.shape[0], key.shape[2]),
        query_input=query_input,
        # a graph has no attributes of tensors
        int8_keys=None if torch.compiler.is_compiling() else getattr(key, INT8_KEYS, None),
    )
    output, weights, statistics = run(inputs)
    if observer is not None:
        assert statistics is not None
        observer.see(inputs, statistics, weights if observer.keeps_weights else None)
    if requested.separate_weights and weights is None:
        weights = _separate_weights(inputs)
    elif not requested.weights and not requested.separate_weights:
        weights = None
    weights = None if weights is None else weights.to(value.dtype)
    return output.transpose(1, 2).contiguous(), weights


def _input_of(module: nn.Module, reached: Any) -> Tensor:
    """Return the input of the module's call, which its forward pre-hook has kept."""
    given = None if reached is None else reached.kept_input()
    if not isinstance(given, Tensor):
        raise NotImplementedError(
            f'{type(module).__name__}: per="query" needs the input of the module, but its forward '
            "was called without its hooks, or compiled without them; call or compile the module "
            "or the model"
        )
    return given


def _separate_weights(inputs: AttentionInputs) -> Tensor:
    """Compute the weights of a call separately from its output.

    For models that do not pass `output_attentions` to their attention. Activation checkpointing
    counts the tensors that a layer saves, so these are hidden, because the recomputation has none.
    """
    with saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
        return exact_weights(inputs)


def _boundaries(module: nn.Module, kwargs: dict[str, Any]) -> Tensor | None:
    """Return the boundaries of packed sequences; queries and keys must share them."""
    of_queries, of_keys = kwargs.get("cu_seq_lens_q"), kwargs.get("cu_seq_lens_k")
    if of_queries is None and of_keys is None:
        return None
    in_graph = torch.compiler.is_compiling()
    if not (
        isinstance(of_queries, Tensor)
        and isinstance(of_keys, Tensor)
        and of_queries.shape == of_keys.shape
        # values in a graph are unknown, and reading them on a GPU would synchronise
        and (in_graph or of_queries.device.type != "cpu" or torch.equal(of_queries, of_keys))
    ):
        raise NotImplementedError(
            f"{type(module).__name__} passes packed sequences whose keys are not those of the "
            "queries; pass cu_seq_lens_q and cu_seq_lens_k alike"
        )
    return of_queries


def _split_mask(
    module: nn.Module, query: Tensor, key: Tensor, mask: Tensor | None, is_causal: bool | None
) -> tuple[Tensor | None, Tensor | None, bool]:
    """Split any mask that a model passes into a boolean mask, a bias and causality."""
    if mask is None:
        # a static cache is longer than the prompt that fills it: query i sees keys up to i
        return None, None, getattr(module, "is_causal", False) if is_causal is None else is_causal
    shape = (*query.shape[:3], key.shape[2])
    fits = [n in (1, most) for n, most in zip(mask.shape[:3], shape, strict=False)]
    kind = mask.dtype == torch.bool or mask.is_floating_point()
    if mask.dim() != 4 or not (kind and all(fits)):
        raise ValueError(
            "attention_mask: expected a boolean (attention_mask.bool() if 1 = attend) or floating-"
            f"point tensor of 4 dimensions (batch, heads, queries, keys), {shape} or 1 for some, "
            f"got {mask.dtype} of shape {tuple(mask.shape)}"
        )
    if mask.shape[3] not in (1, key.shape[2]):
        # a single query that sees all keys of one layer sees all keys of every layer
        if query.shape[2] == 1 and mask.dtype == torch.bool and mask.all():
            return None, None, False
        raise ValueError(
            f"attention_mask: expected {key.shape[2]} keys, as many as {type(module).__name__} "
            f"has, got shape {tuple(mask.shape)}; give every layer of a pruned cache the same "
            "number of keys, or continue token by token without padding, and a mask of your own "
            "a column for each key, those in the cache too"
        )
    if mask.dtype == torch.bool:
        # a graph has the mask's operators, and no attributes of tensors
        marked = None if torch.compiler.is_compiling() else mask.__dict__.get(CAUSAL)
        if marked is not None and marked == mask._version:
            return None, None, True
        return mask, None, False
    attended = mask > MASKED
    return attended, mask.masked_fill(~attended, 0.0), False


def sparse_attention_mask(*args: Any, **kwargs: Any) -> Tensor | None:
    """Return Transformers' boolean mask, also for causal attention; a float mask for `ADDITIVE`.

    Raises:
        RuntimeError: the model uses this implementation but holds no mapping. A model that does not
            dispatch its attention would otherwise add the boolean mask to the scores.
    """
    config = kwargs.get("config")
    # private: configs have no public name for their attention implementation
    recorded = config is not None and isinstance(config._attn_implementation, Unsaved)
    if config is not None and getattr(config, NAME, None) is None and not recorded:
        raise RuntimeError(f"{type(config).__name__}: {NOT_PATCHED}")
    if config is not None and config.model_type in ADDITIVE:
        return eager_mask(*args, **kwargs)
    if _may_be_only_causal(kwargs):
        mask = sdpa_mask(*args, **kwargs)
        return _marked_mask(args, kwargs) if mask is None else mask
    kwargs = {**kwargs, "allow_is_causal_skip": False}
    padding = kwargs.get("attention_mask")
    if padding is not None and padding.is_meta:
        kwargs["allow_is_bidirectional_skip"] = False  # which reads the mask's values
    queries = kwargs.get("q_length")
    if queries is None or kwargs.get("mask_function") is not bidirectional_mask_function:
        return sdpa_mask(*args, **kwargs)
    # only padding: one row serves all queries, which the kernels see by its stride
    mask = sdpa_mask(*args, **{**kwargs, "q_length": 1})
    return None if mask is None else mask.expand(-1, -1, queries, -1)


def _may_be_only_causal(kwargs: dict[str, Any]) -> bool:
    """Whether `sdpa_mask` may return None because the mask is causality alone."""
    queries, padding = kwargs.get("q_length"), kwargs.get("attention_mask")
    return (
        kwargs.get("allow_is_causal_skip") is True
        and not kwargs.get("allow_is_bidirectional_skip")
        and not torch.compiler.is_compiling()
        and isinstance(queries, int)
        and 1 < queries == kwargs.get("kv_length")
        # SDPA's rule reads its values, for which a GPU would have to wait
        and (padding is None or padding.device.type == "cpu")
    )


def _marked_mask(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Return a causal mask with a mark, so that the kernels compute half of the scores without it.

    A mask that a model replaces or changes has no mark.
    """
    kwargs = {**kwargs, "attention_mask": None, "allow_is_causal_skip": False}
    # not of inference mode, whose tensors do not count their changes
    with torch.inference_mode(False):
        mask = sdpa_mask(*args, **kwargs)
    assert mask is not None
    setattr(mask, CAUSAL, mask._version)
    return mask


AttentionInterface.register(NAME, sparse_attention)
AttentionMaskInterface.register(NAME, sparse_attention_mask)
# in configs of heads alone that version 1 wrote, until their model is built
AttentionInterface.register(ONLY_BY_US, sparse_attention)
