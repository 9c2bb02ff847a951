"""The loss of a Transformers model whose head returns zeros."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel
from transformers.loss.loss_utils import ForCausalLMLoss, ForMaskedLMLoss

from sparse_attn.heads.base import Head
from sparse_attn.losses import LOSSES
from sparse_attn.patching import source_of_forward


class OwnLoss:
    """The loss_function of a model whose head returns zeros: `Head.loss` of the hidden states.

    Takes the arguments of Transformers' losses. The hidden states are those the head was called
    with, cut by logits_to_keep where the model does that; they are let go when its forward ends.
    """

    def __init__(self, head: Head, shift: bool) -> None:
        self.head = head
        self.shift = shift
        self.hidden: Tensor | None = None

    def keep(self, head: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        """Forward hook of the head."""
        self.hidden = inputs[0]

    def release(self, model: nn.Module, inputs: Any, output: Any) -> None:
        """Forward hook of the model."""
        self.hidden = None

    @torch.compiler.disable  # the chunked loss looks at the targets
    def __call__(
        self,
        logits: Tensor,
        labels: Tensor,
        vocab_size: int | None = None,
        num_items_in_batch: Tensor | int | None = None,
        ignore_index: int = -100,
        shift_labels: Tensor | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Mean over the labels that count, or their sum / num_items_in_batch."""
        if self.hidden is None:
            raise RuntimeError(
                f"a head of {self.head.mapping.name} is trained from its hidden states, which are "
                "gone when the model's forward has ended, or went to a copy of it, such as PEFT's "
                "modules_to_save; pass labels to the model, and leave the head out of PEFT"
            )
        if self.shift:
            if shift_labels is None:
                shift_labels = F.pad(labels, (0, 1), value=ignore_index)[..., 1:]
            labels = shift_labels
        hidden = self.hidden.reshape(-1, self.head.hidden)
        labels = labels.reshape(-1).to(hidden.device)
        if num_items_in_batch is None:
            return self.head.loss(hidden, labels, ignore_index)
        loss = self.head.loss(hidden, labels, ignore_index, "sum")
        return loss / torch.as_tensor(num_items_in_batch, device=loss.device)


def own_loss(root: PreTrainedModel, head: Head, calls_head: bool) -> OwnLoss:
    """The loss that trains `head` in this model, if its own forward calls head and loss_function.

    Raises:
        ValueError: the model computes its loss elsewhere.
    """
    zeros = f"mapping={head.mapping.name!r}: it returns zeros, whose -log p cannot train"
    remedy = (
        "use a mapping without zeros, such as sigsoftmax, or a model that calls loss_function, "
        f"such as GPT-2 or Llama; {', '.join(LOSSES)} train there"
    )
    dispatches = "self.loss_function(" in source_of_forward(type(root))
    if not (dispatches and calls_head):
        raise ValueError(
            f"{zeros}, and {type(root).__name__} computes its own cross entropy; {remedy}"
        )
    usual = root.loss_function
    if isinstance(usual, OwnLoss):
        return OwnLoss(head, usual.shift)
    if "_loss_function" in vars(root) or usual not in (ForCausalLMLoss, ForMaskedLMLoss):
        raise ValueError(
            f"{zeros}, and the loss_function of {type(root).__name__} is not one whose labels are "
            f"known; {remedy}"
        )
    return OwnLoss(head, shift=usual is ForCausalLMLoss)


def install_own_loss(root: PreTrainedModel, own: OwnLoss) -> None:
    """Have the model call it."""
    own.head.register_forward_hook(own.keep)
    root.register_forward_hook(own.release)
    root.loss_function = own


def remove_own_loss(root: PreTrainedModel) -> None:
    """Give the model its usual loss back; a head that is taken out takes its hook with it."""
    own = vars(root).get("_loss_function")
    if not isinstance(own, OwnLoss):
        return
    del root._loss_function
    # by value: the handle of a hook does not survive deepcopy
    hooks = root._forward_hooks
    for key in [key for key, hook in hooks.items() if hook == own.release]:
        del hooks[key]
