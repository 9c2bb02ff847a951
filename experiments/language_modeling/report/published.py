"""The published tables, from published.yaml, and our matching runs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from engine.sweep.plan import Cell
from engine.sweep.results import Results
from experiments.language_modeling.config import LanguageRunConfig
from experiments.language_modeling.report.runs import at, config_of, keys
from experiments.language_modeling.sections import StageConfig

_FILE = Path(__file__).with_name("published.yaml")
CONFIGS = Path(__file__).parents[3] / "configs" / "language_modeling"
# settings that must match the paper; the table states differences in others, such as the length
_SAME = ("corpus.", "model.", "head.")


@dataclass(frozen=True)
class PublishedRow:
    """One model of a table.

    Attributes:
        model: name in the paper.
        config: name of a file in configs/language_modeling.
        head: name of a file in configs/language_modeling/heads.
        options: further settings of the paper, by config key.
        published: one string per column, as printed.
    """

    model: str
    config: str | None
    head: str | None
    options: dict[str, Any]
    published: list[str]

    def command(self) -> str:
        """Return the config files and options that train the model of the row."""
        if self.config is None:
            return "none"
        return " ".join([f"{self.config}.yaml + heads/{self.head}.yaml", *self._options()])

    def wanted(self) -> dict[str, Any]:
        """Return the settings that determine the result of the row's run."""
        config = LanguageRunConfig("").comparable()
        for name in (self.config, f"heads/{self.head}"):
            _merge(config, _content(CONFIGS / f"{name}.yaml"))
        for key, value in self.options.items():
            section, _, last = key.rpartition(".")
            (at(config, section) if section else config)[last] = value
        return config

    def matches(self, results: Results) -> list[tuple[Cell, list[str]]]:
        """Return our cells with the same corpus, model, head and stages, and the keys that differ.

        The head may have another start.
        """
        cells = [cell for cell in results.cells if results.finished(cell)]
        if self.config is None or not cells:
            return []
        wanted = self.wanted()
        found = [(cell, keys(config_of(results, cell), wanted)) for cell in cells]
        return [
            (cell, differing)
            for cell, differing in found
            if not any(
                key.startswith(_SAME) or key == "finetune" for key in {*differing} - {"head.start"}
            )
        ]

    def _options(self) -> list[str]:
        return [
            f"--{key} {'null' if value is None else value}" for key, value in self.options.items()
        ]


@dataclass(frozen=True)
class PublishedTable:
    """A table of a paper; `columns` maps a header to our measure, or None."""

    source: str
    title: str
    setup: str
    columns: dict[str, str | None]
    rows: list[PublishedRow]


def published_tables() -> list[PublishedTable]:
    """All tables of published.yaml, in order."""
    return [_table(**content) for content in yaml.safe_load(_FILE.read_text(encoding="utf-8"))]


@cache
def _content(file: Path) -> dict[str, Any]:
    return yaml.safe_load(file.read_text(encoding="utf-8"))


def _merge(config: dict[str, Any], over: dict[str, Any]) -> None:
    """Merge a config file into the settings that decide the result, without paths."""
    for key, value in over.items():
        if isinstance(value, dict):
            if config[key] is None:  # finetune, the second stage
                config[key] = asdict(StageConfig())
            _merge(config[key], value)
        elif key not in ("output_dir", "data_dir"):
            config[key] = value


def _table(rows: list[dict[str, Any]], **content: Any) -> PublishedTable:
    shared = {"config": content.pop("config", None)}
    options = content.pop("options", {})
    made = [
        PublishedRow(**{**shared, **row, "options": {**options, **row.get("options", {})}})
        for row in rows
    ]
    return PublishedTable(**content, rows=made)
