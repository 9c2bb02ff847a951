"""Command lines with the stages train, sweep and report, and what they do with wrong input."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from jsonargparse import ActionYesNo, ArgumentParser, set_parsing_settings

from pipeline.fitting import DivergedError
from pipeline.sweep.config import Resources
from pipeline.sweep.records import Records
from sparse_attn.files import UnwrittenError

# configs give values and no classes: a class_path would import, and so run, any module it names.
# jsonargparse finds our own dataclasses by their paths.
OURS = ["pipeline", "glue", "experiments"]
set_parsing_settings(import_path_denylist=["*"], import_path_allowlist=OURS)

# modules that an extra of this project installs
EXTRAS = {
    **{"ray": "ray", "statsmodels": "report", "jinja2": "report", "matplotlib": "report"},
    **{"PIL": "images", "torchvision": "images"},
}


@dataclass(frozen=True)
class Program:
    """A command line of three stages, each of which is described by a dataclass.

    Attributes:
        name: as in `python -m NAME`.
        description: what it is for, in --help.
        run, sweep: config of `train` and of `sweep`, filled from YAML and options. A run config has
            a field `resume`.
        report: config of `report`, whose fields are positional.
        about: description of each stage.
    """

    name: str
    description: str
    run: type
    sweep: type
    report: type
    about: dict[str, str]

    def parser(self) -> ArgumentParser:
        """One sub-command a stage."""
        train = ArgumentParser(description=self.about["train"])
        train.add_argument("--config", action="config", help="YAML file; options after it win")
        train.add_class_arguments(self.run, skip={"resume"})
        train.add_argument(
            "--resume",
            action=ActionYesNo,
            default=False,
            help="go on with the run that was cut off in output_dir",
        )
        sweep = ArgumentParser(
            description=f"{self.about['sweep']} Spread by Ray (extra `ray`). The same command goes "
            "on where it was killed: what has a record is not run again."
        )
        sweep.add_argument("--config", action="config", help="YAML file; options after it win")
        sweep.add_class_arguments(self.sweep)
        sweep.add_class_arguments(Resources)
        report = ArgumentParser(
            description=f"{self.about['report']} Of a sweep that has finished or not (extra "
            "`report`)."
        )
        report.add_class_arguments(self.report, as_positional=True)
        parser = ArgumentParser(prog=f"python -m {self.name}", description=self.description)
        commands = parser.add_subcommands()
        commands.add_subcommand("train", train, help="one run")
        commands.add_subcommand("sweep", sweep, help="many runs, on one machine or several")
        commands.add_subcommand("report", report, help="what the runs of a sweep show")
        return parser

    def parse(self, arguments: list[str] | None = None) -> Any:
        """A run config, a pair of sweep config and `Resources`, or a report config."""
        parser = self.parser()
        parsed = parser.parse_args(arguments)
        options = parser.instantiate(parsed)[parsed.subcommand].as_dict()
        options.pop("config", None)
        if parsed.subcommand == "train":
            return self.run(**options)
        if parsed.subcommand == "report":
            return self.report(**options)
        resources = {name: options.pop(name) for name in Resources.__dataclass_fields__}
        return self.sweep(**options), Resources(**resources)

    def main(self, work: Callable[[Any], None], arguments: list[str] | None = None) -> None:
        """Parse and `work`, which tells itself what of its errors are `input_errors`."""
        with input_errors():
            parsed = self.parse(arguments)
        with work_errors():
            work(parsed)

    def tell(self, records: Records, output_dir: str) -> None:
        """Print what a sweep has come to; exit with an error where runs failed."""
        count = Counter(record.status for record in records.by_hash.values())
        found = ", ".join(f"{number} {status}" for status, number in sorted(count.items()))
        print(f"records in {output_dir}: {found}")
        print(f"next: python -m {self.name} report {output_dir}")
        if count["failed"]:
            sys.exit("error: some runs failed; the same command tries them again")


@contextmanager
def input_errors() -> Iterator[None]:
    """One line instead of a traceback for wrong input or an extra that is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in EXTRAS:
            raise
        sys.exit(f"error: {error.name} is not installed; pip install '.[{EXTRAS[error.name]}]'")
    except (ValueError, TypeError, OSError) as error:
        sys.exit(f"error: {error}")


@contextmanager
def work_errors() -> Iterator[None]:
    """One line instead of a traceback for a run that diverged, a full disk and Ctrl+C."""
    try:
        yield
    except DivergedError as error:
        sys.exit(f"error: {error}")
    except UnwrittenError as error:
        sys.exit(f"error: {error} (train: with --resume)")
    except KeyboardInterrupt:
        sys.exit("stopped; the same command goes on where this was (train: with --resume)")
