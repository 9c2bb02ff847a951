"""Texts with any number of labels each, as token ids."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import AutoConfig, AutoTokenizer, DataCollatorWithPadding, PreTrainedTokenizerBase

from experiments.multilabel.data.base import Batch, LabelledData
from pipeline.config import check_fields

Texts = list[tuple[str, ...]]  # a text, or a pair of them, for each row


@dataclass(frozen=True)
class TextConfig:
    """Texts and a pretrained Transformer.

    Args:
        source: folder: of one's own, with the files train, validation and, if there is one, test,
            each .csv, .tsv or .jsonl; glue: a classification task of GLUE, whose rows have one
            label each: validation is a tenth of the training rows, test its dev set; hub: a data
            set of the hub.
        model: hub id, folder, or pkg://package/folder for weights that an installed package
            carries.
        data_dir: the folder, or that of the GLUE download; for GLUE the hub if left out.
        dataset: the GLUE task; id of the hub's data set, or a folder that `datasets` reads; for a
            folder of one's own the name that tells its runs from those of another.
        text: of a folder or the hub: the column that holds the text, or two for pairs.
        label_column: of a folder or the hub: the column that holds all labels of a row, a list or
            names joined by `separator`; if left out, every column but text is a label, 0 or 1.
        separator: of the names in label_column.
        train_split: of the hub's data set.
        validation_split: of the hub's data set, such as validation, test or "train[90%:]".
        train_rows: use so many of the training rows, the same ones in every run; all if left out.
        max_length: tokens of a row at most; what is beyond is cut off.
    """

    source: Literal["folder", "glue", "hub"]
    model: str
    data_dir: str | None = None
    dataset: str | None = None
    text: list[str] = field(default_factory=lambda: ["text"])
    label_column: str | None = None
    separator: str = ","
    train_split: str = "train"
    validation_split: str = "validation"
    train_rows: int | None = None
    max_length: int = 128

    def __post_init__(self) -> None:
        source = self.source
        check_fields(
            self,
            "text",
            dataset=(self.dataset is not None, f"a name, which source={source} needs"),
            data_dir=(self.data_dir is not None or source != "folder", "a folder"),
            label_column=(self.label_column is not None or source != "hub", "a column of lists"),
            text=(
                0 < len(set(self.text)) == len(self.text) < 3,
                "one column, or two different ones",
            ),
            separator=(bool(self.separator), "a text, such as ','"),
            max_length=(self.max_length > 2, "at least 3"),
        )


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
    from glue.model import resolve_model

    path = resolve_model(config.model)
    tokenizer = AutoTokenizer.from_pretrained(path)
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
