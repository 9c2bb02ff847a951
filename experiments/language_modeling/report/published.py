"""The tables that the papers print, from published.yaml, and the runs of ours that belong there."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from experiments.language_modeling.__main__ import parse
from experiments.language_modeling.config import RunConfig
from experiments.language_modeling.report.runs import Cell, keys

_FILE = Path(__file__).with_name("published.yaml")
CONFIGS = Path(__file__).parents[3] / "configs" / "language_modeling"
# what a run must have of the paper's: the rest, such as its length, is told beside its numbers
_SAME = ("corpus.", "model.", "head.")


@dataclass(frozen=True)
class PublishedRow:
    """One model of a table.

    Attributes:
        model: as the paper calls it.
        config: name of a file in configs/language_modeling, and of the experiment that runs it.
        head: name of a file in configs/language_modeling/heads.
        options: what the paper sets besides, by keys of a run's config.
        published: one text for each column, as printed.
    """

    model: str
    config: str | None
    head: str | None
    options: dict[str, Any]
    published: list[str]

    def command(self) -> str:
        """The files and options that train it."""
        if self.config is None:
            return "none"
        return " ".join([f"{self.config}.yaml + heads/{self.head}.yaml", *self._options()])

    def wanted(self) -> RunConfig:
        """The run that the command makes."""
        files = [CONFIGS / f"{self.config}.yaml", CONFIGS / "heads" / f"{self.head}.yaml"]
        words = [word for file in files for word in ("--config", str(file))]
        return _parsed(*words, *(w for option in self._options() for w in option.split(" ", 1)))

    def matches(self, experiments: dict[str, list[Cell]]) -> list[tuple[Cell, list[str]]]:
        """Ours with the same corpus, model, head and stages, and keys of what is not the same."""
        cells = [cell for cell in experiments.get(self.config or "", []) if cell.finished]
        if not cells:
            return []
        wanted = self.wanted().to_dict()
        found = [(cell, keys(cell.config, wanted)) for cell in cells]
        return [
            (cell, differing)
            for cell, differing in found
            if not any(key.startswith(_SAME) or key == "finetune" for key in differing)
        ]

    def _options(self) -> list[str]:
        return [
            f"--{key} {'null' if value is None else value}" for key, value in self.options.items()
        ]


@dataclass(frozen=True)
class PublishedTable:
    """A table of a paper; `columns` maps a header to the measure of ours, None if there is none."""

    source: str
    title: str
    setup: str
    columns: dict[str, str | None]
    rows: list[PublishedRow]


def published_tables() -> list[PublishedTable]:
    """All of published.yaml, in its order."""
    return [_table(**content) for content in yaml.safe_load(_FILE.read_text(encoding="utf-8"))]


@cache
def _parsed(*words: str) -> RunConfig:
    """What `train` makes of the command line; a quarter of a second each, and tables share many."""
    run = parse(["train", *words])
    assert isinstance(run, RunConfig)
    return run


def _table(rows: list[dict[str, Any]], **content: Any) -> PublishedTable:
    shared = {"config": content.pop("config", None)}
    options = content.pop("options", {})
    made = [
        PublishedRow(**{**shared, **row, "options": {**options, **row.get("options", {})}})
        for row in rows
    ]
    return PublishedTable(**content, rows=made)
