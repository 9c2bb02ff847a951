"""What is wrong with a command line or a YAML file: one line, the nearest name, exit code 2."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from glue.__main__ import EXPERIMENT as GLUE_EXPERIMENT
from glue.__main__ import main as glue
from tests.commands import refusal, run

GLUE = "train --task RTE --model m --output_dir o"
LABELS = "train --output_dir o --synthetic.classes 4"
RUNS = "model: m\noutput_dir: o\nlearning_rates: [1e-5]\ntasks: {RTE: null}\n"


@pytest.mark.parametrize(
    ("program", "command", "words"),
    [
        ("glue", f"{GLUE} --train.sede 1", "--train.sede: unknown; did you mean --train.seed?"),
        ("glue", f"{GLUE} --train.sede=1", "--train.sede: unknown; did you mean --train.seed?"),
        ("glue", f"{GLUE} --seed 1", "--seed: unknown; did you mean --train.seed?"),
        ("glue", f"{GLUE} --zzz 1", "--zzz: unknown; see --help"),
        ("glue", f"{GLUE} --maping r-softmax", "--maping: unknown; did you mean --mapping?"),
        ("glue", "sweep --trails 3", "--trails: unknown; did you mean --trials?"),
        (
            "experiments.multilabel",
            f"{LABELS} --synthetic.clases 3",
            "--synthetic.clases: unknown; did you mean --synthetic.classes?",
        ),
        (
            "experiments.language_modeling",
            "report runs/a --output_di b",  # which argparse would take for an abbreviation
            "--output_di: unknown; did you mean --output_dir?",
        ),
        ("glue", f"{GLUE} more", "unrecognized arguments: more"),
        ("glue", "trian --task RTE", "argument subcommand: invalid choice: 'trian' (choose from"),
        ("glue", "train --task RTE", "the following arguments are required: model, output_dir"),
        ("glue", f"{GLUE} --train.epochs", "argument --train.epochs: expected one argument"),
        ("glue", f"{GLUE} --config nowhere.yaml", "nowhere.yaml: No such file or directory"),
        ("glue", f"{GLUE} --train.seed -1", "train.seed=-1: expected an integer in [0, 2^32)"),
    ],
)
def test_of_a_command_line(
    program: str, command: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main = importlib.import_module(f"{program}.__main__").main
    assert refusal(main, capsys, *command.split()).startswith(f"error: {words}")


@pytest.mark.parametrize(
    ("program", "command", "key"),
    [
        ("glue", f"{GLUE} --train.seed abc", "train.seed"),
        ("glue", f"{GLUE} --evaluate never", "evaluate"),
        ("glue", f"{GLUE} --mapping.layers a", "mapping.layers"),
        ("glue", f"{GLUE} --mapping.params.r a", "mapping.params"),
        ("glue", f"{GLUE} --mapping no.yaml", "mapping"),
        ("glue", f"{GLUE} --mapping.schedule.parameter r", "initial"),
        ("experiments.multilabel", f"{LABELS} --synthetic.classes many", "classes"),
        ("experiments.multilabel", f"{LABELS} --images.source voc", "images"),
        (
            "experiments.multilabel",
            "train --output_dir o --synthetic.classes -4",
            "synthetic.classes=-4: expected at least 2",
        ),
    ],
)
def test_a_wrong_value_is_named_with_its_key(
    program: str, command: str, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match=r"^2$"):
        importlib.import_module(f"{program}.__main__").main(command.split())
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert key in said


@pytest.mark.parametrize("given", [
    ["--mapping", "r-softmax", "--mapping.params.r", "0.3"],
    ["--mapping=r-softmax", "--mapping.params.r", "0.3"],
    ["--mapping", "r-softmax:r=0.3"],
    ["--mapping=r-softmax:r=0.3"],
])  # fmt: skip
def test_a_section_by_its_name(given: list[str]) -> None:
    _, (config,) = GLUE_EXPERIMENT.program.parse([*GLUE.split(), *given, "--train.epochs", "2"])
    assert (config.mapping.name, config.mapping.params) == ("r-softmax", {"r": 0.3})
    assert config.train.epochs == 2


def test_several_parameters_by_name() -> None:
    given = ["--mapping", "scaled-entmax:alpha=1.5,delta=0"]
    _, (config,) = GLUE_EXPERIMENT.program.parse([*GLUE.split(), *given])
    assert config.mapping.params == {"alpha": 1.5, "delta": 0.0}


def test_a_section_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").write_text("name: entmax")
    _, (config,) = GLUE_EXPERIMENT.program.parse([*GLUE.split(), "--mapping", "mine"])
    assert config.mapping.name == "entmax"


@pytest.mark.parametrize(
    ("command", "text", "words"),
    [
        ("train", "mapping: {nam: x}", "mapping.nam: unknown; did you mean mapping.name?"),
        ("train", "maping: {name: x}", "maping: unknown; did you mean mapping?"),
        ("train", "seed: 3", "seed: unknown; did you mean train.seed?"),
        (
            "train",
            "mapping: {schedule: {parametr: r, initial: 0}}",
            "mapping.schedule.parametr: unknown; did you mean mapping.schedule.parameter?",
        ),
        ("sweep", "task: RTE", "task: unknown; did you mean tasks?"),
        ("train", "task: [RTE\n", "not YAML: "),
        ("train", "task: \x01", "not YAML: "),
        ("train", "task: é", "line 1: not UTF-8 ("),
    ],
)
def test_of_a_yaml_file(
    command: str, text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(text, encoding="latin-1")
    with pytest.raises(SystemExit, match=r"^2$"):
        glue([command, "--config", str(file), "--output_dir", "o"])
    said = capsys.readouterr().err.removeprefix(f"error: {file}").lstrip(":, ")
    assert said.startswith(words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("mappings: {x: {nam: r-softmax}}", "Option 'nam' is not accepted"),
        ("tasks: {RTE: {epoch: 3}}", "epoch"),
        ("mappings: 3", "mappings"),
    ],
)
def test_of_a_section_with_labels(
    text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("{" + f"model: m, output_dir: o, learning_rates: [1e-5], {text}" + "}")
    with pytest.raises(SystemExit, match=r"^2$"):
        glue(["sweep", "--config", str(file)])
    assert words in capsys.readouterr().err


def test_of_a_real_process() -> None:
    done = run("-m", "glue", *GLUE.split(), "--train.sede", 1)
    assert done.returncode == 2
    assert done.stderr == "error: --train.sede: unknown; did you mean --train.seed?\n"
    assert done.stdout == ""
