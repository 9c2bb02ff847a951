"""The command line: every file under configs parses, and what is wrong is said in one line."""

import json
import re
from pathlib import Path

import pytest
from torch import nn

from experiments.language_modeling.__main__ import main, parse
from experiments.language_modeling.config import (
    HeadConfig,
    MeasureConfig,
    ModelConfig,
    ReportConfig,
    RunConfig,
    StageConfig,
)
from experiments.language_modeling.models import build_head

CONFIGS = Path(__file__).parents[3] / "configs" / "language_modeling"
RUNS = sorted(path.name for path in CONFIGS.glob("*.yaml") if "output_dir" in path.read_text())
HEADS = sorted(path.name for path in CONFIGS.glob("heads/*.yaml"))


def parse_run(*arguments: str) -> RunConfig:
    config = parse(["train", *arguments])
    assert isinstance(config, RunConfig)
    return config


@pytest.mark.parametrize("name", RUNS)
def test_configs_parse_and_come_back_from_their_record(name: str):
    config = parse_run("--config", str(CONFIGS / name))
    assert config.output_dir.startswith(f"runs/{name.removesuffix('.yaml')}/")
    content = json.loads(json.dumps(config.to_dict()))
    assert RunConfig.from_dict(content) == config


@pytest.mark.parametrize("name", HEADS)
def test_heads_lie_over_a_model(name: str):
    files = [CONFIGS / "ptb-awd.yaml", CONFIGS / "heads" / name]
    config = parse_run(*(word for file in files for word in ("--config", str(file))))
    assert config.model.hidden == 1150
    head = build_head(config.head, 400, nn.Embedding(10, 400))
    assert head.vocab == 10
    known = {"normalized-relu.yaml": "relu-eps", "abs.yaml": "softmax-abs"}
    known |= {f"{short}.yaml": f"{short}-softmax" for short in ("taylor", "spherical")}
    assert config.head.name == known.get(name, name.removesuffix(".yaml"))


def test_awd_lstm_is_finetuned_with_the_settings_of_training():
    config = parse_run("--config", str(CONFIGS / "ptb-awd.yaml"), "--train.learning_rate", "20")
    assert config.train.learning_rate == 20
    assert config.train.average_from == "trigger"
    assert config.finetune == StageConfig(
        average_from=0,
        stop_on_trigger=True,
        vary=True,
        longest=10,
        weight_decay=1.2e-6,
        epochs=500,
    )
    without = parse_run("--config", str(CONFIGS / "ptb-awd.yaml"), "--finetune", "null")
    assert without.finetune is None
    fixed = parse_run("--config", str(CONFIGS / "ptb-awd.yaml"), "--train.average_from", "200")
    assert fixed.train.average_from == 200


def test_the_other_commands_parse():
    assert parse(["measure", "runs/a", "--rank_contexts", "100", "--dynamic", "old"]) == (
        MeasureConfig("runs/a", rank_contexts=100, dynamic="old")
    )
    assert parse(["report", "results/a", "page.md"]) == ReportConfig("results/a", "page.md")


@pytest.mark.parametrize("command", ["train", "measure", "report"])
def test_help_teaches(command: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        parse([command, "--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    told = {
        "train": ("--train.learning_rate", "configs/language_modeling", "average the weights"),
        "measure": ("rank_contexts", "run_dir"),
        "report": ("results_dir", "output"),
    }
    assert all(part in out for part in told[command])


def test_a_run_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for split in ("train", "valid", "test"):
        (tmp_path / f"ptb.{split}.txt").write_text("a b <unk> c\n" * 30, encoding="utf-8")
    out = tmp_path / "run"
    arguments = ["--config", str(CONFIGS / "ptb-small.yaml"), "--output_dir", str(out)]
    arguments += ["--config", str(CONFIGS / "heads" / "taylor.yaml")]
    arguments += ["--model.embedding", "6", "--model.hidden", "6", "--train.max_steps", "2"]
    arguments += ["--train.batch", "2", "--evaluation.test_batch", "1"]
    main(["train", *arguments, "--corpus.data_dir", str(tmp_path), "--device", "cpu"])
    printed = capsys.readouterr().out
    record = json.loads((out / "results.json").read_text(encoding="utf-8"))
    assert f"taylor-softmax test perplexity: {record['test_perplexity']:.2f}" in printed
    assert f"results: {out}/results.json" in printed
    assert {path.name for path in out.iterdir()} == {"results.json", "model.pt"}
    main(["measure", str(out)])
    assert json.loads((out / "results.json").read_text())["top_10_error"] == 0.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--corpus.data_dir", "/nowhere"], "no such folder"),
        (["--train.batch", "0"], r"train\.batch=0 is out of range: expected at least 1"),
        (["--head.mapping", "sofmax"], "did you mean softmax"),
        (["--head.kind", "mixture", "--head.components", "0"], r"head\.components=0"),
        (["--head.params.r", "0.1"], "unknown parameter; softmax takes no parameters"),
        (["--model.last", "30"], r"tie: expected shape \(4, 30\)"),
        (["--train.batch", "60"], "batch=60: expected at most"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
):
    for split in ("train", "valid", "test"):
        (tmp_path / f"ptb.{split}.txt").write_text("a b <unk>\n" * 20, encoding="utf-8")
    out = tmp_path / "run"
    known = ["--config", str(CONFIGS / "ptb-small.yaml"), "--output_dir", str(out)]
    with pytest.raises(SystemExit) as ended:
        main(["train", *known, "--corpus.data_dir", str(tmp_path), *arguments])
    told = f"{ended.value.code} {capsys.readouterr().err}"
    assert re.search(message, told), told
    assert not out.exists()


def test_a_run_that_diverges_is_one_line(tmp_path: Path):
    for split in ("train", "valid", "test"):
        (tmp_path / f"ptb.{split}.txt").write_text("a b <unk> c\n" * 30, encoding="utf-8")
    small = "--model.embedding 6 --model.hidden 6 --train.batch 2 --evaluation.test_batch 1"
    wild = "--train.learning_rate 1e38 --train.clip null --train.epochs 9 --device cpu"
    known = f"--config {CONFIGS / 'ptb-small.yaml'} --output_dir {tmp_path / 'run'} {small} {wild}"
    with pytest.raises(SystemExit) as ended:
        main(["train", *known.split(), "--corpus.data_dir", str(tmp_path)])
    message = str(ended.value.code)
    told = r"error: the loss of step \d+ is (nan|inf): .* diverged; lower train\.learning_rate"
    assert re.fullmatch(told, message), message
    assert json.loads((tmp_path / "run/results.json").read_text())["status"] == "diverged"


def test_configs_check_their_numbers():
    with pytest.raises(ValueError, match=r"train\.optimizer=adam is out of range: expected sgd"):
        StageConfig(optimizer="adam", average_from=0)
    with pytest.raises(ValueError, match="only a linear or mixture head with a bias"):
        HeadConfig(start="prior", bias=False)
    with pytest.raises(ValueError, match=r"model\.heads=3 .* a divisor of model\.embedding=200"):
        ModelConfig(kind="transformer", embedding=200, heads=3)
    assert HeadConfig(mapping="sigsoftmax", learn=["bias"]).name == "sigsoftmax-bias"
    assert HeadConfig(kind="adaptive", cutoffs=[5]).name == "adaptive-softmax"
