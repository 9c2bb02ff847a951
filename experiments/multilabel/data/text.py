"""Texts with any number of labels each, as token ids."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import AutoConfig, DataCollatorWithPadding, PreTrainedTokenizerBase

from experiments.multilabel.data.base import Batch, LabelledData
from experiments.multilabel.data.config import TextConfig

Texts = list[tuple[str, ...]]  # a text, or a pair of them, for each row


class EncodedTexts(Dataset[Batch]):
    """Token ids and labels, not padded: that is done batch by batch.

    Args:
        texts: N texts or pairs.
        labels: [N, n] 0/1.
        tokenizer: of the model.
        max_length: tokens of a row at most.
    """

    def __init__(
        self, texts: Texts, labels: Tensor, tokenizer: PreTrainedTokenizerBase, max_length: int
    ) -> None:
        columns = [list(column) for column in zip(*texts, strict=True)]
        self.rows = tokenizer(*columns, truncation=True, max_length=max_length)
        self.labels = labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Batch:
        row = {name: torch.tensor(values[index]) for name, values in self.rows.items()}
        return {**row, "labels": self.labels[index]}

    @property
    def lengths(self) -> list[int]:
        """Tokens of each row."""
        return [len(ids) for ids in self.rows["input_ids"]]


def load_text(config: TextConfig) -> LabelledData:
    """The data set that the config describes, in tokens of its model.

    Raises:
        ValueError, OSError: files or columns that are not there or cannot be read, more train_rows
            than there are, or a model that takes fewer tokens than max_length.
    """
    # imports that a command's --help does not need
    from experiments.multilabel.data.text_sources import read_texts

    labels, parts = read_texts(config)
    tokenizer = load_tokenizer(config)
    sets = {
        split: EncodedTexts(texts, matrix, tokenizer, config.max_length)
        for split, (texts, matrix) in parts.items()
    }
    return LabelledData(
        labels,
        train=sets["train"],
        validation=sets["validation"],
        test=sets.get("test", sets["validation"]),
        collate=DataCollatorWithPadding(tokenizer),
        lengths=sets["train"].lengths,
    )


def load_tokenizer(config: TextConfig) -> PreTrainedTokenizerBase:
    """The tokenizer of the model, which pads and has room for max_length tokens."""
    from glue import model as models

    path = models.resolve_model(config.model)
    tokenizer = models.load_tokenizer(path)
    if tokenizer.pad_token is None:
        raise ValueError(
            f"text.model={config.model!r}: its tokenizer has no padding token; set pad_token in "
            "tokenizer_config.json and pad_token_id in config.json"
        )
    positions = getattr(AutoConfig.from_pretrained(path), "max_position_embeddings", None)
    limit = min(positions or config.max_length, tokenizer.model_max_length)
    if config.max_length > limit:
        raise ValueError(
            f"text.max_length={config.max_length}: the model takes at most {limit} tokens; choose "
            "that or less"
        )
    return tokenizer
