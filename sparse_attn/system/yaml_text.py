"""YAML whose expanded aliases stay small.

A few lines of nested aliases may expand to billions of values, which would hang a command.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import yaml

MOST_VALUES = 100_000
MOST_LEVELS = 50


def load(text: str, load: Any = yaml.safe_load) -> Any:
    """Parse the text with `load`.

    Raises:
        yaml.YAMLError: it is not YAML, has more than MOST_LEVELS levels, or more than MOST_VALUES
            values, or gives a key twice.
    """
    _check_size(text)
    _check_keys(yaml.compose(text, Loader=yaml.SafeLoader))
    return load(text)


def _check_keys(node: yaml.Node | None) -> None:
    """Refuse a key that occurs twice in a table, because YAML would keep the last."""
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _check_keys(item)
    if not isinstance(node, yaml.MappingNode):
        return
    seen = set()
    for key, value in node.value:
        if isinstance(key, yaml.ScalarNode) and (key.tag, key.value) in seen:
            raise yaml.MarkedYAMLError(
                problem=f"the key {key.value!r} stands there twice; leave one out",
                problem_mark=key.start_mark,
            )
        seen.add((key.tag, key.value) if isinstance(key, yaml.ScalarNode) else key)
        _check_keys(value)


@dataclass
class _Part:
    """Size of a value with expanded aliases: numbers of values and levels."""

    anchor: str | None = None
    values: int = 1
    levels: int = 1

    def add(self, part: _Part) -> None:
        self.values += part.values
        self.levels = max(self.levels, 1 + part.levels)


def _check_size(text: str) -> None:
    known: dict[str | None, _Part] = {}
    above = [_Part()]  # open collections
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            above.append(_Part(event.anchor))
        elif isinstance(event, (yaml.CollectionEndEvent, yaml.ScalarEvent, yaml.AliasEvent)):
            if isinstance(event, yaml.AliasEvent):
                # a collection that contains itself is not known yet
                part = known.get(event.anchor, _Part(values=MOST_VALUES))
            elif isinstance(event, yaml.ScalarEvent):
                part = _Part(event.anchor)
            else:
                part = above.pop()
            known[part.anchor] = part
            above[-1].add(part)
        if len(above) + above[-1].levels > MOST_LEVELS:
            raise yaml.MarkedYAMLError(problem=f"it has more than {MOST_LEVELS} levels")
        if above[-1].values > MOST_VALUES:
            raise yaml.MarkedYAMLError(
                problem=f"it stands for more than {MOST_VALUES:,} values; write its aliases out"
            )
