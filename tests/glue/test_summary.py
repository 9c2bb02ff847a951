"""What a run says: a line a log, where it resumes, and a table beside the baseline at its end."""

import re
import shutil
from pathlib import Path

import pytest
from tqdm import tqdm

from glue.__main__ import main
from glue.config import MappingConfig, RunConfig
from glue.scoring import baseline
from glue.summary import summary
from sparse_attn.engine.config import ScheduleConfig
from sparse_attn.evaluation.tasks import TASKS
from tests.glue.running import Asked, prepared, trained

R_SOFTMAX = ["--mapping.name", "r-softmax", "--mapping.params.r", "0.3"]


def test_baseline_of_the_most_frequent_class() -> None:
    labels = [1, 1, 1, 1, 1, 0, 0]
    # of "always 1": 5 of 7 right, precision 5/7 and recall 1
    assert baseline(labels, TASKS["MRPC"]) == {"accuracy": 5 / 7, "f1": pytest.approx(10 / 12)}
    assert baseline([0, 0, 1], TASKS["MRPC"]) == {"accuracy": pytest.approx(2 / 3), "f1": 0.0}
    assert baseline(labels, TASKS["CoLA"])["matthews_correlation"] == 0.0
    assert baseline([0.0, 1.5, 5.0], TASKS["STS-B"]) == {"pearson": 0.0, "spearmanr": 0.0}


def test_table_of_a_run() -> None:
    mapping = MappingConfig(
        "r-softmax", {"r": 0.3}, layers=[4, 5], schedule=ScheduleConfig("r", initial=0.0)
    )
    config = RunConfig(task="MRPC", model="m", output_dir="runs/a b", mapping=mapping)
    results = {
        "metrics": {"accuracy": 0.75, "f1": 0.8, "loss": 0.51234},
        "sparsity": {"dev": {"mean": 0.172}},
        "predictions": {"dev": {"labels": [1, 1, 0, 1]}},
    }
    assert summary(results, config) == [
        "MRPC, 4 dev   r-softmax, r 0 to 0.3, layers 4 and 5   majority class",
        "accuracy                                     0.7500           0.7500",
        "f1                                           0.8000           0.8571",
        "loss                                         0.5123                -",
        "exact zeros                                   17.2%                -",
        "results: runs/a b/results.json",
        'next: sparse-attn inspect \'runs/a b/model\' "TEXT" --pair "TEXT"',
    ]


def test_what_a_command_says(
    asked: Asked, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(asked(tmp_path / "run", "--task", "MNLI", *R_SOFTMAX))
    said = capsys.readouterr()
    # 7 rows: three labels by turns
    found = re.search(r"^dev_matched/accuracy +0\.\d{4} +0\.4286$", said.out, re.MULTILINE)
    assert found, said.out
    assert "r-softmax, r 0.3" in said.out
    assert re.search(r"^dev_mismatched/exact zeros +[123]\d\.\d%", said.out, re.MULTILINE)
    assert "next: sparse-attn inspect" in said.out
    assert "epoch 1, dev_matched: accuracy 0." in said.out
    for noise in ("{", "resuming"):
        assert noise not in said.out + said.err
    # bars are for terminals
    assert "Training" not in said.err


def test_a_resumed_run_says_so(
    asked: Asked, tmp_path: Path, kept_checkpoints: None, capsys: pytest.CaptureFixture[str]
) -> None:
    given = asked(tmp_path)
    trained(prepared(given))
    (tmp_path / "results.json").unlink()
    shutil.rmtree(tmp_path / "checkpoint-6")
    capsys.readouterr()
    main([*given, "--resume"])
    assert capsys.readouterr().out.startswith("resuming at step 3 of 6\n")


def test_no_bar_is_left_after_an_error(
    asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    run = prepared(asked(tmp_path))

    def full(*_: object) -> None:
        bars.extend(tqdm._instances)
        raise OSError(28, "No space left on device")

    bars: list[tqdm] = []
    monkeypatch.setattr(run.trainer, "_save_checkpoint", full)
    with pytest.raises(OSError, match="No space left"):
        trained(run)
    assert bars
    assert not list(tqdm._instances)
