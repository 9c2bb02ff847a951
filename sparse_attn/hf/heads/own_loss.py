"""Loss of a Transformers model whose head returns zeros."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel
from transformers.loss.loss_utils import ForCausalLMLoss, ForMaskedLMLoss

from sparse_attn.hf.heads.guard import last_call, owners
from sparse_attn.hf.layers import source_of_forward
from sparse_attn.mappings import Mapping
from sparse_attn.mappings.registry import own_losses


@dataclass(frozen=True)
class OwnLoss:
    """The loss_function of a model whose head returns zeros: `Head.loss` of the hidden states.

    Takes the arguments of Transformers' losses and, like them, ignores unknown ones. Head and
    hidden states come from `last_call`, cut by logits_to_keep if the model does so.
    """

    name: str  # name of the mapping
    shift: bool

    @torch.compiler.disable  # the chunked loss reads the targets
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
        """Return the mean over the labels that count, or their sum / num_items_in_batch."""
        call = last_call()
        if call is None:
            raise RuntimeError(
                f"a head of {self.name} is trained from its hidden states, which are gone after "
                "the model's forward pass; pass labels to the model"
            )
        head, hidden = call
        if self.shift:
            if shift_labels is None:
                shift_labels = F.pad(labels, (0, 1), value=ignore_index)[..., 1:]
            labels = shift_labels
        hidden = hidden.reshape(-1, head.hidden)
        labels = labels.reshape(-1).to(hidden.device)
        if num_items_in_batch is None:
            return head.loss(hidden, labels, ignore_index)
        loss = head.loss(hidden, labels, ignore_index, "sum")
        return loss / torch.as_tensor(num_items_in_batch, device=loss.device)


def own_loss(root: PreTrainedModel, head: nn.Module, mapping: Mapping) -> OwnLoss:
    """Return the loss that trains `mapping` in `head`; the model must call its loss_function.

    Raises:
        ValueError: the model computes its loss elsewhere.
    """
    zeros = f"mapping={mapping.name!r}: it returns zeros, whose -log p cannot train"
    remedy = (
        "use a mapping without zeros, such as sigsoftmax, or a model that calls loss_function, "
        f"such as GPT-2 or Llama; {', '.join(own_losses())} train there"
    )
    # private: no attribute tells which models call their loss_function
    dispatches = "self.loss_function(" in source_of_forward(type(root))
    if not (dispatches and owners(root, head) == [root]):
        raise ValueError(
            f"{zeros}, and {type(root).__name__} computes its own cross entropy; {remedy}"
        )
    usual = root.loss_function
    if isinstance(usual, OwnLoss):
        return OwnLoss(mapping.name, usual.shift)
    # private: loss_function does not tell a default from what a user set
    if "_loss_function" in vars(root) or usual not in (ForCausalLMLoss, ForMaskedLMLoss):
        raise ValueError(
            f"{zeros}, and the loss_function of {type(root).__name__} takes labels in an unknown "
            f"form; {remedy}"
        )
    return OwnLoss(mapping.name, shift=usual is ForCausalLMLoss)


def remove_own_loss(root: PreTrainedModel) -> None:
    """Restore the model's usual loss."""
    # private: loss_function has no deleter, and a default that is set would stay
    if isinstance(vars(root).get("_loss_function"), OwnLoss):
        del root._loss_function
