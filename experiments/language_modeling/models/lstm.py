"""AWD-LSTM (Merity, Keskar & Socher 2018); a plain stacked LSTM with all dropouts 0."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.language_modeling.models.base import LanguageModel, State
from experiments.language_modeling.sections import ModelConfig
from sparse_attn.heads import Head


class DropConnectLSTM(nn.Module):
    """LSTM layer with dropout on its hidden-to-hidden weights, one mask per forward pass.

    It passes the weights to `torch.lstm`, because the original's way, replacing the parameter by
    the dropped weight, fails in current torch.
    """

    def __init__(self, size: int, hidden: int, weight_drop: float) -> None:
        super().__init__()
        self.weight_drop = weight_drop
        self.weight_ih = nn.Parameter(torch.empty(4 * hidden, size))
        self.weight_hh = nn.Parameter(torch.empty(4 * hidden, hidden))
        self.bias_ih = nn.Parameter(torch.empty(4 * hidden))
        self.bias_hh = nn.Parameter(torch.empty(4 * hidden))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -1 / math.sqrt(hidden), 1 / math.sqrt(hidden))

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Outputs (B, T, hidden) of x (B, T, size); h, c (B, hidden) before and after."""
        weight_hh = F.dropout(self.weight_hh, self.weight_drop, self.training)
        weights = [self.weight_ih, weight_hh, self.bias_ih, self.bias_hh]
        # cuDNN's backward needs `train`, and dynamic evaluation learns in eval mode
        train = torch.is_grad_enabled()
        states = [h.unsqueeze(0), c.unsqueeze(0)]
        out, h, c = torch.lstm(x, states, weights, True, 1, 0.0, train, False, True)
        return out, h.squeeze(0), c.squeeze(0)


class LSTMModel(LanguageModel):
    """`config.layers` LSTM layers; see `ModelConfig` for sizes, dropouts, alpha and beta."""

    def __init__(self, config: ModelConfig, embedding: nn.Embedding, head: Head) -> None:
        super().__init__(embedding, head)
        self.config = config
        inner = [config.hidden] * (config.layers - 1)
        sizes = [config.embedding, *inner, config.output]
        self.sizes = sizes[1:]
        self.layers = nn.ModuleList(
            DropConnectLSTM(size, hidden, config.weight_drop) for size, hidden in pairwise(sizes)
        )

    def initial_state(self, batch: int) -> State:
        """Return zeros: h and c (B, hidden) of each layer."""
        weight = self.embedding.weight
        return tuple(weight.new_zeros(batch, size) for size in self.sizes for _ in ("h", "c"))

    def forward(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        raw, state = self._last_outputs(tokens, state)
        return locked_dropout(raw, self.config.dropout, self.training), state

    def regularized(self, tokens: Tensor, state: State) -> tuple[Tensor, Tensor, State]:
        """Add the penalty alpha mean(dropped^2) + beta mean((raw_t - raw_(t-1))^2) (AR, TAR)."""
        raw, state = self._last_outputs(tokens, state)
        hidden = locked_dropout(raw, self.config.dropout, self.training)
        penalty = hidden.float().pow(2).mean() * self.config.alpha
        if raw.shape[1] > 1:
            penalty = penalty + raw.float().diff(dim=1).pow(2).mean() * self.config.beta
        return hidden, penalty, state

    def _last_outputs(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        config, carried = self.config, []
        x = embed(tokens, self.embedding.weight, config.dropout_embedding, self.training)
        dropouts = [config.dropout_input, *[config.dropout_hidden] * (config.layers - 1)]
        parts = zip(self.layers, dropouts, state[::2], state[1::2], strict=True)
        for layer, dropout, before, cell in parts:
            x, h, c = layer(locked_dropout(x, dropout, self.training), before, cell)
            carried += [h.detach(), c.detach()]
        return x, tuple(carried)


def locked_dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """x (B, T, d) with one mask (B, 1, d) for all T positions, scaled by 1 / (1 - p).

    Gal & Ghahramani 2016.
    """
    if not training or p == 0:
        return x
    return x * F.dropout(torch.ones_like(x[:, :1]), p)


def embed(tokens: Tensor, weight: Tensor, p: float, training: bool) -> Tensor:
    """Embeddings (B, T, e) of tokens (B, T) from weight [V, e], a share p of words dropped."""
    embedded = F.embedding(tokens, weight)
    if not training or p == 0:
        return embedded
    kept = F.dropout(weight.new_ones(len(weight), 1), p)  # [V, 1]
    return embedded * F.embedding(tokens, kept)
