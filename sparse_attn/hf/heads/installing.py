"""Install a head as a model's output layer and remove it, for both patchers."""

from __future__ import annotations

from typing import Any, TypeVar, cast

from torch import nn
from transformers import PreTrainedModel

from sparse_attn.heads.linear import LinearHead
from sparse_attn.heads.mixture import MixtureHead
from sparse_attn.heads.multilabel import MultiLabelHead
from sparse_attn.hf.adapters import release_adapters, watch_adapters
from sparse_attn.hf.config import add_entry, configs_of, hold, remove_entry
from sparse_attn.hf.heads.guard import install_guard, owners, remove_guard

PatchedHead = LinearHead | MixtureHead | MultiLabelHead
HeadT = TypeVar("HeadT", LinearHead, MixtureHead, MultiLabelHead)


def wrap(old: Any, head: HeadT) -> HeadT:
    """Give `head` the weight and bias of the layer `old`, and its device, dtype and mode."""
    hold(head.mapping)
    head.weight, head.bias = old.weight, old.bias
    return head.to(old.weight.device, old.weight.dtype).train(old.training)


def plain_linear(head: PatchedHead) -> nn.Linear:
    """Return an nn.Linear with the head's weight and bias."""
    outputs, inputs = head.weight.shape
    linear = nn.Linear(inputs, outputs, bias=head.bias is not None, device="meta")
    linear.weight, linear.bias = head.weight, cast(nn.Parameter, head.bias)
    return linear.train(head.training)


def install_head(
    root: PreTrainedModel, key: str, old: nn.Module, head: PatchedHead, entry: dict[str, Any]
) -> None:
    """Replace `old` by `head`, guard it and describe it in the configs of its models."""
    _replace(root, old, head)
    for owner in owners(root, head):
        remove_guard(owner)
        add_entry(owner.config, key, entry)
    install_guard(root, head)
    add_entry(root.config, key, entry)
    watch_adapters(root)


def remove_head(root: PreTrainedModel, key: str, head: PatchedHead) -> None:
    """Restore the plain layer, and remove the entry."""
    _replace(root, head, plain_linear(head))
    remove_guard(root)
    for config in configs_of(root):
        remove_entry(config, key)
    release_adapters(root)


def _replace(root: PreTrainedModel, old: nn.Module, new: nn.Module) -> None:
    # not set_output_embeddings: BERT's also moves the bias, which could not be undone
    for name in _names(root, old):
        root.set_submodule(name, new)


def _names(root: PreTrainedModel, module: nn.Module) -> list[str]:
    return [n for n, m in root.named_modules(remove_duplicate=False) if m is module]
