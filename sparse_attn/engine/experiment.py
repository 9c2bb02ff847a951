"""Base class of experiments, with the commands train, sweep and report.

An experiment defines its data, model, run and report. This package provides the rest: the command
line and its errors, the folders of runs, sweeps that continue, Markdown and HTML.
"""

from __future__ import annotations

import shlex
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from importlib import import_module
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar, cast

from sparse_attn.cli.errors import input_errors, interruption, work_errors
from sparse_attn.engine.command import Command, Program, from_dict
from sparse_attn.engine.config import ReportConfig
from sparse_attn.engine.sweep.config import Resources
from sparse_attn.system.hub import go_offline_if_unreachable
from sparse_attn.system.imports import import_options, imported

if TYPE_CHECKING:
    from sparse_attn.engine.sweep.plan import SweepPlan
    from sparse_attn.engine.sweep.results import Results
    from sparse_attn.reports.page import Page, Report


class Run(Protocol):
    """The config of one run: a frozen dataclass."""

    @property
    def output_dir(self) -> str: ...
    @property
    def resume(self) -> bool: ...

    def comparable(self) -> dict[str, Any]:
        """Return the settings that determine the result; equal ones mean the same run."""


class Sweep(Protocol):
    """The config of a sweep: a frozen dataclass."""

    @property
    def output_dir(self) -> str: ...

    def content(self) -> dict[str, Any]:
        """Return the content of sweep.json: the settings that a continued sweep must keep."""


RunT = TypeVar("RunT", bound=Run)
SweepT = TypeVar("SweepT", bound=Sweep)


class Experiment(ABC, Generic[RunT, SweepT]):
    """Base class of an experiment; the `__main__` of its package has an instance, `EXPERIMENT`.

    The module `module` of the package has `assemble(config)`, which makes the parts of a run. Their
    `perform(folder)` trains, measures and returns the content of results.json, including `score`.
    It returns None in all processes but the main one. The package's `report` has
    `make_page(results)`. Both modules are imported on first use, because they are heavy and --help
    must not wait for them.

    Attributes:
        name: the program, as in `sparse-attn NAME`.
        package: as in `python -m PACKAGE`.
        description: purpose of the experiment, shown in --help.
        about: descriptions of `train`, `sweep` and `report`, shown in their --help.
        run, sweep: config classes of one run and of a sweep. A config that may need the hub has a
            property `uses_hub`.
        module: module of the package that assembles and performs a run.
        further: additional sub-commands.
    """

    name: ClassVar[str]
    package: ClassVar[str]
    description: ClassVar[str]
    about: ClassVar[tuple[str, str, str]]
    run: ClassVar[type]
    sweep: ClassVar[type]
    module: ClassVar[str] = "run"
    further: ClassVar[Sequence[Command]] = ()

    def assemble(self, config: RunT) -> Any:
        """Return the parts of a run, checked to fit together; write nothing.

        Raises:
            ValueError, TypeError, OSError: invalid config, data or model.
        """
        return import_module(f"{self.package}.{self.module}").assemble(config)

    @abstractmethod
    def summary(self, results: dict[str, Any], config: RunT) -> Iterable[str]:
        """Return the terminal output after `train`, including the path of the results."""

    @abstractmethod
    def plan(self, sweep: SweepT) -> SweepPlan:
        """Return the runs of a sweep."""

    def page(self, results: Results) -> Page:
        """Return the report of a sweep, finished or not."""
        made: Page = import_module(f"{self.package}.report").make_page(results)
        return made

    def check(self, sweep: SweepT, plan: SweepPlan) -> None:
        """Raise, before the first run starts, any error that a run would raise.

        Only the first run of each cell is assembled: the others differ in checked numbers only.
        """
        for (task, mapping), runs in plan.first.items():
            try:
                self.assemble(runs[0].config)
            except (ValueError, TypeError) as error:
                raise ValueError(f"{mapping} on {task}: {error}") from None

    def prepare(self, config: RunT) -> Any:
        """Assemble a run and claim its output_dir.

        Raises:
            ValueError, TypeError, OSError: invalid config, data or model, or output_dir belongs to
                another run. Nothing has been written then.
        """
        from sparse_attn.engine.sweep.records import identity
        from sparse_attn.system.run_folders import check_run_folder, claim_run_folder

        folder, content = Path(config.output_dir), identity(config)
        if self.is_main_process:
            check_run_folder(folder, content, config.resume)
        parts = self.assemble(config)
        if self.is_main_process:
            claim_run_folder(folder, content, config.resume)
        return parts

    def train(self, config: RunT, parts: Any) -> dict[str, Any] | None:
        """Perform a prepared run in its folder, and write results.json.

        Raises:
            DivergedError: a loss or an output is NaN or infinite; results.json has this status and
                the earlier measurements.
        """
        from sparse_attn.evaluation.predictions import DivergedError

        folder = Path(config.output_dir)
        try:
            results: dict[str, Any] | None = parts.perform(folder)
        except DivergedError as error:
            if self.is_main_process:
                outcome = {**error.results, "status": "diverged", "error": str(error)}
                self._write(config, folder, outcome)
            raise
        if results is not None:
            self._write(config, folder, results)
            self.tidy(folder)
        return results

    @property
    def is_main_process(self) -> bool:
        """Return whether this process writes; other processes only train."""
        return True

    def _write(self, config: RunT, folder: Path, results: dict[str, Any]) -> None:
        from sparse_attn.engine.sweep.records import IMPORTS
        from sparse_attn.system.files import write_json
        from sparse_attn.system.run_folders import RESULTS_FILE

        results["config"] = asdict(cast(Any, config))
        if imported():
            results[IMPORTS] = [*imported()]
        write_json(folder / RESULTS_FILE, results)

    def tidy(self, folder: Path) -> None:
        """Delete what a run no longer needs once its results are written."""
        from sparse_attn.system.run_folders import CHECKPOINT_FILE

        (folder / CHECKPOINT_FILE).unlink(missing_ok=True)

    def search(self, sweep: SweepT, resources: Resources) -> None:
        """Do every run of a sweep that has no results yet, and print where they are.

        Raises:
            ValueError, TypeError, OSError: as `run_sweep`.
            SystemExit: runs failed.
        """
        from sparse_attn.engine.sweep.run import run_sweep

        plan, folder = self.plan(sweep), Path(sweep.output_dir)
        failed = run_sweep(
            folder,
            sweep.content(),
            plan,
            self.package,
            resources,
            lambda: self.check(sweep, plan),
        )
        if failed:
            sys.exit(f"error: {len(failed)} runs failed; run the same command to retry them")
        words = [str(folder), *import_options(imported())]
        print(f"next: {self.program.prog} report {shlex.join(words)}")

    def due(self, sweep: SweepT, resources: Resources) -> list[str]:
        """Check a sweep, and return the number of runs that are due, as lines for the terminal."""
        from sparse_attn.engine.sweep.run import check_folder

        plan, folder = self.plan(sweep), Path(sweep.output_dir)
        check_folder(folder, sweep.content())
        self.check(sweep, plan)
        plan = plan.shard(resources.shard, resources.num_shards)
        done = plan.completed(folder)
        due = {cell: plan.size(cell, done) for cell in plan.cells}
        for record in done.values():
            due[record.task, record.mapping] -= 1
        lines = [f"runs: {sum(due.values())} of {plan.expected(done)} are due"]
        return lines + [f"  {task} {mapping}: {n}" for (task, mapping), n in due.items()]

    def settings(self, content: dict[str, Any]) -> dict[str, Any]:
        """Return what the config of a sweep takes from its sweep.json."""
        names = {field.name for field in fields(self.sweep)}
        return {key: value for key, value in content.items() if key in names}

    def read(self, folder: Path) -> Results:
        """Read the results of a sweep from its records.

        Raises:
            ValueError: no sweep of this experiment in the folder.
        """
        from sparse_attn.engine.sweep.records import IMPORTS, SWEEP_FILE, read_content
        from sparse_attn.engine.sweep.results import Results

        content = read_content(folder, self.program.prog)
        try:
            settings = {"output_dir": str(folder), **self.settings(content)}
            sweep: SweepT = from_dict(self.sweep, settings)
        except (ValueError, TypeError) as error:
            missing = [name for name in content.get(IMPORTS, ()) if name not in imported()]
            if missing:
                raise ValueError(
                    f"results_dir={folder}: {error}; its runs were given "
                    f"{' '.join(import_options(missing))}, which the report needs too"
                ) from None
            raise ValueError(
                f"results_dir={folder}: {SWEEP_FILE} is not of a sweep of this experiment "
                f"({shorten(str(error), 200, placeholder=' ...')}); "
                f"expected the output_dir of `{self.program.prog} sweep`"
            ) from None
        results = Results.of(folder, sweep, self.plan(sweep))
        if not results.records:
            raise ValueError(
                f"{folder}: no records of the sweep in {SWEEP_FILE}; start it with "
                f"`{self.program.prog} sweep`, or name the folder that it writes to"
            )
        return results

    def report(self, config: ReportConfig) -> Report:
        """Write report.md, report.html and the figures; the same records give the same bytes.

        Raises:
            ValueError: no sweep of this experiment in the folder. Nothing is written then.
        """
        results = self.read(Path(config.results_dir))
        return self.page(results).write(Path(config.output_dir or config.results_dir))

    @property
    def program(self) -> Program:
        """Return the command line."""
        train, sweep, report = self.about
        return Program(
            self.name,
            self.description,
            (
                Command("train", "one run", train, (self.run,)),
                Command(
                    "sweep",
                    "many runs, on one machine or several",
                    f"{sweep} On this machine, on a cluster with Ray (--address, extra `ray`), or "
                    "in a job array (--num_shards, --shard). After a kill, the same command "
                    "continues: runs with results are skipped.",
                    (self.sweep, Resources),
                ),
                Command(
                    "report",
                    "report the results of a sweep",
                    f"{report} Works for unfinished sweeps too (extra `report`).",
                    (ReportConfig,),
                    positional=True,
                ),
                *self.further,
            ),
        )

    def main(self, arguments: list[str] | None = None) -> None:
        """Run the command line: parse, check, work, and print where the results are."""
        from sparse_attn.engine.sweep.pool import end_with_sweep

        end_with_sweep()
        with interruption():
            with input_errors():
                command, configs = self.program.parse(arguments)
                go_offline_if_unreachable(configs[0])
                if command.name != "train":
                    self._run_command(command, configs)
                    return
            self._train(*configs)

    def _train(self, config: RunT) -> None:
        with input_errors():
            parts = self.prepare(config)
        again = "run the same command with --resume to continue"
        with interruption(again), work_errors(" (with --resume)"):
            results = self.train(config, parts)
        if results is not None:
            print("\n".join(self.summary(results, config)))

    def _run_command(self, command: Command, configs: Sequence[Any]) -> None:
        """Run a command other than `train`; its errors are all input errors."""
        if command.work is not None:
            command.work(*configs)
        elif command.name == "report":
            print(self.report(*configs))
        elif configs[1].dry_run:
            print("\n".join(self.due(*configs)))
        else:
            self.search(*configs)
