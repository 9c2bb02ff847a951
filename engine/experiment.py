"""Base class of experiments, with the commands train, sweep and report.

An experiment defines its data, model, run and report. This package provides the rest: the command
line and its errors, locking of folders, records and resumption of sweeps, Markdown and HTML.
"""

from __future__ import annotations

import sys
import tempfile
import traceback
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar, cast

from engine.command import (
    Command,
    Program,
    from_dict,
    work_errors,
)
from engine.config import PackConfig, ReportConfig
from engine.sweep.config import Resources
from sparse_attn.cli.errors import input_errors, interruption
from sparse_attn.system.hub import go_offline_if_unreachable

if TYPE_CHECKING:
    from engine.sweep.plan import Plan, PlannedRun
    from engine.sweep.records import Records
    from engine.sweep.results import Results
    from sparse_attn.reports.page import Page, Report


class Run(Protocol):
    """The config of one run: a frozen dataclass."""

    @property
    def output_dir(self) -> str: ...
    @property
    def resume(self) -> bool: ...

    def comparable(self) -> dict[str, Any]:
        """What determines its result: runs with equal values are the same run."""


class Sweep(Protocol):
    """The config of a sweep: a frozen dataclass."""

    @property
    def output_dir(self) -> str: ...

    def content(self) -> dict[str, Any]:
        """The content of sweep.json: all but what may differ when a sweep is continued."""


RunT = TypeVar("RunT", bound=Run)
SweepT = TypeVar("SweepT", bound=Sweep)


class Experiment(ABC, Generic[RunT, SweepT]):
    """One laboratory's tenant; its package's `__main__` has it as `EXPERIMENT`.

    The package's module `module` has `assemble(config)`, which makes the parts of a run. Their
    `perform(folder)` trains, measures and returns the content of results.json with its `score`, or
    None in a process beside the main one; checkpoints and weights go into the folder, which is None
    in a sweep. The package's `report` has `make_page(results)`. Both are imported when they are
    needed and not before, as all that is heavy, so that --help does not wait for it.

    Attributes:
        name: as in `python -m NAME`.
        description: what it is for, in --help.
        about: what `train`, `sweep` and `report` do, in theirs.
        run, sweep: the configs of one run and of a sweep. One that may need the hub says so by a
            property `uses_hub`.
        module: of the package: what one run is made of.
        further: sub-commands of its own, with what they do.
    """

    name: ClassVar[str]
    description: ClassVar[str]
    about: ClassVar[tuple[str, str, str]]
    run: ClassVar[type]
    sweep: ClassVar[type]
    module: ClassVar[str] = "run"
    further: ClassVar[Sequence[Command]] = ()

    def assemble(self, config: RunT) -> Any:
        """The parts of a run, found to fit together; nothing is written.

        Raises:
            ValueError, TypeError, OSError: what is wrong with the config, the data or the model.
        """
        return import_module(f"{self.name}.{self.module}").assemble(config)

    @abstractmethod
    def summary(self, results: dict[str, Any], config: RunT) -> Iterable[str]:
        """The terminal output after `train`, with the place of the results."""

    @abstractmethod
    def plan(self, sweep: SweepT) -> Plan:
        """The runs of a sweep."""

    def page(self, results: Results) -> Page:
        """The report of a sweep, finished or not."""
        made: Page = import_module(f"{self.name}.report").make_page(results)
        return made

    def check(self, sweep: SweepT, plan: Plan) -> None:
        """Raise, before the first run starts, any error that a run would raise.

        Of each cell the first run: the others differ in numbers that have been checked.
        """
        for (task, mapping), runs in plan.first.items():
            try:
                self.assemble(runs[0].config)
            except (ValueError, TypeError) as error:
                raise ValueError(f"{mapping} on {task}: {error}") from None

    def fresh(self, sweep: SweepT) -> bool:
        """Whether each run gets a process of its own; starting one takes some seconds."""
        return True

    def seconds(self, config: RunT) -> float | None:
        """About how long a run takes, by a trial of a few seconds; None where none is made."""
        return None

    def prepare(self, config: RunT) -> Any:
        """`assemble`, and make output_dir this run's own.

        Raises:
            ValueError, TypeError, OSError: as `assemble`, or output_dir is not this run's. Nothing
                has been written then.
        """
        self.check_folder(config)
        parts = self.assemble(config)
        self.claim_folder(config)
        return parts

    def check_folder(self, config: RunT) -> None:
        """Raise ValueError if this run may not have output_dir; nothing is written."""
        from sparse_attn.system.run_folders import check_run_folder

        check_run_folder(Path(config.output_dir), config.comparable(), config.resume)

    def claim_folder(self, config: RunT) -> None:
        """Make output_dir this run's own; raises as `check_folder`."""
        from sparse_attn.system.run_folders import claim_run_folder

        claim_run_folder(Path(config.output_dir), config.comparable(), config.resume)

    def train(self, config: RunT, parts: Any) -> dict[str, Any] | None:
        """Perform a prepared run in its folder, and write results.json.

        Raises:
            DivergedError: a loss or an output is NaN or infinite; results.json has this status and
                what came before.
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
        """Whether this process writes; others train beside it."""
        return True

    def _write(self, config: RunT, folder: Path, results: dict[str, Any]) -> None:
        from sparse_attn.system.files import write_json
        from sparse_attn.system.run_folders import RESULTS_FILE

        results["config"] = asdict(cast(Any, config))
        write_json(folder / RESULTS_FILE, results)

    def tidy(self, folder: Path) -> None:
        """Delete what a run no longer needs once its results are written."""
        from sparse_attn.system.run_folders import CHECKPOINT_FILE

        (folder / CHECKPOINT_FILE).unlink(missing_ok=True)

    def search(self, sweep: SweepT, resources: Resources) -> Records:
        """Do every run of a sweep that has no record yet; raises as `run_sweep`."""
        from engine.sweep.run import run_sweep

        plan = self.plan(sweep)
        return run_sweep(
            Path(sweep.output_dir),
            sweep.content(),
            plan,
            partial(execute, self.name),
            resources,
            check=partial(self.check, sweep, plan),
            fresh=self.fresh(sweep),
        )

    def forecast(self, sweep: SweepT, resources: Resources) -> list[str]:
        """What a sweep has still to do: runs, time and disk; raises as `search`."""
        from engine.sweep.forecast import forecast
        from engine.sweep.run import check_folder

        folder, plan = Path(sweep.output_dir), self.plan(sweep)
        check_folder(folder, sweep.content())
        self.check(sweep, plan)
        tells = type(self).seconds is not Experiment.seconds
        return forecast(folder, plan, partial(_seconds, self.name) if tells else None, resources)

    def read(self, folder: Path) -> Results:
        """What the records of a sweep show.

        Raises:
            ValueError: no sweep of this experiment in the folder.
        """
        from engine.sweep.records import SWEEP_FILE, read_content
        from engine.sweep.results import Results

        content = read_content(folder, self.name)
        names = {field.name for field in fields(self.sweep)}
        known = {key: value for key, value in content.items() if key in names}
        try:
            sweep: SweepT = from_dict(self.sweep, {"output_dir": str(folder), **known})
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"results_dir={folder}: {SWEEP_FILE} is not of a sweep of this experiment "
                f"({shorten(str(error), 200, placeholder=' ...')}); "
                f"expected the output_dir of `python -m {self.name} sweep`"
            ) from None
        results = Results.of(folder, sweep, self.plan(sweep))
        if not results.records:
            faults = results.faults
            reason = f" ({len(faults)} not usable: {faults[0]})" if faults else ""
            raise ValueError(
                f"{folder}: no records of the sweep in {SWEEP_FILE}{reason}; start it with "
                f"`python -m {self.name} sweep`, or name the folder that it writes to"
            )
        return results

    def report(self, config: ReportConfig) -> Report:
        """Write report.md, report.html and the figures; the same records give the same bytes.

        Raises:
            ValueError: as `read`. Nothing is written then.
        """
        results = self.read(Path(config.results_dir))
        for line in results.left_out:
            print(line, file=sys.stderr)
        return self.page(results).write(Path(config.output_dir or config.results_dir))

    @property
    def program(self) -> Program:
        """The command line."""
        train, sweep, report = self.about
        return Program(
            self.name,
            self.description,
            (
                Command("train", "one run", train, (self.run,)),
                Command(
                    "sweep",
                    "many runs, on one machine or several",
                    f"{sweep} On this machine, or on a cluster with Ray (--address, extra `ray`). "
                    "After a kill, the same command continues: runs with a record are skipped.",
                    (self.sweep, Resources),
                ),
                Command(
                    "report",
                    "report the results of a sweep",
                    f"{report} Works for unfinished sweeps too (extra `report`).",
                    (ReportConfig,),
                    positional=True,
                ),
                Command(
                    "pack",
                    "merge the records of a sweep",
                    "Move the records of many files into one, runs.jsonl, which `report` and "
                    "`sweep` read as well.",
                    (PackConfig,),
                    positional=True,
                    work=_pack,
                ),
                *self.further,
            ),
        )

    def main(self, arguments: list[str] | None = None) -> None:
        """Parse, check all that can be checked, work, and say where the results are."""
        with interruption():
            with input_errors():
                command, configs = self.program.parse(arguments)
                go_offline_if_unreachable(configs[0])
            with work_errors():
                if command.name == "train":
                    self._train(*configs)
                    return
                with input_errors():
                    self._work(command, configs)

    def _train(self, config: RunT) -> None:
        with input_errors():
            parts = self.prepare(config)
        results = self.train(config, parts)
        if results is not None:
            print("\n".join(self.summary(results, config)))

    def _work(self, command: Command, configs: Sequence[Any]) -> None:
        """What `main` does for a command whose errors are all the user's to put right."""
        if command.work is not None:
            command.work(*configs)
        elif command.name == "report":
            print(self.report(*configs))
        elif configs[1].dry_run:
            print("\n".join(self.forecast(*configs)))
        else:
            records, folder = self.search(*configs), configs[0].output_dir
            count = Counter(record.status for record in records.by_hash.values())
            found = ", ".join(f"{number} {status}" for status, number in sorted(count.items()))
            print(f"records in {folder}: {found}")
            print(f"next: {self.program.prog} report {folder}")
            if count["failed"]:
                sys.exit("error: some runs failed; run the same command to retry them")


def _pack(config: PackConfig) -> None:
    from engine.sweep.records import pack

    print(f"records: {pack(Path(config.results_dir))}")


def execute(name: str, run: PlannedRun) -> dict[str, Any]:
    """A run of a sweep from beginning to end in the process that calls: how it ended.

    Args:
        name: of the experiment.
        run: whose config is given a folder that goes when the run ends.
    """
    from sparse_attn.evaluation.predictions import DivergedError

    experiment = _experiment(name)
    with tempfile.TemporaryDirectory() as folder:
        config = replace(run.config, output_dir=f"{folder}/run")
        try:
            results = experiment.assemble(config).perform(None)
        except DivergedError:
            return {"status": "diverged", "error": traceback.format_exc()}
    return {"status": "finished", "results": results}


def _seconds(name: str, run: PlannedRun) -> float | None:
    return _experiment(name).seconds(run.config)


def _experiment(name: str) -> Experiment[Any, Any]:
    experiment: Experiment[Any, Any] = import_module(f"{name}.__main__").EXPERIMENT
    return experiment
