"""Recall and flip-flops: the texts, one run, and a sweep with its report."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from experiments.length.__main__ import EXPERIMENT, main
from experiments.length.config import AttentionConfig, LengthRunConfig, LengthSweepConfig
from experiments.length.flip_flop import IGNORE, READ, WRITE, flip_flop
from experiments.length.recall import recall
from experiments.length.run import assemble
from experiments.length.task import IGNORED
from tests.commands import python

CONFIGS = Path(__file__).parents[3] / "configs/length"
TINY: dict[str, Any] = {
    "train_length": 32,
    "lengths": [32, 64],
    "symbols": 8,
    "hidden_size": 16,
    "heads": 2,
    "steps": 4,
    "batch": 3,
    "texts": 5,
}
pytestmark = pytest.mark.usefixtures("in_this_process")


def test_queries_repeat_pairs_of_the_text() -> None:
    tokens, labels = recall(6, 64, 8, torch.Generator().manual_seed(0))
    assert tokens.shape == labels.shape == (6, 64)
    for row, wanted in zip(tokens.tolist(), labels.tolist(), strict=True):
        pairs = [(tuple(row[i : i + 2]), row[i + 2 : i + 4]) for i in range(0, 64, 4)]
        known, asked = dict(pairs[:12]), pairs[12:]
        assert len(known) == 12
        assert len({key for key, _ in asked}) == 4
        assert all(known[key] == value for key, value in asked)
        assert wanted[:48] == [IGNORED] * 48
        for place, (_, value) in enumerate(asked):
            at = 48 + 4 * place
            assert wanted[at : at + 4] == [IGNORED, IGNORED, *value]


def test_reads_are_of_the_last_written_bit() -> None:
    """A reader of the rules is never wrong, and nothing else is asked for."""
    tokens, labels = flip_flop(40, 512, 5, torch.Generator().manual_seed(0))
    assert tokens.shape == labels.shape == (40, 512)
    counts = torch.bincount(tokens[:, ::2].flatten(), minlength=5) / tokens[:, ::2].numel()
    torch.testing.assert_close(counts, torch.tensor([0.0, 0.0, 0.1, 0.8, 0.1]), atol=0.01, rtol=0.0)
    for row, wanted in zip(tokens.tolist(), labels.tolist(), strict=True):
        assert (row[0], row[-2]) == (WRITE, READ)
        memory = None
        for place in range(0, 512, 2):
            instruction, bit = row[place : place + 2]
            assert instruction in (WRITE, IGNORE, READ)
            assert bit in (0, 1)
            memory = bit if instruction == WRITE else memory
            asked = memory if instruction == READ else IGNORED
            assert wanted[place : place + 2] == [IGNORED, asked]
            assert bit == memory or instruction != READ


def test_layers_without_positions_see_all_keys() -> None:
    """The other layers see a window; only they rotate queries and keys."""
    model = assemble(LengthRunConfig(output_dir="", **TINY)).model
    first, second = model.model.layers
    assert (first.self_attn.use_rope, first.self_attn.sliding_window) == (1, 8)
    assert (second.self_attn.use_rope, second.self_attn.sliding_window) == (0, None)


@pytest.mark.parametrize("start", [1, 2])
@pytest.mark.parametrize("name", ["softmax", "entmax"])
def test_a_factor_by_query_starts_as_its_label_says(name: str, start: int) -> None:
    """At any length, and with a gradient for what makes it depend on the query."""
    content = yaml.safe_load((CONFIGS / "recall-by-query.yaml").read_text())
    attention = content["attentions"][f"scaled-{name} by query from {start}"]
    config = LengthRunConfig(output_dir="", attention=AttentionConfig(**attention), **TINY)
    model = assemble(config).model
    mapping = model.model.layers[1].self_attn.sparse_attn
    x = torch.randn(1, 2, 16, generator=torch.Generator().manual_seed(0))
    factor = mapping.factor_of_queries(x, torch.tensor([64, 1024]))
    torch.testing.assert_close(factor, torch.full_like(factor, start))
    factor.sum().backward()
    assert mapping.by_query.beta_weight.grad.abs().min() > 0


def test_a_sweep_and_its_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, folder = tmp_path / "tiny.yaml", tmp_path / "records"
    query = {"name": "scaled-entmax", "params": {"delta": 1.0, "gamma": 2.0}, "per": "query"}
    attentions = {"softmax": {}, "by query": query}
    content = {**TINY, "attentions": attentions, "seeds": 2, "first_seed": 7}
    content["output_dir"] = str(folder)
    file.write_text(yaml.safe_dump(content, sort_keys=False))
    main(["sweep", "--config", str(file)])
    assert "4/4" in capsys.readouterr().err
    main(["report", str(folder)])
    page = (folder / "report.md").read_text()
    results = EXPERIMENT.read(folder)
    base, ours = (results.finished(("recall", label)) for label in attentions)
    assert [run["config"]["seed"] for run in ours] == [7, 8]
    mean, theirs = (sum(run["accuracy"][1] for run in cell) / 2 for cell in (ours, base))
    assert f"{mean:.1f}" in next(line for line in page.splitlines() if "| by query |" in line)
    pair = next(line for line in page.splitlines() if "| by query - softmax |" in line)
    assert pair.split("|")[-2].split()[0] == f"{mean - theirs:+.1f}"
    assert "scaled-entmax, delta 1, gamma 2, per query" in page
    assert (folder / "accuracy.png").stat().st_size > 10_000


@pytest.mark.parametrize("task", ["recall", "flip-flop"])
def test_one_run(task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = [f"--{name}={value}" for name, value in {**TINY, "task": task}.items()]
    main(["train", f"--output_dir={tmp_path / 'run'}", *options, "--device=cpu"])
    results = json.loads((tmp_path / "run/results.json").read_text())
    assert f"64 tokens: {results['accuracy'][1]:.1f} %" in capsys.readouterr().out


def test_a_picture_of_a_read(tmp_path: Path) -> None:
    """It shows the model that a run leaves in its folder."""
    tiny = [f"--{name}={value}" for name, value in {**TINY, "task": "flip-flop"}.items()]
    main(["train", f"--output_dir={tmp_path / 'softmax'}", *tiny])
    picture = tmp_path / "read.png"
    python("-m", "experiments.length.read", tmp_path / "softmax", "--output", picture)
    assert picture.stat().st_size > 10_000


@pytest.mark.parametrize("file", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_configs_are_read(file: Path) -> None:
    config, _ = EXPERIMENT.program.parse(["sweep", "--config", str(file)])[1]
    assert isinstance(config, LengthSweepConfig)
    assert isinstance(config.attentions["softmax"], AttentionConfig)
    assert config.output_dir == f"runs/length/{file.stem}"
