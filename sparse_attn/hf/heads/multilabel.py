"""Patch a Transformers classifier with a multi-label head, and unpatch it."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Hashable
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from sparse_attn.heads.multilabel import MultiLabelHead
from sparse_attn.hf.config import MULTILABEL, own_configs, remove_entry
from sparse_attn.hf.entries import with_module
from sparse_attn.hf.heads.guard import last_call
from sparse_attn.hf.heads.installing import install_head, remove_head, wrap
from sparse_attn.hf.hooks import drop_hooks, keep_key
from sparse_attn.hf.layers import root_of
from sparse_attn.hf.patching import ModelT
from sparse_attn.mappings import Mapping

OutputLayer: TypeAlias = nn.Linear | MultiLabelHead
# with it, a pipeline of Transformers returns softmax(log p) = p; multi_label_classification would
# give a sigmoid of log p. The model's loss, which also reads it, never sees labels
PROBLEM_TYPE = "single_label_classification"

# thread-local, like `guard._calls`
_calls = threading.local()


def patch_multilabel_head(
    model: ModelT,
    mapping: str | Mapping = "r-softmax",
    *,
    sparsity: str = "fixed",
    loss: str | None = None,
    threshold: float | None = None,
) -> ModelT:
    """Replace the last linear layer of a classifier by a `MultiLabelHead`, in place.

    W and b stay the same tensors under the same names. The model's "logits" become log p, in at
    least float32, and its loss becomes `MultiLabelHead.loss` of labels (batch, labels) of 0 and 1,
    passed by name or position; with Trainer's num_items_in_batch it is the mean over the rows of an
    accumulated batch. config.problem_type becomes single_label_classification, so that
    Transformers' pipelines return p. A second call replaces the head.

    The head, such as `model.classifier`, has `decide(logits)` and `threshold`.

    Args:
        model: a Transformers model for sequence or image classification, plain or wrapped (DDP,
            torch.compile); wrap the patched model with PEFT, not the reverse.
        mapping, sparsity, loss, threshold: as `MultiLabelHead`.

    Returns:
        The same model.

    Raises:
        ValueError: as `MultiLabelHead`; or a model whose linear layer to config.num_labels is
            missing or wrapped. The model's forward raises RuntimeError if its logits are not the
            head's.
        TypeError: a model that is not from Transformers.
    """
    root = root_of(model)
    own_configs(root)
    _install(root, mapping=mapping, sparsity=sparsity, loss=loss, threshold=threshold)
    return model


def unpatch_multilabel_head(model: ModelT) -> ModelT:
    """Restore the linear layer of `model` in place, with the current W and b, names and config.

    Raises:
        ValueError: the head is not patched, or is wrapped.
        TypeError: a model that is not from Transformers.
    """
    root = root_of(model)
    entry = vars(root.config).get(MULTILABEL)
    if entry is None:
        raise ValueError(
            f"the head of {type(root).__name__} is not patched; call patch_multilabel_head first"
        )
    if find_output_layer(root) is None:  # of the class that was saved; this one has none
        remove_entry(root.config, MULTILABEL)
        return model
    head = cast(MultiLabelHead, _output_layer(root))
    remove_head(root, MULTILABEL, head)
    drop_hooks(root, _take_labels, _finish)
    root.config.problem_type = entry["problem_type"]
    return model


def install_described(root: PreTrainedModel, saved: dict[str, Any]) -> None:
    """Patch the head as it was saved; a class without such a head keeps the description."""
    root.config.problem_type = saved["problem_type"]
    if find_output_layer(root) is None:
        return
    made = dict(saved["head"])
    made.pop("module", None)
    mapping = Mapping(made.pop("mapping"), learn=made.pop("learn"), **made.pop("params"))
    _install(root, mapping=mapping, **made)


def _install(root: PreTrainedModel, **arguments: Any) -> None:
    """Install the head; all errors are raised before the model is changed."""
    old = _output_layer(root)
    labels, hidden = old.weight.shape
    head = wrap(old, MultiLabelHead(hidden, labels, **arguments))
    usual = root.config.problem_type
    if isinstance(old, MultiLabelHead):
        usual = vars(root.config)[MULTILABEL]["problem_type"]
    drop_hooks(root, _take_labels, _finish)
    keep_key(root.register_forward_pre_hook(_take_labels, with_kwargs=True))
    keep_key(root.register_forward_hook(_finish, always_call=True))
    entry = {"problem_type": usual, "head": with_module(head.described)}
    install_head(root, MULTILABEL, old, head, entry)
    keep_key(head.register_forward_hook(_number_rows))
    root.config.problem_type = PROBLEM_TYPE


def _output_layer(root: PreTrainedModel) -> OutputLayer:
    """Return the layer that computes the model's logits.

    Raises:
        ValueError: the model has none, or it cannot be replaced.
    """
    found = find_output_layer(root)
    labels = root.config.num_labels
    if found is None:
        raise ValueError(
            f"{type(root).__name__} has no layer to replace: expected one that takes labels and "
            f"whose last nn.Linear gives num_labels={labels} logits; use a class such as "
            "AutoModelForSequenceClassification"
        )
    parents = [root.get_submodule(found[0][:i]) for i, c in enumerate(found[0]) if c == "."]
    if any(type(parent).__module__.startswith("peft.") for parent in parents):
        raise ValueError(
            f"{type(root).__name__}: its last layer is wrapped by PEFT ({found[0]}); patch before "
            "wrapping it, and unwrap (merge_and_unload) before unpatching it"
        )
    return found[1]


def find_output_layer(root: PreTrainedModel) -> tuple[str, OutputLayer] | None:
    """Find the last linear layer after the base model, if it gives one logit per label."""
    if "labels" not in _argument_names(cast(Hashable, type(root))):
        return None
    inside = set() if root.base_model is root else set(root.base_model.modules())
    behind = [(name, module) for name, module in root.named_modules() if module not in inside]
    heads = [(name, module) for name, module in behind if isinstance(module, MultiLabelHead)]
    linear = [(name, module) for name, module in behind if type(module) is nn.Linear]
    # heads last, because they contain linear layers
    found: list[tuple[str, OutputLayer]] = [*linear, *heads]
    if not found or len(found[-1][1].weight) != root.config.num_labels:
        return None
    return found[-1]


@functools.cache
def _argument_names(cls: type[nn.Module]) -> tuple[str, ...]:
    """Return the parameter names of this class's forward, in order, without self."""
    return tuple(inspect.signature(cls.forward).parameters)[1:]


def _take_labels(root: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Forward pre-hook of the model: hide the labels from its plain loss."""
    if args:
        names = _argument_names(cast(Hashable, type(root)))[: len(args)]
        kwargs = dict(**dict(zip(names, args, strict=True)), **kwargs)
    _calls.labels, _calls.items = kwargs.pop("labels", None), kwargs.get("num_items_in_batch")
    return (), kwargs


def _number_rows(head: nn.Module, inputs: Any, output: Tensor) -> Tensor | None:
    """Forward hook of the head: add a column with each row's index into the hidden states.

    GPT-2 and Llama pick one token of each sequence after the head.
    """
    if getattr(_calls, "labels", None) is None:
        return None
    rows = torch.arange(output[..., 0].numel(), device=output.device)  # exact below 2^24
    return torch.cat([output, rows.view(*output.shape[:-1], 1).to(output.dtype)], dim=-1)


def _finish(root: PreTrainedModel, inputs: Any, output: Any) -> Any:
    """Forward hook of the model: compute the loss, and drop the labels even after an error."""
    labels, _calls.labels = getattr(_calls, "labels", None), None
    call = last_call()
    if output is None or call is None:  # if the head was not called, the guard raises
        return None
    head, hidden = cast(MultiLabelHead, call[0]), call[1]
    if (entry := vars(root.config).get(MULTILABEL)) and not torch.compiler.is_compiling():
        entry["head"] = head.described  # PEFT calls and trains a copy
    if labels is None:
        return None
    numbered = output["logits"] if isinstance(output, dict) else output[0]
    logits, rows = numbered[..., :-1], numbered[..., -1].long()
    loss = _loss(head, hidden.flatten(0, -2)[rows], labels.to(hidden.device), _calls.items)
    if isinstance(output, tuple):
        return loss, logits, *output[1:]
    return type(output)(**{**output, "loss": loss, "logits": logits})


def _loss(head: MultiLabelHead, hidden: Tensor, labels: Tensor, items: Any) -> Tensor:
    if items is None:
        return head.loss(hidden, labels)
    # Trainer counts every label entry of all batches of a step
    return (
        head.loss(hidden, labels, "sum")
        * head.labels
        / torch.as_tensor(items, device=hidden.device)
    )
