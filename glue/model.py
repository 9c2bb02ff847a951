"""The pretrained model and tokenizer of a run."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import datasets
import torch
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from sparse_attn.evaluation.labels import class_order
from sparse_attn.evaluation.tasks import Task
from sparse_attn.hf.config import KEYS
from sparse_attn.hf.heads.multilabel import find_output_layer
from sparse_attn.hf.opening import corrupt_weights, open_tokenizer
from sparse_attn.inspection.tokens import longest

from .config import SAVED
from .data import CUT, ROW


@contextmanager
def from_hub(model: str) -> Iterator[None]:
    """Replace errors of the hub by one line with the cause and what to use instead."""
    try:
        yield
    except OSError as error:
        if Path(model).is_dir():
            raise
        reason = str(error).splitlines()[0]
        raise OSError(
            f"model={model!r}: there is no such folder. From the hub: {reason} "
            "Without a network use a folder, or pkg://package/folder"
        ) from error


def load_tokenizer(path: str) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a model; raise OSError or ValueError if there is none."""
    with from_hub(path):
        try:
            return open_tokenizer(path)
        except ValueError as error:
            raise ValueError(f"model={path!r}: {error}") from None


def with_new_head(
    path: str, *, dtype: str = "float32", **options: Any
) -> tuple[PreTrainedModel, bool]:
    """Load the model without the warning about a new head.

    Also return whether the head is new: a checkpoint may have a head of the same size.

    Transformers still reports missing or unexpected weights below the head.

    Args:
        path: a folder or hub id.
        dtype: type of the weights; Transformers' default, auto, trains a 16-bit checkpoint in 16
            bits.
        **options: options of `from_pretrained`.
    """
    reports: list[logging.LogRecord] = []

    def drop_report(record: logging.LogRecord) -> bool:
        is_report = "LOAD REPORT" in record.getMessage()
        reports.extend([record] * is_report)
        return not is_report

    cls = AutoModelForSequenceClassification
    logger = logging.getLogger("transformers.modeling_utils")
    logger.addFilter(drop_report)
    try:
        with from_hub(path), corrupt_weights(f"model={path!r}"):
            model, found = cls.from_pretrained(
                path, output_loading_info=True, dtype=dtype, **options
            )
    finally:
        logger.removeFilter(drop_report)
    mismatched = [name for name, *_ in found["mismatched_keys"]]
    body = f"{model.base_model_prefix}."
    made = (*found["missing_keys"], *mismatched)
    for name in (*made, *found["unexpected_keys"]):
        if name.startswith(body):
            for report in reports:
                logger.handle(report)
            break
    return model, any(not name.startswith(body) for name in made)


def load_model(
    path: str, task: Task, mapping: str = "softmax", dtype: str = "float32"
) -> PreTrainedModel:
    """Return the pretrained model with a head for the task, its weights in `dtype`.

    A head of the checkpoint that has the task's labels is kept, and its scores are put into the
    task's order. Otherwise the head is new.

    Raises:
        ValueError: the model was saved with mappings and `mapping` is not SAVED, or the reverse;
            its head has the same size but other labels; its weights are corrupt, or float16 by
            dtype="auto".
    """
    labels = task.labels or ("score",)
    with from_hub(path):
        own = AutoConfig.from_pretrained(path)
        config = AutoConfig.from_pretrained(
            path,
            num_labels=task.num_labels,
            id2label=dict(enumerate(labels)),
            label2id={label: index for index, label in enumerate(labels)},
            problem_type="regression" if task.regression else "single_label_classification",
        )
    converted = any(key in vars(config) for key in KEYS)
    if converted != (mapping == SAVED):
        raise ValueError(
            f"mapping.name={mapping}: {path!r} was saved with mappings of its own; --mapping "
            f"{SAVED} keeps them"
            if converted
            else f"mapping.name={SAVED}: {path!r} was saved with softmax; name a mapping, or a "
            "model that sparse-attn convert has written"
        )
    # a checkpoint of another task may have a head of another size, which is replaced
    model, new_head = with_new_head(path, dtype=dtype, config=config, ignore_mismatched_sizes=True)
    if model.dtype == torch.float16:
        raise ValueError(
            f"train.dtype={dtype}: the weights of {path!r} are float16, in which AdamW's second "
            "moments are 0 and its steps unbounded; leave train.dtype at float32"
        )
    if not new_head:
        _reorder_classes(model, own, task, path)
    return model


def _reorder_classes(model: PreTrainedModel, own: PretrainedConfig, task: Task, path: str) -> None:
    """Permute the rows of a kept head from the class order of `own` to that of the task."""
    order = class_order(own, task, f"model={path!r}")
    if order is None:
        return
    found = find_output_layer(model)
    if found is None:
        raise ValueError(
            f"model={path!r}: its labels are in another order than those of {task.name}, and "
            f"{type(model).__name__} has no linear layer to reorder; list the labels in the task "
            f"in the order of the model, {list(own.id2label.values())}"
        )
    for parameter in (found[1].weight, found[1].bias):
        if parameter is not None:
            parameter.data = parameter.data[order]


def check_length(
    max_length: int, config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase
) -> None:
    """Raise ValueError if the model has no positions for `train.max_length` tokens."""
    limit = longest(config, tokenizer)
    if max_length > limit:
        raise ValueError(f"train.max_length={max_length}: the model takes at most {limit} tokens")


def encode(
    data: datasets.DatasetDict, tokenizer: PreTrainedTokenizerBase, max_length: int
) -> datasets.DatasetDict:
    """Return token ids, padded per batch later; column `cut` marks rows cut to max_length."""

    def is_cut(ids: list[int], *row: str) -> bool:
        # a shorter row has all its tokens; verbose would warn of one that the model cannot read
        return len(ids) == max_length < len(tokenizer(*row, verbose=False)["input_ids"])

    def tokenize(batch: dict[str, list[str]]) -> dict[str, Any]:
        columns = [batch[name] for name in texts]
        encoded = tokenizer(*columns, truncation=True, max_length=max_length)
        return {**encoded, CUT: [*map(is_cut, encoded["input_ids"], *columns)]}

    texts = [name for name in data["train"].column_names if name not in ("label", ROW)]
    return data.map(tokenize, batched=True, remove_columns=texts, desc="Tokenizing")
