"""Short spellings of options, and unknown names with the nearest known one."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import yaml

from sparse_attn.cli.parser import with_underscores
from sparse_attn.evaluation.text_files import read_text

# options without a config field
BESIDE = ("config", "print_config", "help", "no_resume", "no_dry_run")


def check_names(arguments: Sequence[str], configs: tuple[type, ...]) -> None:
    """Raise ValueError for an unknown option, or an unknown key in a file of `--config`.

    Args:
        arguments: the arguments of a sub-command.
        configs: the dataclasses whose fields are its options.
    """
    for word, following in pairwise([*arguments, ""]):
        option, _, value = word.partition("=")
        if word.startswith("--") and option[2:] not in BESIDE:
            _check(option[2:].removesuffix("+"), configs, "--", "")
        if option == "--config":
            file = Path(value or following)
            try:
                content = yaml.safe_load(read_text(file))
            except yaml.YAMLError as error:
                raise ValueError(f"{file}: not YAML: {error}") from None
            for key in _names(content) if isinstance(content, dict) else ():
                _check(key, configs, "", f"{file}: ")


def _check(name: str, configs: tuple[type, ...], dashes: str, where: str) -> None:
    known = dict(_keys(configs))
    sections = [name[: match.start()] for match in re.finditer(r"\.", name)]
    # below labels of the user, which the parser checks
    if name in known or any(map(known.get, sections)):
        return
    last = name.rpartition(".")[2]
    near = difflib.get_close_matches(name, known, 1)
    near += [key for key in known if key.rpartition(".")[2] == last]
    hint = f"did you mean {dashes}{near[0]}?" if near else "see --help"
    raise ValueError(f"{where}{dashes}{name}: unknown; {hint}")


def _names(content: dict[Any, Any], before: str = "") -> Iterator[str]:
    """Yield the keys of a table and of the tables in it."""
    for key, value in content.items():
        yield f"{before}{key}"
        if isinstance(value, dict):
            yield from _names(value, f"{before}{key}.")


def _keys(configs: Iterable[type], before: str = "") -> Iterator[tuple[str, bool]]:
    """Yield every key, also inside sections, and whether labels of the user stand below it."""
    for config in configs:
        hints = get_type_hints(config)
        for name in (field.name for field in fields(config)):
            hint = hints[name]
            types = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
            yield f"{before}{name}", any(get_origin(kind) is dict for kind in types)
            yield from _keys(filter(is_dataclass, types), f"{before}{name}.")


def spell_out(arguments: Sequence[str], configs: tuple[type, ...]) -> list[str]:
    """Expand `--mapping entmax:alpha=1.5` to `--mapping.name entmax --mapping.params.alpha=1.5`.

    Applies to every section with a field `name`; parameters also need a field `params`. Options
    with dashes get underscores.
    """
    keys = dict(_keys(configs))
    options = {f"--{name}" for name in (*keys, *BESIDE)}
    words, spelled = [with_underscores(word, options) for word in arguments], []
    while words:
        word = words.pop(0)
        option, equals, value = word.partition("=")
        given = value if equals else "".join(words[:1])
        name, colon, values = given.partition(":")
        section = option.removeprefix("--")
        known = f"{section}.name" in keys and (not colon or f"{section}.params" in keys)
        # a section may also be a YAML file
        named = re.fullmatch(r"[\w-]+(:\w+=[^=,]+(,\w+=[^=,]+)*)?", given)
        short = option.startswith("--") and known and named and given != "null"
        if short and not Path(given).is_file():
            del words[: 0 if equals else 1]
            spelled += [f"{option}.name", name]
            spelled += [f"{option}.params.{pair}" for pair in values.split(",") if pair]
        else:
            spelled.append(word)
    return spelled
