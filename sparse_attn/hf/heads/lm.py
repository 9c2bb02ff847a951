"""Patch the output layer of a Transformers model with a mapping, and unpatch it."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, TypeAlias, cast

from torch import nn
from transformers import PreTrainedModel

from sparse_attn.heads.base import positive
from sparse_attn.heads.linear import LinearHead
from sparse_attn.heads.mixture import MixtureHead
from sparse_attn.hf.config import HEAD, own_configs, remove_entry
from sparse_attn.hf.entries import with_module
from sparse_attn.hf.heads.guard import refuse_changed_logits
from sparse_attn.hf.heads.installing import install_head, plain_linear, remove_head, wrap
from sparse_attn.hf.heads.log_zero import unwatch_zeros, watch_zeros
from sparse_attn.hf.heads.own_loss import own_loss, remove_own_loss
from sparse_attn.hf.layers import attention_layers, root_of
from sparse_attn.hf.patching import ModelT
from sparse_attn.mappings import Mapping

PatchedHead: TypeAlias = LinearHead | MixtureHead
# private: resize_token_embeddings resizes nothing but linear layers
RESIZE = "_get_resized_lm_head"  # Transformers' method, overridden in a model with a patched head


def patch_lm_head(
    model: ModelT,
    mapping: str,
    *,
    components: int | None = None,
    prior: str | None = None,
    learn: str | Iterable[str] = (),
    **parameters: Any,
) -> ModelT:
    """Replace softmax in the output layer of a language model: p = map(W h + b), in place.

    The output embedding becomes a `LinearHead`, or with `components` a `MixtureHead`, with the same
    weight and bias under the same names; tied weights stay tied. The model's "logits" become log p,
    computed in at least float32 and rounded to their former dtype (a mixture's stay in float32).
    Since log_softmax(log p) = log p, the model's own cross entropy is -log p of the target, and
    `generate` applies temperature, top-k, beams and penalties to log p. A second call replaces the
    mapping. With repetition_penalty the text differs from the plain model's, even for softmax,
    because a repeated token gets p to the power of the penalty.

    A mixture starts untrained, because no weights of its tanh(U_k h) reproduce the previous
    distribution. Fine-tune it.

    Mappings that return zeros have log p = -inf there, which cross entropy cannot train. If the
    model calls its `loss_function`, sparsemax and entmax get their own loss instead; the others can
    generate, and raise ValueError for a gradient. Beam search that samples needs twice as many
    tokens with p > 0 as beams. `generate` raises ValueError for guidance_scale, and if its options
    leave no token with p > 0. Backward raises ValueError for a loss on the logits that takes log p
    of a zero, such as Trainer's label_smoothing_factor.

    Args:
        model: a causal, masked or sequence-to-sequence Transformers language model, plain or
            wrapped (PEFT, DDP, torch.compile).
        mapping: a registered name, see `mapping_names()`.
        components: K of a mixture of K mappings; None for none.
        prior: mapping of the mixture weights; see `MixtureHead`.
        learn: names of the mapping's parameters to learn.
        **parameters: values of the mapping's parameters.

    Returns:
        The same model.

    Raises:
        ValueError: an unknown mapping, a value out of range, a model without a linear output
            embedding, one that changes its logits (such as a soft cap), or a mapping with zeros in
            a model that computes its own cross entropy. The model's forward raises RuntimeError if
            its logits are not the head's.
        TypeError: an unknown parameter, or a model that is not from Transformers.
    """
    new_mapping = Mapping(mapping, learn=learn, **parameters)
    root = root_of(model)
    if isinstance(root.get_output_embeddings(), PatchedHead) and HEAD not in vars(root.config):
        raise ValueError(
            f"{type(root).__name__} is, or contains, a part whose head is already patched; patch "
            "or unpatch the model that was patched first"
        )
    own_configs(root)
    _install(root, new_mapping, components, prior)
    return model


def unpatch_lm_head(model: ModelT) -> ModelT:
    """Restore the output layer of `model` in place: outputs, state_dict keys and config.

    Raises:
        ValueError: the head is not patched.
        TypeError: a model that is not from Transformers.
    """
    root = root_of(model)
    head = root.get_output_embeddings()
    if HEAD not in vars(root.config):
        raise ValueError(
            f"the head of {type(root).__name__} is not patched; call patch_lm_head first"
        )
    if not isinstance(head, PatchedHead):  # of the class that was saved; this one has none
        remove_entry(root.config, HEAD)
        return model
    remove_head(root, HEAD, head)
    delattr(root, RESIZE)
    remove_own_loss(root)
    unwatch_zeros(root)
    return model


def install_described(root: PreTrainedModel, saved: dict[str, Any]) -> None:
    """Patch the head as it was saved; a class without a head keeps the description."""
    if root.get_output_embeddings() is not None:
        mapping = Mapping(saved["mapping"], learn=saved["learn"], **saved["params"])
        _install(root, mapping, saved["components"], saved["prior"])


def _install(
    root: PreTrainedModel, mapping: Mapping, components: int | None, prior: str | None
) -> None:
    """Install the head; all errors are raised before the model is changed."""
    old = root.get_output_embeddings()
    _refuse(root, old)
    head = _head_like(old, mapping, components, prior)
    own = None if positive(mapping) else own_loss(root, old, mapping)
    described = mapping.describe()
    entry = {name: described[name] for name in ("mapping", "params", "learn")}
    entry |= {"components": components, "prior": prior}
    install_head(root, HEAD, old, head, with_module(entry))
    remove_own_loss(root)
    unwatch_zeros(root)
    if own is not None:
        root.loss_function = own
        watch_zeros(root, head)
    setattr(root, RESIZE, functools.partial(_resize, root))


def _head_like(
    old: nn.Linear | PatchedHead, mapping: Mapping, components: int | None, prior: str | None
) -> PatchedHead:
    """Make a head with the weight and bias of `old`, and its device, dtype and mode."""
    if prior is not None and components is None:
        raise ValueError(f"prior={prior!r}: only a mixture has one; set components, such as 8")
    weight, bias = cast(nn.Parameter, old.weight), old.bias is not None
    vocab, hidden = weight.shape
    if components is None:
        return wrap(old, LinearHead(hidden, vocab, mapping, bias, weight))
    return wrap(old, MixtureHead(hidden, vocab, mapping, components, bias, weight, prior=prior))


def _resize(
    root: PreTrainedModel, head: PatchedHead, new_num_tokens: int | None = None, **arguments: Any
) -> PatchedHead:
    """Resize a patched head as Transformers resizes a linear layer."""
    resized = getattr(type(root), RESIZE)
    linear = resized(root, plain_linear(head), new_num_tokens, **arguments)
    head.weight, head.bias, head.vocab = linear.weight, linear.bias, len(linear.weight)
    return head


def _refuse(root: PreTrainedModel, head: nn.Module | None) -> None:
    """Raise for a model whose output layer cannot be replaced."""
    name = type(root).__name__
    if type(head) is not nn.Linear and not isinstance(head, PatchedHead):
        raise ValueError(
            f"{name} has an unpatchable head: expected a model whose get_output_embeddings() is an "
            f"nn.Linear, got {'none' if head is None else type(head).__name__}; use a language "
            "model class, such as AutoModelForCausalLM or AutoModelForMaskedLM, and patch before "
            "wrapping the head (PEFT, quantization); a classifier takes another loss, such as "
            "losses.sparsemax_loss"
        )
    if not attention_layers(root):
        raise ValueError(
            f"{name} does not dispatch its attention through Transformers' AttentionInterface, "
            "which is what stops a plain from_pretrained of a patched model from computing "
            "softmax; use a model that does, such as GPT-2, Llama, BERT or ModernBERT"
        )
    refuse_changed_logits(root, head)
