"""The command line: every file under configs parses, and runs, sweeps and reports are made."""

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from experiments.language_modeling.__main__ import EXPERIMENT, main
from experiments.language_modeling.config import LanguageRunConfig, LanguageSweepConfig
from experiments.language_modeling.models import build_head
from sparse_attn.engine.command import from_dict
from tests.commands import refusal
from tests.experiments.language_modeling.toys import write_ptb

CONFIGS = Path(__file__).parents[3] / "configs" / "language_modeling"
SWEEPS = sorted(CONFIGS.glob("*-sweep.yaml"))
RUNS = sorted(p for p in CONFIGS.glob("*.yaml") if "output_dir" in p.read_text())
RUNS = [path for path in RUNS if path not in SWEEPS]
HEADS = sorted(CONFIGS.glob("heads/*.yaml"))


def parse(command: str, *arguments: Any) -> Any:
    return EXPERIMENT.program.parse([command, *map(str, arguments)])[1][0]


def parse_run(*files: Path, **options: Any) -> LanguageRunConfig:
    words = [word for file in files for word in ("--config", file)]
    return parse("train", *words, *(w for key, v in options.items() for w in (f"--{key}", v)))


@pytest.mark.parametrize("file", RUNS, ids=lambda path: path.stem)
def test_configs_parse_and_come_back_from_their_record(file: Path):
    config = parse_run(file)
    assert config.output_dir.startswith(f"runs/{file.stem}/")
    assert from_dict(LanguageRunConfig, json.loads(json.dumps(asdict(config)))) == config


@pytest.mark.parametrize("file", HEADS, ids=lambda path: path.stem)
def test_heads_lie_over_a_model(file: Path):
    model, hidden = ("ptb-ff", 809) if "factored" in file.stem else ("ptb-awd", 1150)
    config = parse_run(CONFIGS / f"{model}.yaml", file)
    assert config.model.hidden == hidden
    assert build_head(config.head, 400, nn.Embedding(10, 400)).vocab == 10
    # under every loss, as in the paper: one that does not would start far behind
    for model in ("ptb-ff", "1bw-ff"):
        assert parse_run(CONFIGS / f"{model}.yaml", file).head.start == "prior"


def small(folder: Path) -> list[str]:
    """Options of a run that takes no time."""
    words = f"--config {CONFIGS / 'ptb-small.yaml'} --model.embedding 6 --model.hidden 6"
    words += f" --corpus.data_dir {write_ptb(folder / 'ptb')} --output_dir {folder / 'run'}"
    return f"{words} --train.batch 2 --evaluation.test_batch 1 --device cpu".split()


def test_a_run_is_trained_measured_and_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = tmp_path / "run"
    taylor = ["--config", str(CONFIGS / "heads/taylor.yaml"), "--train.max_steps", "2"]
    main(["train", *small(tmp_path), *taylor])
    printed = capsys.readouterr().out
    record = json.loads((run / "results.json").read_text(encoding="utf-8"))
    assert f"taylor-softmax test perplexity: {record['test_perplexity']:.2f}" in printed
    assert f"top-10 error: {record['top_10_error']:.4f}\nresults: {run}/results.json" in printed
    assert {path.name for path in run.iterdir()} == {"config.json", "results.json", "model.pt"}
    main(["report", str(run), "--output_dir", str(tmp_path / "page")])
    printed = capsys.readouterr().out
    assert re.search(rf"^taylor-softmax +1 .* {record['test_perplexity']:.2f}", printed, re.M)
    assert (tmp_path / "page/report.html").exists()


def test_a_run_that_diverges_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    wild = ["--train.learning_rate", "1e38", "--train.clip", "null", "--train.epochs", "9"]
    told = r"^error: the loss of step \d+ is (nan|inf): .* diverged; lower train\.learning_rate.*$"
    assert re.search(told, refusal(main, capsys, "train", *small(tmp_path), *wild, code=1))
    assert json.loads((tmp_path / "run/results.json").read_text())["status"] == "diverged"


@pytest.mark.parametrize("file", SWEEPS, ids=lambda path: path.stem)
def test_sweeps_parse_and_come_back_from_their_record(file: Path):
    sweep = parse("sweep", "--config", file)
    content = json.loads(json.dumps(sweep.content()))
    assert from_dict(LanguageSweepConfig, {"output_dir": "x", **content}).content() == content
    heads = [build_head(head, 200, nn.Embedding(5000, 200)) for head in sweep.heads.values()]
    assert len(heads) == len(EXPERIMENT.plan(sweep).cells)
