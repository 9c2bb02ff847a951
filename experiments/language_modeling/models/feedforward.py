"""Feed-forward language model on a fixed number of words (Bengio et al. 2003)."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from experiments.language_modeling.models.base import LanguageModel, State
from experiments.language_modeling.sections import ModelConfig
from sparse_attn.heads import Head, LinearHead, MixtureHead


class FeedForwardModel(LanguageModel):
    """Model that concatenates the embeddings of the last `context` words for ReLU layers.

    The initialisation is that of de Brebisson & Vincent 2016: He in the layers, 0 in the output
    (`output_std`). Texts are padded on the left by `first`.

    Args:
        first: id of the padding word, such as that of `<eos>`.
    """

    def __init__(
        self, config: ModelConfig, embedding: nn.Embedding, head: Head, first: int
    ) -> None:
        super().__init__(embedding, head)
        self.context, self.first = config.context, first
        sizes = [config.context * config.embedding, *[config.hidden] * config.layers]
        layers: list[nn.Module] = []
        for size, hidden in pairwise(sizes):
            layer = nn.Linear(size, hidden)
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)
            layers += [layer, nn.ReLU()]
        self.layers = nn.Sequential(*layers)
        if isinstance(head, LinearHead | MixtureHead) and head.weight is not embedding.weight:
            nn.init.normal_(head.weight, std=config.output_std)

    def initial_state(self, batch: int) -> State:
        """Return the padding before the first word: (B, context - 1)."""
        device = self.embedding.weight.device
        return (torch.full((batch, self.context - 1), self.first, device=device),)

    def forward(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        words = torch.cat([state[0], tokens], dim=1)  # (B, context - 1 + T)
        vectors = self.embedding(words).unfold(1, self.context, 1)  # (B, T, e, context)
        hidden = self.layers(vectors.transpose(2, 3).flatten(2))
        return hidden, (words[:, words.shape[1] - self.context + 1 :],)


def check_start(head: LinearHead | MixtureHead) -> None:
    """Raise if the head cannot learn: all scores are 0, where its mapping has no gradient.

    This happens with spherical softmax and softmax-abs if output weights and biases are 0.

    Raises:
        ValueError: no gradient; names the options that give one.
    """
    if head.weight.any() or (head.bias is not None and head.bias.any()):
        return
    with torch.enable_grad():
        scores = torch.zeros(2, requires_grad=True)
        (slope,) = torch.autograd.grad(head.mapping.log(scores)[0], scores)
    if not slope.any():
        raise ValueError(
            f"head.mapping={head.mapping.name}: has gradient 0 at scores of 0, so output weights "
            "of 0 would never move; use --head.start prior or --model.output_std 0.01"
        )
