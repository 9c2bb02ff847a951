"""Exit codes: 1 for work that failed, 2 for wrong input, 130 for Ctrl+C."""

import pytest

from experiments.bottleneck.__main__ import EXPERIMENT
from sparse_attn.cli.errors import input_errors, interruption, work_errors
from sparse_attn.evaluation.predictions import DivergedError
from sparse_attn.system.files import MissingFolderError, UnwrittenError


@pytest.mark.parametrize(
    ("handler", "error", "code"),
    [
        (work_errors, DivergedError("a loss is NaN"), 1),
        (work_errors, UnwrittenError("no space"), 1),
        (input_errors, DivergedError("a loss is NaN"), 1),
        (input_errors, UnwrittenError("no space"), 1),
        (input_errors, MissingFolderError("no folder"), 2),
        (input_errors, ValueError("r=2"), 2),
        (input_errors, FileNotFoundError("no file"), 2),
        (input_errors, ModuleNotFoundError("no jinja2", name="jinja2"), 2),
        (interruption, KeyboardInterrupt(), 130),
    ],
)
def test_code_and_one_line(handler, error, code, capsys):
    with pytest.raises(SystemExit) as raised, handler():
        raise error
    assert raised.value.code == code
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("interrupted", "says"),
    [("prepare", "the same command to"), ("train", "the same command with --resume to")],
)
def test_resume_is_named_once_a_run_holds_its_folder(interrupted, says, monkeypatch, capsys):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(EXPERIMENT, "prepare", lambda config: None)
    monkeypatch.setattr(EXPERIMENT, interrupted, stop)
    with pytest.raises(SystemExit, match="130"):
        EXPERIMENT.main(["train", "--output_dir", "o", "--head", "softmax"])
    assert capsys.readouterr().err == f"stopped; run {says} continue\n"


def test_the_system_error_names_the_file_without_a_number(capsys, tmp_path):
    with pytest.raises(SystemExit), input_errors():
        (tmp_path / "no/file").mkdir()
    assert capsys.readouterr().err == f"error: {tmp_path}/no/file: No such file or directory\n"


@pytest.mark.parametrize(
    ("handler", "error"),
    [
        (work_errors, ValueError("a fault of ours")),
        (work_errors, FileNotFoundError("a fault of ours")),
        (input_errors, KeyError("a fault of ours")),
        (input_errors, ModuleNotFoundError("no module", name="ours")),
    ],
)
def test_faults_keep_their_traceback(handler, error):
    with pytest.raises(type(error), match=r"ours|no module"), handler():
        raise error
