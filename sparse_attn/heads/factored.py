"""`FactoredSphericalHead`: exact SGD on an output layer at a cost independent of the vocabulary."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from sparse_attn.heads.base import check_hidden, check_shapes
from sparse_attn.heads.factored_loss import LOSSES
from sparse_attn.heads.factored_matrix import Batch, FactoredMatrix, Gradient
from sparse_attn.heads.linear import LinearHead
from sparse_attn.losses.targets import check_range
from sparse_attn.mappings import Mapping
from sparse_attn.mappings.pointwise import EPS


class FactoredSphericalHead(nn.Module):
    """z = W h, trained by exact SGD in O(m d^2 + d^3) for m rows and any vocabulary.

    The losses depend on z only through a = z_c, q = ||z||^2 and s = sum_k z_k:

        spherical   log sum_k (z_k^2 + eps) - log(a^2 + eps) = -log spherical-softmax(z)_c
        taylor      -log taylor-softmax(z)_c
        mse         ||z - onehot_c||^2 / 2
        bouchard    B(z) - a >= -log softmax(z)_c, B of `shared_bouchard_bound`

    and a `FactoredMatrix` gives q = h^T Q h and s = w_bar^T h without z. The result equals
    `torch.optim.SGD` without momentum on a dense W, up to rounding. The layer has no Parameters, so
    optimizers do not touch it; call its `step`:

        loss = head(hidden, targets)
        loss.backward()      # the gradient of hidden; that of W is recorded
        head.step(lr)        # several backwards before a step add up
        optimizer.step()     # everything below

    This is not a `Head`: it takes targets and returns the loss, without log_prob and nll. Evaluate
    with `to_linear()`, a Head with the same weights; call it again after further steps. In eval()
    backward computes the gradient of hidden only, which freezes the layer.

    In float32 the rounding error of q and s against W is about 1e-6 to 1e-4 after some hundred
    steps; `head.matrix.refresh()`, which costs O(vocab d^2), removes it.

    Not supported: momentum, Adam, tied weights, a dense gradient of W, and training in several
    processes, because they do not exchange gradients.

    Source: Vincent, de Brebisson & Bouthillier 2015 (the update); de Brebisson & Vincent 2016
    (the losses).

    Args:
        hidden: size of h.
        vocab: number n of rows of W.
        objective: name of the loss, as above.
        eps: eps of the spherical loss, above 0; bounds |d loss / da| by 1/sqrt(eps).
        bias: adds a column to W and a constant 1 to h.

    Attributes:
        matrix: W, a `FactoredMatrix`, [vocab, hidden + bias], initialised as nn.Linear's weight; at
            W = 0 the spherical loss has no gradient. In at least float32 in any model.

    Raises:
        ValueError: sizes below 1, an unknown objective, eps out of range.
    """

    def __init__(
        self,
        hidden: int,
        vocab: int,
        objective: str = "spherical",
        eps: float = EPS.default,
        bias: bool = False,
    ) -> None:
        super().__init__()
        for name, size in (("hidden", hidden), ("vocab", vocab)):
            if size < 1:
                raise ValueError(f"{name}={size}: expected at least 1")
        if objective not in LOSSES:
            raise ValueError(
                f"objective={objective!r} is unknown; expected one of {', '.join(LOSSES)}"
            )
        if not 0 < eps < math.inf:
            raise ValueError(
                f"eps={eps}: expected a finite number above 0; the default is {EPS.default}"
            )
        self.hidden, self.vocab, self.bias = hidden, vocab, bias
        self.objective, self.eps = objective, eps
        width = hidden + bias
        start = torch.empty(vocab, width, dtype=torch.float32)
        self.matrix = FactoredMatrix(start.uniform_(-(width**-0.5), width**-0.5))
        self._recorded: list[Batch] = []
        self._version = 0  # version of W when they were recorded

    def forward(self, hidden: Tensor, targets: Tensor, ignore_index: int = -100) -> Tensor:
        """Return the mean loss over the targets that count, NaN if none does.

        Args:
            hidden: (..., hidden), any floating dtype.
            targets: (...), integers in [0, vocab), or ignore_index.
            ignore_index: a target that does not count.

        Returns:
            A scalar in the dtype of the layer. Its backward computes the gradient of hidden if
            needed and, in training mode, records the gradient of W for `step`.

        Raises:
            ValueError: mismatched shapes, a target out of range.
            TypeError: targets that are not integers.
        """
        check_hidden(hidden, self.hidden)
        check_shapes(targets, hidden.shape[:-1])
        kept = targets != ignore_index
        words = targets[kept].long()  # [m]
        check_range("targets", words, self.vocab)
        rows = hidden[kept].to(self.matrix.Q.dtype)  # [m, hidden]
        if self.bias:
            rows = F.pad(rows, (0, 1), value=1.0)
        if not (torch.is_grad_enabled() and (self.training or rows.requires_grad)):
            return self.loss_of(*self._products(rows, words)[-1]).mean()
        # stands for W: the loss must require a gradient, though nothing in the layer does
        anchor = rows.new_empty(0, requires_grad=self.training)
        return _FactoredLoss.apply(rows, words, anchor, self)

    def _products(self, rows: Tensor, words: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Return W^T z and the words' rows of W, both [m, d], and a, q, s, [m], for rows [m, d]."""
        matrix = self.matrix
        with torch.autocast(rows.device.type, enabled=False):
            back = rows @ matrix.Q
            vectors = matrix.select(words)
            scalars = [(vectors * rows).sum(-1), (back * rows).sum(-1), rows @ matrix.w_bar]
        return back, vectors, scalars

    def loss_of(self, a: Tensor, q: Tensor, s: Tensor) -> Tensor:
        """Return the loss of each row, [m].

        Args:
            a, q, s: z_c, ||z||^2 and sum_k z_k of each row, [m].
        """
        return LOSSES[self.objective].of(a, q, s, self.vocab, self.eps)

    def accumulate(self, batch: Batch) -> None:
        """Add the gradient of a `batch` to the gradient of the next `step`; called by backward."""
        if not self._recorded:
            self._version = self.matrix.version
        # detached: a kept graph costs memory, and prevents a deepcopy of the layer
        self._recorded.append(Batch(*(part.detach() for part in batch)))

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the recorded gradient, which other zero_grad methods do not.

        `set_to_none` is as in nn.Module.zero_grad.
        """
        self._recorded.clear()
        super().zero_grad(set_to_none)

    @torch.no_grad()
    def grad_norm(self) -> Tensor:
        """Return ||G||_F of the recorded gradient G = dL/dW, a scalar, in O(m d^2 + d^3).

        To clip a whole model, multiply the learning rate of `step` by the common factor.

        Raises:
            RuntimeError: as `step`.
        """
        return self._gradient().norm

    @torch.no_grad()
    def step(self, lr: float, max_norm: float | None = None, weight_decay: float = 0.0) -> Tensor:
        """W <- W - lr (min(1, max_norm/||G||) G + weight_decay W) for the recorded gradient G.

        G includes any factor of the loss, such as a GradScaler's.

        Args:
            lr: learning rate, above 0; may differ from step to step.
            max_norm: the norm to clip G to, above 0; None for no clipping.
            weight_decay: at least 0, and below 1/lr.

        Returns:
            ||G||_F before clipping, a scalar.

        Raises:
            RuntimeError: no gradient has been recorded since the last step or loading of weights,
                or W has changed since.
            ValueError: an argument out of range; or a G that is not finite, for example from NaN in
                hidden: it is dropped, and W is unchanged.
        """
        if not 0 < lr < math.inf:
            raise ValueError(f"lr={lr}: expected a finite number above 0")
        if max_norm is not None and not max_norm > 0:
            raise ValueError(f"max_norm={max_norm}: expected a number above 0, or None")
        if not 0 <= weight_decay < 1 / lr:
            raise ValueError(
                f"weight_decay={weight_decay}: expected at least 0 and below 1/lr = {1 / lr:g}"
            )
        gradient = self._gradient()
        self._recorded.clear()
        norm = gradient.norm
        if not norm.isfinite():
            raise ValueError(
                f"hidden: expected finite values, got a gradient of norm {norm.item()}; it was "
                "dropped, and the weights are unchanged. If hidden is finite, training has "
                "diverged: "
                "use a smaller lr, or max_norm"
            )
        clipped = lr if max_norm is None else lr * min(1.0, max_norm / (norm.item() + 1e-6))
        keep = 1 - lr * weight_decay
        with torch.autocast(norm.device.type, enabled=False):
            # W - clipped G - lr weight_decay W = keep (W - clipped/keep G)
            self.matrix.update(gradient, clipped / keep)
            if keep < 1:
                self.matrix.scale(keep)
        return norm

    def _gradient(self) -> Gradient:
        if not self._recorded:
            raise RuntimeError(
                "step: no gradient is recorded; call backward() on this head's loss first, in "
                "train() mode"
            )
        if self._version != self.matrix.version:
            raise RuntimeError(
                "step: the weights of FactoredSphericalHead changed since backward; drop the "
                "gradient with zero_grad()"
            )
        batch = Batch(*(torch.cat(parts) for parts in zip(*self._recorded, strict=True)))
        with torch.autocast(batch.hidden.device.type, enabled=False):
            return self.matrix.gradient(batch)

    # In and out

    @property
    def W(self) -> Tensor:  # noqa: N802
        """Return W, a new tensor [vocab, hidden + bias] with the bias in the last column."""
        return self.matrix.full()

    def load_weight(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """Load a dense layer: weight [vocab, hidden], and with `bias` also bias [vocab].

        Forgets the recorded gradient, as `load_state_dict` does.

        To start at the word frequencies, call `match_prior` on a LinearHead with the mapping of the
        loss and load its weight and bias.

        Raises:
            ValueError: wrong shapes, or a bias for a layer without one, or the reverse.
        """
        if (bias is not None) != self.bias:
            raise ValueError(f"bias: expected {'a tensor' if self.bias else 'None'}, as the layer")
        values = weight if bias is None else torch.cat([weight, bias.unsqueeze(-1)], -1)
        if values.shape != self.matrix.V.shape:
            raise ValueError(
                f"weight: expected shape {(self.vocab, self.hidden)}, got {tuple(weight.shape)}"
            )
        self.matrix.assign(values)
        self._recorded.clear()

    # private: a public hook would be pickled with the module
    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self._recorded.clear()

    def to_linear(self) -> LinearHead:
        """Return a copy as a dense head, with the mapping that the loss trains.

        Raises:
            ValueError: the objective is "mse", which has no probabilities.
        """
        name = LOSSES[self.objective].mapping
        if name is None:
            raise ValueError(
                f"objective={self.objective!r} has no probabilities; use the argmax of W @ hidden"
            )
        mapping = Mapping(name, eps=self.eps) if self.objective == "spherical" else Mapping(name)
        head = LinearHead(self.hidden, self.vocab, mapping, self.bias)
        weight = self.W
        head.weight = nn.Parameter(weight[:, : self.hidden].clone())
        if self.bias:
            head.bias = nn.Parameter(weight[:, -1].clone())
        return head.to(weight.device)

    def extra_repr(self) -> str:
        return (
            f"hidden={self.hidden}, vocab={self.vocab}, objective={self.objective!r}, "
            f"eps={self.eps}, bias={self.bias}"
        )


class _FactoredLoss(torch.autograd.Function):
    """Mean loss of rows [m, d]; backward returns their gradient and records the gradient of W."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, words: Tensor, anchor: Tensor, head: FactoredSphericalHead
    ) -> Tensor:
        back, vectors, scalars = head._products(rows, words)
        with torch.enable_grad():
            loss = head.loss_of(*(x.requires_grad_() for x in scalars)).mean()
        by_a, by_q, by_s = torch.autograd.grad(loss, scalars, materialize_grads=True)
        # dL/dz_i = 2 by_q z_i + by_s 1 + by_a e_c
        twice = 2 * by_q.unsqueeze(-1)
        grad = twice * back + by_s.unsqueeze(-1) * head.matrix.w_bar + by_a.unsqueeze(-1) * vectors
        ctx.save_for_backward(grad, rows, twice * rows, by_s, by_a, words)
        ctx.head, ctx.version = head, head.matrix.version
        return loss.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor, None, None, None]:
        if ctx.head.matrix.version != ctx.version:
            raise RuntimeError(
                "backward: the weights of FactoredSphericalHead changed since the forward pass; "
                "call step after the backward of every loss"
            )
        grad, rows, along, constant, target, words = ctx.saved_tensors
        if ctx.needs_input_grad[2]:
            ctx.head.accumulate(Batch(rows, scale * along, scale * constant, scale * target, words))
        return scale * grad, None, None, None
