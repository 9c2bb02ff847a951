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
        ("glue", f"{GLUE} --zzz 1", "--zzz: unknown; see sparse-attn glue train --help"),
        ("glue", f"{GLUE} more", "unrecognized arguments: more"),
        ("glue", "trian --task RTE", "trian: unknown; did you mean train?"),
        ("glue", "zzz", "zzz: unknown; expected train, sweep, report, pack or check"),
        ("glue", "", "expected train, sweep, report, pack or check, and options; see"),
        ("glue", "train --task RTE", "model and output_dir: missing"),
        ("glue", "report", "results_dir: missing"),
        ("glue", f"{GLUE} --train.seed abc", "train.seed=abc: expected int"),
        ("glue", f"{GLUE} --evaluate never", "evaluate=never: expected one of 'epoch', 'end'"),
        ("glue", f"{GLUE} --mapping.layers a", "mapping.layers=a: expected list[int] or null"),
        ("glue", f"{GLUE} --mapping.params.r a", "mapping.params=a: expected float or list"),
        ("glue", f"{GLUE} --mapping.schedule 3", "mapping.schedule=3: expected ScheduleConfig"),
        ("glue", f"{GLUE} --mapping no.yaml", "mapping=no.yaml: expected a YAML file, or "),
        ("glue", f"{GLUE} --maping r-softmax", "--maping: unknown; did you mean --mapping?"),
        ("glue", f"{GLUE} --train.epochs", "argument --train.epochs: expected one argument"),
        ("glue", f"{GLUE} --config nowhere.yaml", "nowhere.yaml: no such file"),
        ("glue", "sweep --trails 3", "--trails: unknown; did you mean --trials?"),
        (
            "experiments.multilabel",
            f"{LABELS} --synthetic.clases 3",
            "--synthetic.clases: unknown; did you mean --synthetic.classes?",
        ),
        (
            "experiments.multilabel",
            "train --output_dir o --method.mapping softmax --synthetic.classes -4",
            "synthetic.classes=-4: expected at least 2",
        ),
        (
            "experiments.multilabel",
            f"{LABELS} --synthetic.classes many",
            "synthetic.classes=many: expected int",
        ),
        ("experiments.multilabel", f"{LABELS} --images.data_dir d", "images.source: missing"),
        (
            "experiments.multilabel",
            f"{LABELS} --images.source voc",
            "images.source=voc: expected one of 'voc2007', 'coco2017'",
        ),
        (
            "experiments.language_modeling",
            "report runs/a --output_di b",  # which argparse would take for an abbreviation
            "--output_di: unknown; did you mean --output_dir?",
        ),
        ("experiments.bottleneck", "sweep --step 3", "--step: unknown; did you mean --steps?"),
        ("experiments.bottleneck", "sewep", "sewep: unknown; did you mean sweep?"),
    ],
)  # fmt: skip
def test_of_a_command_line(
    program: str, command: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main = importlib.import_module(f"{program}.__main__").main
    assert refusal(main, capsys, *command.split()).startswith(f"error: {words}")


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
        ("train", "train: {seed: abc}", "train.seed=abc: expected int"),
        ("train", "task: [RTE\n", "not YAML (line 2: expected ',' or ']'"),
        ("train", "task: é", "line 1: not UTF-8 ("),
        ("train", "task: \x01", "not YAML (unacceptable character #x0001"),
        ("train", "[1, 2]", "expected keys and values, got a list"),
        (
            "sweep",
            f"{RUNS}mappings: {{softmax: {{name: softmax}}, x: {{nam: r-softmax}}}}",
            "mappings.x.nam: unknown; did you mean mappings.x.name?",
        ),
        (
            "sweep",
            "tasks: {RTE: {epoch: 3}}",
            "tasks.RTE.epoch: unknown; did you mean tasks.RTE.epochs?",
        ),
        ("sweep", f"{RUNS}mappings: {{x: {{name: x, params: {{r: abc}}}}}}", "mappings.params="),
        ("sweep", f"{RUNS}mappings: 3", "mappings=3: expected dict"),
    ],
)
def test_of_a_yaml_file(
    command: str, text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(text, encoding="latin-1")
    found = refusal(glue, capsys, command, "--config", file, "--output_dir", "o")
    found = found.removeprefix("error: ")
    assert found.removeprefix(f"{file}").lstrip(":, ").startswith(words)
    if "unknown" in words:
        assert found.startswith(f"{file}: ")


def test_of_a_section_that_is_not_utf8(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "my mapping.yaml"
    file.write_bytes(b"name: \xff")
    found = refusal(glue, capsys, "train", f"--mapping={file}", "--output_dir", "o")
    assert found.startswith(f"error: {file}, line 1: not UTF-8 ")


@pytest.mark.parametrize(
    ("command", "file", "words"),
    [
        (
            "train",
            "mrpc-fair",
            "protocol: unknown; see --help (the file fits sparse-attn glue sweep)",
        ),
        (
            "sweep",
            "mrpc",
            "task: unknown; did you mean tasks? (the file fits sparse-attn glue train)",
        ),
    ],
)
def test_of_a_file_for_another_command(
    command: str, file: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = f"configs/glue/{file}.yaml"
    assert refusal(glue, capsys, command, "--config", path).strip() == f"error: {path}: {words}"


def test_of_a_real_process() -> None:
    done = run("-m", "glue", *GLUE.split(), "--train.sede", 1)
    assert done.returncode == 2
    assert done.stderr == "error: --train.sede: unknown; did you mean --train.seed?\n"
    assert done.stdout == ""
