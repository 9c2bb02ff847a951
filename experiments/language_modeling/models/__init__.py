"""Language models with any head, built from a config."""

from __future__ import annotations

from typing import Any

from torch import nn

import experiments.language_modeling.mappings  # noqa: F401
from experiments.language_modeling.corpus import EOS, Corpus
from experiments.language_modeling.models import feedforward, lstm, transformer
from experiments.language_modeling.models.base import LanguageModel, State
from experiments.language_modeling.sections import HeadConfig, ModelConfig
from sparse_attn import Mapping
from sparse_attn.heads import AdaptiveHead, Head, LinearHead, MixtureHead, match_prior
from sparse_attn.heads.base import positive
from sparse_attn.mappings.registry import own_losses

__all__ = ["LanguageModel", "State", "build_model"]


def build_model(model: ModelConfig, head: HeadConfig, corpus: Corpus) -> LanguageModel:
    """The model over the vocabulary of the corpus, randomly initialised.

    Raises:
        ValueError, TypeError: invalid head or mapping.
    """
    embedding = nn.Embedding(len(corpus.vocabulary), model.embedding)
    output = build_head(head, model.output, embedding)
    # the unit variance of nn.Embedding diverges at learning rates that suit this range
    nn.init.uniform_(embedding.weight, -0.1, 0.1)
    if model.kind == "feed-forward":
        # text8 has no <eos>
        first = corpus.vocabulary.index(EOS) if EOS in corpus.vocabulary else 0
        built: LanguageModel = feedforward.FeedForwardModel(model, embedding, output, first)
    else:
        kind = lstm.LSTMModel if model.kind == "lstm" else transformer.TransformerModel
        built = kind(model, embedding, output)
    if isinstance(output, LinearHead | MixtureHead):
        if head.start == "prior":
            match_prior(output, corpus.counts())
        if model.kind == "feed-forward":
            feedforward.check_start(output)
    return built


def build_head(config: HeadConfig, hidden: int, embedding: nn.Embedding) -> Head:
    """The head on hidden states of size `hidden`."""
    vocab = embedding.num_embeddings
    parameters: dict[str, Any] = dict(config.params)
    mapping = Mapping(config.mapping, learn=config.learn, **parameters)
    if not positive(mapping) and mapping.spec.own_loss is None:
        raise ValueError(
            f"head.mapping={mapping.name}: it returns zeros, whose -log p is infinite, and has no "
            f"other loss; expected one without zeros, or {' or '.join(own_losses())}"
        )
    if config.kind in ("mixture", "adaptive") and mapping.spec.own_loss is not None:
        raise ValueError(
            f"head.kind={config.kind}: it trains by -log p, and {mapping.name} by a loss of its "
            "own; expected head.kind linear"
        )
    if config.kind == "adaptive":
        return AdaptiveHead(hidden, vocab, config.cutoffs, mapping=mapping)
    tie = embedding if config.tie else None
    if config.kind in ("linear", "factored"):
        return LinearHead(hidden, vocab, mapping, bias=config.bias, tie=tie)
    return MixtureHead(
        hidden,
        vocab,
        mapping,
        components=config.components,
        bias=config.bias,
        tie=tie,
        latent=config.latent,
        prior=config.prior,
        dropout=config.dropout,
    )
