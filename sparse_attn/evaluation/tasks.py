"""Tasks: their files, columns, labels and metrics.

The nine tasks of GLUE (Wang et al. 2019, arXiv 1804.07461) are in `TASKS`; a task of your own is a
YAML file. `get_task` finds either.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from sparse_attn.evaluation.text_files import SUFFIXES, read_text

HELD_OUT = "held_out"  # the dev set of a task without files for one
CLASSIFICATION_METRICS = ("accuracy", "f1", "matthews_correlation")
REGRESSION_METRICS = ("pearson", "spearmanr")


@dataclasses.dataclass(frozen=True)
class Task:
    """A task on one text or on a pair of texts.

    name: name of the task.
    text: the one or two columns that hold the text.
    label: the column that holds the label.
    labels: the labels as the files spell them; a label's class id is its position here, and for
        GLUE this order is the hub's, so that published checkpoints agree. None: the label is a
        number and the task a regression.
    splits: name -> file, for `train` and one or more dev sets: `dev`, or `dev_<which>`. With only
        `train`, a tenth of its rows is held out as the dev set `held_out`.
    metrics: names out of CLASSIFICATION_METRICS or REGRESSION_METRICS.
    main_metric: the metric that ranks runs.
    columns: column names of files without a header (CSV, TSV); None: the files have a header.
    score_range: lowest and highest score of a regression, where it has bounds.
    folder: folder of the files, below data_dir.
    hub, hub_text: the configuration of the hub's data set nyu-mll/glue, and its text columns.
    root: the folder used if data_dir is not given.
    """

    name: str
    text: tuple[str, ...]
    label: str
    labels: tuple[str, ...] | None
    splits: Mapping[str, str]
    metrics: tuple[str, ...]
    main_metric: str
    columns: tuple[str, ...] | None = None
    score_range: tuple[float, float] | None = None
    folder: str = ""
    hub: str | None = None
    hub_text: tuple[str, ...] = ()
    root: Path | None = None

    def __post_init__(self) -> None:
        if (
            len(self.text) not in (1, 2)
            or self.label in self.text
            or len(set(self.text)) < len(self.text)
        ):
            raise ValueError(
                f"text must name one or two columns other than the label's, got {list(self.text)} "
                f"with label {self.label!r}"
            )
        if self.labels is not None and (
            len(self.labels) < 2 or len(set(self.labels)) < len(self.labels)
        ):
            raise ValueError(f"labels must be two or more different ones, got {list(self.labels)}")
        self._check_splits()
        self._check_metrics()
        for column in (*self.text, self.label):
            if self.columns is not None and self.columns.count(column) != 1:
                raise ValueError(
                    f"columns must name {column!r}, which text or label refers to, once, got "
                    f"{list(self.columns)}"
                )

    def _check_splits(self) -> None:
        strange = [s for s in self.splits if s not in ("train", "dev") and not s.startswith("dev_")]
        if strange or "train" not in self.splits:
            raise ValueError(
                "splits must name a file for `train` and for one or more dev sets (`dev`, or "
                f"`dev_<which>`), or for `train` only, got {list(self.splits)}"
            )

    def _check_metrics(self) -> None:
        known = REGRESSION_METRICS if self.regression else CLASSIFICATION_METRICS
        unknown = [m for m in self.metrics if m not in known]
        if unknown or not self.metrics:
            kind = "regression" if self.regression else "classification"
            raise ValueError(
                f"metrics of a {kind} are one or more of {list(known)}, got {list(self.metrics)}"
            )
        if "f1" in self.metrics and self.num_labels != 2:
            raise ValueError(
                f"metric 'f1' is for the second of two labels, but labels has {self.num_labels}"
            )
        if self.main_metric not in self.metrics:
            raise ValueError(
                f"main_metric must be one of metrics {list(self.metrics)}, got {self.main_metric!r}"
            )

    @property
    def regression(self) -> bool:
        return self.labels is None

    @property
    def num_labels(self) -> int:
        """Number of outputs of the head; 1 for a regression."""
        return 1 if self.labels is None else len(self.labels)

    @property
    def dev_splits(self) -> tuple[str, ...]:
        """Names of the dev sets; `held_out` if no file holds one."""
        return tuple(split for split in self.splits if split != "train") or (HELD_OUT,)


def _glue(
    name: str,
    text: tuple[str, ...],
    label: str,
    labels: tuple[str, ...] | None,
    *metrics: str,
    **more: Any,
) -> Task:
    """Build a GLUE task with the files of GLUE's download, ranked by its first metric."""
    return Task(
        name,
        text,
        label,
        labels,
        metrics=metrics,
        main_metric=metrics[0],
        folder=name,
        hub=name.lower().replace("-", ""),
        **{"splits": {"train": "train.tsv", "dev": "dev.tsv"}, "hub_text": text, **more},
    )


_BINARY = ("0", "1")
_ENTAILMENT = ("entailment", "not_entailment")
_PAIR = ("sentence1", "sentence2")

TASKS: Mapping[str, Task] = {
    task.name: task
    for task in (
        _glue(
            "CoLA",
            ("sentence",),
            "label",
            _BINARY,
            "matthews_correlation",
            columns=("source", "label", "star", "sentence"),
        ),
        _glue("SST-2", ("sentence",), "label", _BINARY, "accuracy"),
        _glue(
            "MRPC", ("#1 String", "#2 String"), "Quality", _BINARY, "accuracy", "f1", hub_text=_PAIR
        ),
        _glue("STS-B", _PAIR, "score", None, "pearson", "spearmanr", score_range=(0.0, 5.0)),
        _glue("QQP", ("question1", "question2"), "is_duplicate", _BINARY, "accuracy", "f1"),
        _glue(
            "MNLI",
            _PAIR,
            "gold_label",
            ("entailment", "neutral", "contradiction"),
            "accuracy",
            splits={
                "train": "train.tsv",
                "dev_matched": "dev_matched.tsv",
                "dev_mismatched": "dev_mismatched.tsv",
            },
            hub_text=("premise", "hypothesis"),
        ),
        _glue("QNLI", ("question", "sentence"), "label", _ENTAILMENT, "accuracy"),
        _glue("RTE", _PAIR, "label", _ENTAILMENT, "accuracy"),
        _glue("WNLI", _PAIR, "label", _BINARY, "accuracy"),
    )
}


def get_task(name: str | Path) -> Task:
    """Return a GLUE task by name, in any case (`RTE`, `rte`, `sst2`), or a task from a YAML file.

    The YAML file (docs/glue.md) describes your own files, which lie beside it or below data_dir. It
    has the keys text, label, labels and splits, and where the defaults do not fit: name, metrics,
    main_metric, columns (for files without a header).
    """
    if Path(name).suffix in (".yaml", ".yml"):
        return _read_task(Path(name))
    if Path(name).suffix in SUFFIXES:
        raise ValueError(
            f"task={name}: a file of rows is no task; give it as train_file, with text_columns and "
            "label_column"
        )
    by_key = {_key(task): task for task in TASKS}
    key = _key(str(name))
    if key in by_key:
        return TASKS[by_key[key]]
    near = [by_key[match] for match in difflib.get_close_matches(key, by_key, cutoff=0.5)]
    raise ValueError(
        f"unknown task {str(name)!r}; "
        + (f"the nearest: {', '.join(near)}; " if near else "")
        + f"tasks are {', '.join(TASKS)}, or the path of a YAML file that describes your own"
    )


def _key(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


def _read_task(path: Path) -> Task:
    if not path.is_file():
        raise FileNotFoundError(f"task: there is no file {path}")
    text = read_text(path)
    try:
        return _parse_task(yaml.safe_load(text), path)
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error


def _parse_task(entry: object, path: Path) -> Task:
    if not isinstance(entry, dict):
        raise ValueError(f"expected the keys {', '.join(_REQUIRED)}, got {type(entry).__name__}")
    for key in entry:
        if key not in _READERS:
            near = difflib.get_close_matches(str(key), _READERS, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise ValueError(f"unknown key {key!r}{hint}; keys are {', '.join(_READERS)}")
    missing = [key for key in _REQUIRED if key not in entry]
    if missing:
        raise ValueError(f"missing key {', '.join(map(repr, missing))}")
    given: dict[str, Any] = {
        key: None if value is None and key in _NULLABLE else _READERS[key](key, value)
        for key, value in entry.items()
    }
    given.setdefault("metrics", REGRESSION_METRICS if given["labels"] is None else ("accuracy",))
    given.setdefault("main_metric", given["metrics"][0])
    return Task(**{"name": path.stem, **given}, root=path.parent)


def _string(key: str, value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{key} must be a string, got {value!r}")
    return value


def _strings(key: str, value: object) -> tuple[str, ...]:
    """Check for a string or a list of strings; integers count, because labels are often 0 and 1."""
    items = value if isinstance(value, list) else [value]
    if not items:
        raise ValueError(f"{key} must not be empty")
    for item in items:
        if isinstance(item, bool) or not isinstance(item, str | int):
            # YAML reads a bare yes, no, on, off as a truth value, 1.0 as a number
            raise ValueError(
                f"{key} must be strings, got {item!r}; put it in quotes as the file spells it"
            )
    return tuple(map(str, items))


def _files(key: str, value: object) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(file, str) for file in value.values()):
        raise ValueError(f"{key} must map the name of each split to its file, got {value!r}")
    return {str(split): file for split, file in value.items()}


_REQUIRED = ("text", "label", "labels", "splits")
_NULLABLE = ("labels", "columns")
# by key, required keys first
_READERS: dict[str, Callable[[str, object], Any]] = {
    **{"text": _strings, "label": _string, "labels": _strings, "splits": _files},
    **{"name": _string, "metrics": _strings, "main_metric": _string, "columns": _strings},
}
