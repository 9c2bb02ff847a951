"""A small causal Transformer that sees one segment and carries no state."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.language_modeling.models.base import LanguageModel, State
from experiments.language_modeling.sections import ModelConfig
from sparse_attn.heads import Head


class TransformerModel(LanguageModel):
    """`config.layers` pre-norm blocks on embeddings with sine positions, and a final norm."""

    def __init__(self, config: ModelConfig, embedding: nn.Embedding, head: Head) -> None:
        super().__init__(embedding, head)
        self.config = config
        sizes = config.embedding, config.heads, config.hidden, config.dropout_hidden, "gelu"
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(*sizes, batch_first=True, norm_first=True)
            for _ in range(config.layers)
        )
        self.norm = nn.LayerNorm(config.embedding)

    def initial_state(self, batch: int) -> State:
        """Return an empty state."""
        return ()

    def forward(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        size, length = self.config.embedding, tokens.shape[1]
        # tied weights have the small scale of the head
        x = self.embedding(tokens) * math.sqrt(size) + positions(length, size, tokens)
        mask = nn.Transformer.generate_square_subsequent_mask(length, x.device, x.dtype)
        x = F.dropout(x, self.config.dropout_input, self.training)
        for block in self.blocks:
            x = block(x, mask, is_causal=True)
        return F.dropout(self.norm(x), self.config.dropout, self.training), state


def positions(length: int, size: int, like: Tensor) -> Tensor:
    """sin and cos of t / 10000^(2i/size), [length, size] (Vaswani et al. 2017, section 3.5)."""
    t = torch.arange(length, device=like.device).unsqueeze(1)
    i = torch.arange((size + 1) // 2, device=like.device)
    angle = t * torch.exp(i * (-2 * math.log(10_000.0) / size))
    return torch.cat([angle.sin(), angle.cos()], dim=1)[:, :size]
