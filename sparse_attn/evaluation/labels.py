"""Match a classifier's labels with a task's, by name."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import replace

from transformers import PretrainedConfig

from sparse_attn.evaluation.tasks import Task

logger = logging.getLogger(__name__)

# label names of GLUE on the hub, and so of its checkpoints; the files have numbers
HUB_NAMES = {
    "cola": ("unacceptable", "acceptable"),
    "sst2": ("negative", "positive"),
    "mrpc": ("not_equivalent", "equivalent"),
    "qqp": ("not_duplicate", "duplicate"),
    "wnli": ("not_entailment", "entailment"),
}


def class_order(config: PretrainedConfig, task: Task, model: str) -> list[int] | None:
    """Return the model's class for each label of the task; None if the order is the same.

    Names match without regard to case. Default names such as LABEL_0 carry no meaning: such models,
    and regressions, are assumed to follow the task's order.

    Args:
        config: config of a model with `task.num_labels` scores.
        task: the task; the model uses its labels or the hub's names for them.
        model: name of the model in errors.

    Raises:
        ValueError: the model names other labels.
    """
    names = _names(config)
    if task.labels is None:
        return None
    for labels in (task.labels, HUB_NAMES.get(task.hub or "", task.labels)):
        for ours, theirs in ((labels, names), (_folded(labels), _folded(names))):
            if set(ours) == set(theirs) and len(set(theirs)) == len(theirs):
                order = [theirs.index(label) for label in ours]
                return None if order == sorted(order) else order
    if all(re.fullmatch(r"LABEL_\d+", name) for name in names):
        logger.warning(
            "%s: its labels have no names; they are taken for %s, in this order",
            model,
            ", ".join(task.labels),
        )
        return None
    raise ValueError(
        f"{model}: names its labels {names}, but {task.name} has {list(task.labels)}; name a model "
        "that was trained for it. If only the spelling differs, write the task's labels into "
        "id2label of the model's config.json, in the model's order. To train a new head, save "
        "AutoModel.from_pretrained(model) and name that folder"
    )


def with_all_labels(task: Task, config: PretrainedConfig) -> Task:
    """Append the labels that only the model names, if it names all labels of the task.

    A file may lack a class.
    """
    names, known = _names(config), set(_folded(task.labels or ()))
    folded = set(_folded(names))
    if task.labels is None or len(folded) < len(names) or not known < folded:
        return task
    more = [name for name in names if name.casefold() not in known]
    return replace(task, labels=(*task.labels, *more))


def _names(config: PretrainedConfig) -> list[str]:
    """Return the label names in score order; older configs have them in label2id only."""
    found = [str(config.id2label.get(i, f"LABEL_{i}")) for i in range(config.num_labels)]
    by_index = {int(index): str(name) for name, index in (config.label2id or {}).items()}
    if all(name.startswith("LABEL_") for name in found) and by_index.keys() == {*range(len(found))}:
        return [by_index[index] for index in range(len(found))]
    return found


def _folded(names: Sequence[str]) -> list[str]:
    return [name.casefold() for name in names]
