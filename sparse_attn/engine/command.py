"""Command lines whose options are dataclasses, and their handling of wrong input.

This module imports nothing heavy, so that --help is instant, and no package of an extra, so that a
missing one is an error in one line.
"""

from __future__ import annotations

import sys
from argparse import ArgumentError
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, fields
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from sparse_attn.cli.parser import IMPORT_HELP, take_imports
from sparse_attn.engine.usage import check_names, spell_out
from sparse_attn.system.imports import OPTION

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

ConfigT = TypeVar("ConfigT")
# a class_path in a config could import, and so run, any module; jsonargparse only needs the paths
# of our dataclasses
OURS = ["sparse_attn.engine", "sparse_attn.glue", "glue", "experiments"]

SWITCHES = {
    "resume": "continue the interrupted run in output_dir",
    "dry_run": "check everything, start nothing; print the runs that are due",
}


@cache
def _parser_class() -> type[ArgumentParser]:
    from jsonargparse import ArgumentParser, set_parsing_settings

    set_parsing_settings(import_path_denylist=["*"], import_path_allowlist=OURS)
    return ArgumentParser


@dataclass(frozen=True)
class Command:
    """A sub-command whose options are the fields of dataclasses.

    Attributes:
        name, help: shown in the list of commands.
        about: description in the --help of the command.
        configs: filled from YAML files and options. A field of `SWITCHES` is a switch.
        positional: make fields without a default positional, and accept no YAML files.
        work: function to call with the configs; None if the `Experiment` has a method for it.
    """

    name: str
    help: str
    about: str
    configs: tuple[type, ...]
    positional: bool = False
    work: Callable[..., None] | None = None

    def parser(self, prog: str | None = None) -> ArgumentParser:
        """Return the parser of the options; it raises argparse.ArgumentError for wrong input."""
        from jsonargparse import ActionYesNo

        parser = _parser_class()(
            prog=prog,
            exit_on_error=False,
            description=self.about,
            # no option of this parser, whose options may also stand in files of others
            epilog=f"{OPTION} MODULE: {IMPORT_HELP}",
            allow_abbrev=False,
        )
        if not self.positional:
            parser.add_argument(
                "--config", action="config", help="YAML file; later files and options override it"
            )
        for config in self.configs:
            parser.add_class_arguments(config, skip={*SWITCHES}, as_positional=self.positional)
            for name in SWITCHES.keys() & {field.name for field in fields(config)}:
                parser.add_argument(
                    f"--{name}", action=ActionYesNo, default=False, help=SWITCHES[name]
                )
        return parser

    def made(self, options: dict[str, Any]) -> tuple[Any, ...]:
        """Return the configs, filled from parsed options, in the order of `configs`."""
        return tuple(_from_options(config, options) for config in self.configs)


@dataclass(frozen=True)
class Program:
    """A command line of several sub-commands.

    Attributes:
        name: as in `sparse-attn NAME`.
        description: its purpose, shown in --help.
        commands: the sub-commands.
    """

    name: str
    description: str
    commands: tuple[Command, ...]

    @property
    def prog(self) -> str:
        return f"sparse-attn {self.name}"

    def parser(self) -> ArgumentParser:
        """Return the parser of all commands; it raises argparse.ArgumentError for wrong input."""
        # an abbreviation breaks as soon as a new option has the same beginning
        parser = _parser_class()(
            prog=self.prog,
            description=self.description,
            allow_abbrev=False,
            exit_on_error=False,
        )
        commands = parser.add_subcommands()
        for command in self.commands:
            commands.add_subcommand(command.name, command.parser(), help=command.help)
        return parser

    def parse(self, arguments: list[str] | None = None) -> tuple[Command, tuple[Any, ...]]:
        """Return the sub-command and its configs.

        Wrong input is reported with exit code 2.
        """
        words = sys.argv[1:] if arguments is None else arguments
        name, *given = take_imports(words, self.prog) or [""]
        command = next((c for c in self.commands if c.name == name), None)
        parser = self.parser() if command is None else command.parser(f"{self.prog} {name}")
        try:
            if command is None:
                parser.parse_args([name, *given] if name else [])
                raise ValueError(f"expected a command; see {self.prog} --help")
            given = spell_out(given, command.configs)
            check_names(given, command.configs)
            made = parser.instantiate(parser.parse_args(given))
        except (ArgumentError, ValueError) as error:
            parser.exit(2, f"error: {error}\n")
        return command, command.made(made.as_dict())


def _from_options(config: type[ConfigT], options: dict[str, Any]) -> ConfigT:
    return config(**{field.name: options[field.name] for field in fields(config)})  # type: ignore


def from_dict(config: type[ConfigT], content: dict[str, Any]) -> ConfigT:
    """Return the config of a `dataclasses.asdict`, parsed and checked like a command line.

    Raises:
        ValueError, TypeError: invalid content.
    """
    parser = _parser_class()(exit_on_error=False)
    parser.add_class_arguments(config)
    try:
        # parse_object changes its argument
        options = parser.instantiate(parser.parse_object(deepcopy(content))).as_dict()
    except ArgumentError as error:
        raise ValueError(" ".join(str(error).split())) from None
    return _from_options(config, options)
