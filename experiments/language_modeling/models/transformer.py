"""A small causal Transformer, which sees one segment and carries no state."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.language_modeling.models.base import LanguageModel, State
from experiments.language_modeling.sections import ModelConfig
from sparse_attn.heads import Head


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)): pre-norm."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        size = config.embedding
        self.heads, self.dropout = config.heads, config.dropout_hidden
        self.attention_norm, self.mlp_norm = nn.LayerNorm(size), nn.LayerNorm(size)
        self.project_in, self.project_out = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.mlp = nn.Sequential(
            nn.Linear(size, config.hidden), nn.GELU(), nn.Linear(config.hidden, size)
        )

    def forward(self, x: Tensor) -> Tensor:  # (B, T, e)
        x = x + F.dropout(self.attend(self.attention_norm(x)), self.dropout, self.training)
        return x + F.dropout(self.mlp(self.mlp_norm(x)), self.dropout, self.training)

    def attend(self, x: Tensor) -> Tensor:
        """Causal self-attention, (B, T, e) -> (B, T, e)."""
        q, k, v = self.project_in(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        out = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        return self.project_out(out.transpose(1, 2).flatten(2))


class TransformerModel(LanguageModel):
    """`config.layers` blocks on embeddings with sine positions, and a final norm."""

    def __init__(self, config: ModelConfig, embedding: nn.Embedding, head: Head) -> None:
        super().__init__(embedding, head)
        self.config = config
        nn.init.uniform_(embedding.weight, -0.1, 0.1)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.embedding)

    def initial_state(self, batch: int) -> State:
        """Nothing is carried."""
        return ()

    def forward(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        size = self.config.embedding
        # tied weights are small, as the head needs them
        x = self.embedding(tokens) * math.sqrt(size) + positions(tokens.shape[1], size, tokens)
        x = F.dropout(x, self.config.dropout_input, self.training)
        for block in self.blocks:
            x = block(x)
        return F.dropout(self.norm(x), self.config.dropout, self.training), state


def positions(length: int, size: int, like: Tensor) -> Tensor:
    """sin and cos of t / 10000^(2i/size), [length, size] (Vaswani et al. 2017, section 3.5)."""
    t = torch.arange(length, device=like.device).unsqueeze(1)
    i = torch.arange((size + 1) // 2, device=like.device)
    angle = t * torch.exp(i * (-2 * math.log(10_000.0) / size))
    return torch.cat([angle.sin(), angle.cos()], dim=1)[:, :size]
