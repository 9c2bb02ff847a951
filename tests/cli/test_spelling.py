"""Options with dashes and with underscores are the same ones, in every command."""

import importlib
import sys

import pytest

from sparse_attn.cli import parse
from sparse_attn.cli.programs import PROGRAMS
from tests.commands import refusal

COMPARE = ["compare", "m", "--texts", "a.csv"]


@pytest.mark.parametrize("sign", ["-", "_"])
def test_of_commands(sign: str) -> None:
    more = [f"--text{sign}columns", "a-b", f"--max{sign}length=9", f"--output{sign}dir", "o-p"]
    given = parse([*COMPARE, *more, f"--trust{sign}remote{sign}code"])
    assert (given.text_columns, given.max_length, given.trust_remote_code) == ("a-b", 9, True)
    assert str(given.out) == "o-p"
    given = parse(["inspect", f"--max{sign}tokens", "3", "--", "m", "--max-tokens"])
    assert (given.max_tokens, given.text) == (3, "--max-tokens")


@pytest.mark.parametrize("sign", ["-", "_"])
@pytest.mark.parametrize("program", [name for name in PROGRAMS if name != "benchmarks"])
def test_of_programs(program: str, sign: str) -> None:
    made = importlib.import_module(f"{PROGRAMS[program]}.__main__").EXPERIMENT.program
    given = ["report", "runs/a-b", f"--output{sign}dir", "c-d"]
    assert vars(made.parse(given)[1][0]) == {"results_dir": "runs/a-b", "output_dir": "c-d"}


@pytest.mark.parametrize("sign", ["-", "_"])
def test_of_sections_switches_and_labels(sign: str) -> None:
    from glue.__main__ import EXPERIMENT

    given = ["sweep", "--model", "m", f"--output{sign}dir", "o", f"--dry{sign}run"]
    given += [f"--train.batch{sign}size=4", f"--learning{sign}rates", "[1e-5]"]
    given += ["--mappings", "{softmax: {name: softmax}}", "--tasks.SST-2", "{epochs: 2}"]
    sweep, resources = EXPERIMENT.program.parse(given)[1]
    assert (sweep.train.batch_size, sweep.learning_rates) == (4, [1e-5])
    assert sweep.tasks["SST-2"].epochs == 2
    assert resources.dry_run
    given = ["train", "--task", "RTE", "--model", "m", f"--no{sign}resume"]
    assert not EXPERIMENT.program.parse([*given, "--output_dir", "o"])[1][0].resume


def test_errors_name_an_option_as_help_does(capsys: pytest.CaptureFixture[str]) -> None:
    from sparse_attn.cli import main

    assert "--max_length 1: expected" in refusal(main, capsys, *COMPARE, "--max-length", 1)


@pytest.mark.parametrize("program", PROGRAMS)
def test_help_names_the_command_that_was_typed(
    program: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [program])
    with pytest.raises(SystemExit):
        importlib.import_module(f"{PROGRAMS[program]}.__main__").main(["--help"])
    told = capsys.readouterr().out
    assert told.startswith(f"usage: sparse-attn {program} ")
    assert "python -m" not in told
