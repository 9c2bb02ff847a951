"""One-line errors for a command line and its YAML files, with the nearest known name."""

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
from sparse_attn.reports.text import listing

# options without a config field
BESIDE = ("config", "print_config", "help", "no_resume", "no_dry_run")


def explain(
    message: str, arguments: Sequence[str], prog: str, commands: dict[str, tuple[type, ...]]
) -> str:
    """Return a one-line error to replace jsonargparse's message, which may take ten lines.

    Args:
        message: jsonargparse's message.
        arguments: the refused arguments.
        prog: the command, as in `sparse-attn NAME`.
        commands: the dataclasses whose fields are the options of each sub-command.
    """
    name, *options = arguments or [""]
    if name not in commands:
        expected = f"expected {listing(list(commands), 'or')}"
        if not name or name.startswith("-"):
            return f"{expected}, and options; see {prog} --help"
        near = difflib.get_close_matches(name, commands, 1)
        return f"{name}: unknown; {_suggest(near) or expected}"
    configs = commands[name]
    for option in (word[2:].partition("=")[0] for word in options if word.startswith("--")):
        found = option not in BESIDE and _closest_keys(option.removesuffix("+").split("."), configs)
        if found:
            return f"--{option}: unknown; {_suggest(found, '--') or f'see {prog} {name} --help'}"
    for file in config_files(options):
        fault = _fault_of_file(file, configs)
        if fault:
            fits = [other for other, theirs in commands.items() if not _fault_of_file(file, theirs)]
            return f"{file}: {fault}" + (f" (the file fits {prog} {fits[0]})" if fits else "")
    message = _section_error(message)
    return _missing(message, name, configs) or _wrong_value(message) or " ".join(message.split())


def _section_error(message: str) -> str:
    """Keep only the section's error of those that jsonargparse lists for an optional section."""
    pattern = r'(Parser key "\S+":\s).*?given class_path \S+\s+(.*?)\s+- Expected a .*NoneType'
    found = re.match(pattern, message, re.DOTALL)
    return found[1] + found[2] if found else message


def own_error(message: str) -> str:
    """Return our error in one line, without those that jsonargparse lists around it."""
    found = re.search(r"^ *- (\S+=.*: expected .*)$", message, re.MULTILINE)
    return found[1] if found else " ".join(message.split())


def _suggest(names: Sequence[str], prefix: str = "") -> str:
    return f"did you mean {prefix}{names[0]}?" if names and names[0] else ""


def _fields(config: type) -> dict[str, Any]:
    """Return the name and type of each field."""
    hints = get_type_hints(config)
    return {field.name: hints[field.name] for field in fields(config)}


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _closest_keys(path: Sequence[str], configs: tuple[type, ...]) -> list[str]:
    """Return the closest known keys, [""] if none is close, or [] for a known key."""
    hints: tuple[Any, ...] = configs
    for position, part in enumerate(path):
        sections = [hint for hint in hints if isinstance(hint, type) and is_dataclass(hint)]
        labelled = [get_args(hint)[1] for hint in hints if get_origin(hint) is dict]
        if labelled:  # below user-defined labels
            hints = tuple(inner for hint in labelled for inner in _alternatives(hint))
            continue
        if not sections:
            return []
        known = {key: hint for section in sections for key, hint in _fields(section).items()}
        if part not in known:
            near = difflib.get_close_matches(part, known, 1)
            meant = [[*path[:position], *near, *path[position + 1 :]]] if near else []
            # the key of a section's field, written without its section
            meant += [key for key in _keys(configs) if key[-1] == path[-1]]
            return [".".join(key) for key in meant] or [""]
        hints = _alternatives(known[part])
    return []


def spell_out(arguments: Sequence[str], configs: tuple[type, ...]) -> list[str]:
    """Expand `--mapping entmax:alpha=1.5` to `--mapping.name entmax --mapping.params.alpha=1.5`.

    Applies to every section with a field `name`; parameters also need a field `params`. Options
    with dashes get underscores.
    """
    keys = {".".join(key) for key in _keys(configs)}
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


def _keys(configs: Iterable[type], path: tuple[str, ...] = ()) -> Iterator[list[str]]:
    """Yield every key, including those inside sections."""
    for config in configs:
        for name, hint in _fields(config).items():
            yield [*path, name]
            yield from _keys(filter(is_dataclass, _alternatives(hint)), (*path, name))


def config_files(options: Sequence[str]) -> Iterator[str]:
    for word, following in pairwise([*options, ""]):
        option, _, value = word.partition("=")
        if option == "--config":
            yield value or following


def _fault_of_file(file: str, configs: tuple[type, ...]) -> str | None:
    try:
        content = yaml.safe_load(read_text(Path(file)))
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        return f"not YAML ({line}{error.problem})"
    except yaml.YAMLError as error:  # a control character
        return f"not YAML ({' '.join(str(error).split())})"
    except FileNotFoundError:
        return "no such file"
    except (OSError, ValueError):  # the parser's message explains these
        return None
    if not isinstance(content, dict):
        return f"expected keys and values, got a {type(content).__name__}"
    for path in _paths(content):
        found = _closest_keys(path, configs)
        if found:
            return f"{'.'.join(path)}: unknown; {_suggest(found) or 'see --help'}"
    return None


def _paths(content: dict[Any, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the keys of a table and of the tables in it."""
    for key, value in content.items():
        yield (*path, str(key))
        if isinstance(value, dict):
            yield from _paths(value, (*path, str(key)))


def _missing(message: str, command: str, configs: tuple[type, ...]) -> str | None:
    found = re.match(
        r'(?:Parser key "(\S+)":\s)?the following arguments are required: (.*)', message
    )
    if found is None:
        return None
    before = f"{found[1]}." if found[1] else ""
    names = [before + name.removeprefix(f"{command}.") for name in found[2].split(", ")]
    return f"{listing(names)}: missing"


def _wrong_value(message: str) -> str | None:
    """Return the error for a value of the wrong type."""
    keys = list(dict.fromkeys(re.findall(r'Parser key "([^"]+)"', message)))
    value = re.search(r"Importing '(.*?)' is not allowed", message) or re.search(
        r"(?:(?:Got|Given) value: |Unable to load config ')(.*?)'?$", message, re.M
    )
    if not keys or value is None:
        return None
    key = ".".join(keys)
    types = re.search(r"Subtypes: \[(.*)\]$|Expected a (.*)\. Got value", message, re.M)
    if types is None:
        expected = f"a YAML file, or the keys of this section, each as an option --{key}.KEY"
    elif types[1]:
        expected = listing(_readable(types[1]).split(", "), "or")
    else:
        expected = _readable(types[2])
    return f"{key}={value[1]}: expected {expected}"


def _readable(types: str) -> str:
    plain = re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", types).replace("NoneType", "null")
    return re.sub(r"typing\.Literal\[(.*?)\]", r"one of \1", plain)
