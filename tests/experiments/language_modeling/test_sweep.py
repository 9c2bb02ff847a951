"""Sweeps over heads, learning rates and seeds: what is planned, done and reported."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.language_modeling.__main__ import EXPERIMENT, main
from experiments.language_modeling.config import LanguageSweepConfig, MeasuresConfig
from experiments.language_modeling.report.runs import cells_of
from experiments.language_modeling.sections import (
    CorpusConfig,
    HeadConfig,
    ModelConfig,
    StageConfig,
)
from sparse_attn.engine.sweep.config import FIRST_TRIAL_SEED
from sparse_attn.engine.sweep.records import FOLDER
from tests.experiments.language_modeling.toys import write_ptb

RATES = [0.01, 0.1]


@pytest.fixture
def sweep(tmp_path: Path) -> LanguageSweepConfig:
    line = "the cat <unk> the dog and the cat ran to the mat\n the end\n"
    return LanguageSweepConfig(
        output_dir=str(tmp_path / "sweep"),
        corpus=CorpusConfig("ptb", write_ptb(tmp_path / "ptb", line * 4)),
        model=ModelConfig(embedding=6, hidden=6, layers=1),
        heads={"softmax": HeadConfig(), "taylor": HeadConfig(mapping="taylor-softmax")},
        learning_rates=RATES,
        seeds=3,
        train=StageConfig(optimizer="adam", batch=4, bptt=7),
        measures=MeasuresConfig(rank_contexts=20),
        device="cpu",
    )


def test_places_do_not_decide_a_run(sweep: LanguageSweepConfig) -> None:
    moved = replace(
        sweep, corpus=CorpusConfig("ptb", "elsewhere"), output_dir="other", device="auto", chunk=9
    )
    hashes = [
        {run.hash for cell in EXPERIMENT.plan(config).first.values() for run in cell}
        for config in (sweep, moved)
    ]
    assert hashes[0] == hashes[1]
    assert moved.content() == sweep.content()


@pytest.mark.slow
def test_a_sweep_from_the_command_line_to_the_page(
    sweep: LanguageSweepConfig,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    in_this_process: None,
) -> None:
    config = tmp_path / "heads.json"
    config.write_text(json.dumps(sweep.content() | {"output_dir": sweep.output_dir}))
    words = ["--corpus.data_dir", str(sweep.corpus.data_dir), "--device", "cpu"]
    main(["sweep", "--config", str(config), *words])
    records = EXPERIMENT.read(Path(sweep.output_dir)).records
    assert [record.status for record in records] == ["finished"] * 10
    ranks = {record.stage: record.results.get("rank") for record in records}
    assert ranks["trial"] is None
    assert ranks["final"]["contexts"] == 20
    trials = [record.config for record in records if record.stage == "trial"]
    assert sorted(trial["train"]["learning_rate"] for trial in trials) == [0.01, 0.01, 0.1, 0.1]
    assert {trial["seed"] for trial in trials} == {FIRST_TRIAL_SEED}
    main(["report", sweep.output_dir])
    results = EXPERIMENT.read(Path(sweep.output_dir))
    assert (results.expected, results.mappings) == (10, ["softmax", "taylor"])
    page = (Path(sweep.output_dir) / "report.md").read_text()
    assert "Runs, trials included: 10 finished of 10." in page
    header, _, softmax, taylor = next(
        block for block in page.split("\n\n") if block.startswith("| Head | Runs")
    ).splitlines()
    assert "| 95 % interval | p | Holm p | Verdict | Detectable |" in header
    assert softmax.startswith("| softmax | 3 | 0 | 0 |")
    assert taylor.split(" | ")[1] == "3"
    assert "| softmax | 0.01: " in page
    # as a folder of runs, of which the trials do not count
    single = EXPERIMENT.read(tmp_path)
    assert [len(single.finished(cell)) for cell in cells_of(single, "sweep")] == [3, 3]
    # a trial that failed leaves its head without runs that count until it is done again
    trial = next(record for record in records if record.stage == "trial")
    for file in Path(sweep.output_dir, FOLDER).glob(f"*{trial.mapping}.trial0*/results.json"):
        file.unlink()
    main(["report", sweep.output_dir])
    assert capsys.readouterr().out.count(f"\n{trial.mapping} ") == 1
