"""A matrix that plain SGD on z = W h updates at a cost independent of its number of rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

# Singular values of U outside [1/NEAR, NEAR] are reset to 1 when the bound on them passes FAR.
NEAR = 2.0
FAR = 4.0
# Least increase of the logarithm of that bound per update, so that a check, which also recomputes
# the inverse of U, comes at least every 140 updates.
ROUNDING = 0.01
# An update that shrinks or stretches W by more than this in some direction is folded into V at
# once.
LARGEST_FACTOR = 100.0
FOLD_ROWS = 1 << 14


class Batch(NamedTuple):
    """Gradients dL/dz_i = W a_i + b_i 1 + y_i e_{c_i} of z_i = W h_i for every row i of a batch."""

    hidden: Tensor  # h [m, d]
    along: Tensor  # a [m, d], a_i a multiple of h_i
    constant: Tensor  # b [m]
    target: Tensor  # y [m]
    words: Tensor  # c [m]


@dataclass(frozen=True)
class Gradient:
    """dL/dW = sum_k g_k x_k^T with g_k = W a_k + b_k 1 + E y_k, over r = min(m, d) pairs.

    E picks the rows of the u different words among the targets.
    """

    right: Tensor  # x [r, d]
    along: Tensor  # a [r, d]
    constant: Tensor  # b [r]
    sparse: Tensor  # y [u, r]
    words: Tensor  # [u]
    back: Tensor  # W^T g_k [r, d]
    total: Tensor  # 1^T g_k [r]
    inner: Tensor  # g_k^T g_l [r, r]

    @property
    def norm(self) -> Tensor:
        """||dL/dW||_F, in O(r^2 d)."""
        return (self.inner * (self.right @ self.right.T)).sum().clamp(min=0).sqrt()


class FactoredMatrix(nn.Module):
    """W = V U + 1 omega^T, stored with Q = W^T W and w_bar = W^T 1.

    A bound on the singular values of U is kept. Before it passes FAR, `stabilise` resets the values
    outside [1/NEAR, NEAR] to 1 by U <- C U, V <- V C^-1, O(rows d) each; if more than a third are
    outside, V <- W, U <- I, O(rows d^2). Ordinary steps need neither, because the bound moves with
    learning rate times curvature. Buffers stay in float32 when a model is cast to half precision.

    Source: Vincent, de Brebisson & Bouthillier 2015.

    Args:
        values: the initial W, [rows, d]; kept, and changed in place.

    Attributes:
        version: counts the changes of W, to detect gradients of an earlier W, because torch's
            counters restart in a copy.
    """

    V: Tensor  # [rows, d]
    U: Tensor  # [d, d]
    U_inv_T: Tensor  # [d, d]
    omega: Tensor  # [d]
    Q: Tensor  # [d, d]
    w_bar: Tensor  # [d]
    spread: Tensor  # [], at least |log sigma| of every singular value of U

    def __init__(self, values: Tensor) -> None:
        super().__init__()
        self.version = 0
        d = values.shape[1]
        for name, start in (
            ("V", values),
            ("U", torch.eye(d).to(values)),
            ("U_inv_T", torch.eye(d).to(values)),
            ("omega", values.new_zeros(d)),
            ("Q", values.T @ values),
            ("w_bar", values.sum(0)),
            ("spread", values.new_zeros(())),
        ):
            self.register_buffer(name, start)

    @torch.no_grad()
    def assign(self, values: Tensor) -> None:
        """W <- values [rows, d], in O(rows d^2)."""
        self.V.copy_(values)
        self._identity()
        self.Q.copy_(self.V.T @ self.V)
        self.w_bar.copy_(self.V.sum(0))
        self.version += 1

    def refresh(self) -> None:
        """Recompute Q and w_bar from W, in O(rows d^2), to remove the rounding of many updates.

        Call it after a step, because gradients taken before are refused.
        """
        self.assign(self.full())

    def select(self, words: Tensor) -> Tensor:
        """Return the rows of W of the words [m], [m, d]."""
        return self.V[words] @ self.U + self.omega

    def full(self) -> Tensor:
        """Return W, a new tensor [rows, d]."""
        return self.V @ self.U + self.omega

    def gradient(self, batch: Batch) -> Gradient:
        """Return dL/dW of a batch, in O(m d^2 + m^2 d), or O(m d^2 + d^3) for m > d."""
        m, d = batch.hidden.shape
        one = torch.eye(min(m, d)).to(self.Q)
        # sum_i g_i h_i^T over the rows is sum_k (sum_i h_ik g_i) e_k^T over the d unit vectors
        mix, right = (one, batch.hidden) if m <= d else (batch.hidden, one)  # [m, r], [r, d]
        along, constant = mix.T @ batch.along, mix.T @ batch.constant
        words, place = batch.words.unique(return_inverse=True)
        sparse = mix.new_zeros(len(words), mix.shape[1])
        sparse.index_add_(0, place, batch.target.unsqueeze(-1) * mix)
        vectors = self.select(words)  # [u, d]
        back = along @ self.Q + constant.unsqueeze(-1) * self.w_bar + sparse.T @ vectors
        total = along @ self.w_bar + len(self.V) * constant + sparse.sum(0)
        inner = along @ back.T + constant.unsqueeze(-1) * total
        inner += sparse.T @ (vectors @ along.T + constant + sparse)
        return Gradient(right, along, constant, sparse, words, back, total, inner)

    def update(self, g: Gradient, rate: float) -> None:
        """W <- W - rate dL/dW: U <- U (I - rate sum_k a_k x_k^T), which determines the rest."""
        # x (I - rate a^T x)^-1 = (I - turn)^-1 x = (I + excess) x, of size r instead of d
        turn = rate * g.right @ g.along.T  # [r, r]
        shrink = torch.eye(len(turn)).to(turn) - turn
        excess, failed = torch.linalg.solve_ex(shrink, turn)
        # the factor of U has singular values |1 - t|, its inverse |1 + e|, with the eigenvalues t
        # of turn and e of excess
        moved = torch.maximum(_radius(turn), _radius(excess)).log1p().item()
        # so that NaN, from a singular matrix, counts as not invertible
        invertible = not failed and moved < math.log(LARGEST_FACTOR)
        if invertible and self.spread.item() + moved > math.log(FAR):
            self.stabilise()
        self.omega -= rate * (g.right.T @ (g.along @ self.omega + g.constant))
        left = g.right
        if invertible:
            left = left @ self.U_inv_T.T
            left += excess @ left
        self.U -= rate * (self.U @ g.along.T) @ g.right
        if invertible:
            self.U_inv_T += rate * left.T @ g.along
            self.spread += moved + ROUNDING
        else:
            self._fold()
        self.V.index_add_(0, g.words, g.sparse @ left, alpha=-rate)
        half = g.right.T @ (rate * rate / 2 * (g.inner @ g.right) - rate * g.back)  # [d, d]
        self.Q += half + half.T
        self.w_bar -= rate * (g.right.T @ g.total)
        self.version += 1

    def scale(self, factor: float) -> None:
        """W <- factor W, factor > 0."""
        for tensor, power in (
            (self.U, 1),
            (self.U_inv_T, -1),
            (self.omega, 1),
            (self.Q, 2),
            (self.w_bar, 1),
        ):
            tensor *= factor**power
        self.spread += abs(math.log(factor))
        self.version += 1

    def stabilise(self) -> None:
        """Reset the singular values of U outside [1/NEAR, NEAR], and recompute its inverse."""
        left, sigma, right = torch.linalg.svd(self.U)
        far = (sigma < 1 / NEAR) | (sigma > NEAR)
        if 3 * int(far.sum()) > len(sigma):
            self._fold()
            return
        if far.any():
            axes = left[:, far]  # [d, k]
            self.V.addmm_(self.V @ axes, ((sigma[far] - 1) * axes).T)
            sigma = sigma.masked_fill(far, 1.0)
        self.U.copy_(left * sigma @ right)
        self.U_inv_T.copy_(left / sigma @ right)
        self.spread.copy_(sigma.log().abs().max())

    def _fold(self) -> None:
        """V <- W, U <- I, in O(rows d^2)."""
        for rows in self.V.split(FOLD_ROWS):
            rows.copy_(rows @ self.U + self.omega)
        self._identity()

    def _identity(self) -> None:
        for tensor in (self.U, self.U_inv_T):
            tensor.copy_(torch.eye(len(tensor)))
        self.omega.zero_()
        self.spread.zero_()

    # private: a public hook would be pickled with the module
    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self.version += 1

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        """Move with the model but stay in float32: in half precision Q would drift from W.

        Q and w_bar are recomputed in a new dtype, for its full accuracy.
        """

        def move(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            half = moved.dtype in (torch.float16, torch.bfloat16)
            return tensor.to(moved.device) if half else moved

        before = self.Q.dtype
        # private: a model does not call the public `to` of its modules
        super()._apply(move, recurse)
        if self.Q.dtype != before:
            self.refresh()
        return self


def _radius(x: Tensor) -> Tensor:
    """(sum t^8)^(1/8) over the real eigenvalues t of x [r, r], slightly above max |t|.

    Computed from the trace of x^8.
    """
    size = x.norm().clamp(min=torch.finfo(x.dtype).tiny)
    fourth = torch.linalg.matrix_power(x / size, 4)
    return (fourth * fourth.T).sum().clamp(min=0) ** 0.125 * size
