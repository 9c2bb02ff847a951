"""Fine-tuning on a tiny model: who is compared, what is recorded and kept."""

import json
from argparse import Namespace

import pytest
import torch
from torch.utils.data import RandomSampler
from transformers import Trainer

from benchmarks import glue as suite
from benchmarks.glue import OURS, RECIPE, Glue
from engine.batches import EpochSampler
from glue.trainer import EpochTrainer
from sparse_attn.hf.patching import is_patched

NAMES = [RECIPE, OURS, "ours r-softmax"]
ROWS = 16
SCORES = {"accuracy": 0.5, "f1": 0.6, "seconds": 1.0, "examples_per_second": 4.0}


@pytest.fixture
def given(tiny_model, glue_folder):
    return ["--model", tiny_model, "--data_dir", glue_folder, "--batch_size", 8]


@pytest.fixture
def trainer(tiny_model, glue_folder, tmp_path):
    """The Trainer of a contestant; ours write into a folder of their own."""
    options = Namespace(quick=True, accuracy=False, steps=None, batch_size=8, learning_rate=1e-4)
    options.model, options.data_dir = str(tiny_model), str(glue_folder)
    (case,) = Glue().cases("cpu", options)

    def made(name):
        found = suite.trainer_of(name, case.config(name, tmp_path / "runs"))
        assert not (tmp_path / "runs").exists() or name in {
            path.name for path in (tmp_path / "runs").iterdir()
        }
        return found

    return made


def cases_of(record, group):
    return [case for case in record["cases"] if case["group"] == group]


def test_throughput(bench, given, tmp_path):
    record = bench("glue", *given)
    (case,) = record["cases"]
    assert case["settings"]["train_rows"] == ROWS
    recipe, ours, r_softmax = case["rows"]
    assert [recipe["name"], ours["name"], r_softmax["name"]] == NAMES
    for row in case["rows"]:
        rate = row["examples_per_second"]
        assert rate["n"] == row["speedup"]["n"] == 2
        assert rate["median"] == pytest.approx(1e3 * ROWS / row["ms"]["median"], rel=1e-3)
        assert 0 < rate["q1"] <= rate["median"] <= rate["q3"]
    assert recipe["speedup"]["median"] == 1
    assert recipe["padded_length"] == 128
    assert ours["padded_length"] < 128
    page = (tmp_path / "glue-cpu.md").read_text()
    assert "| ours r-softmax |" in page
    assert str(tmp_path) not in json.dumps(case["rows"]) + page


def test_the_recipe_is_that_of_transformers(trainer):
    recipe = trainer(RECIPE)
    assert type(recipe) is Trainer
    assert type(recipe._get_train_sampler(recipe.train_dataset)) is RandomSampler
    assert recipe.model.config._attn_implementation == "sdpa"
    assert not is_patched(recipe.model)
    batch = next(iter(recipe.get_train_dataloader()))
    assert batch["input_ids"].shape == batch["attention_mask"].shape == (8, 128)


@pytest.mark.parametrize("name", NAMES[1:])
def test_ours_is_the_pipeline(name, trainer):
    ours = trainer(name)
    assert type(ours) is EpochTrainer
    assert type(ours._get_train_sampler()) is EpochSampler
    assert is_patched(ours.model)


def test_everyone_trains_on_the_same_rows_from_the_same_weights(trainer):
    trainers = [trainer(name) for name in NAMES]
    rows = [
        sorted(
            tuple(ids[mask.bool()].tolist())
            for batch in each.get_train_dataloader()
            for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)
        )
        for each in trainers
    ]
    assert len(rows[0]) == ROWS
    assert rows[0] == rows[1] == rows[2]
    states = [each.model.state_dict() for each in trainers]
    for name, weight in states[0].items():
        assert all(torch.equal(state[name], weight) for state in states[1:])


def test_every_epoch_is_whole_and_learns(trainer):
    ours = trainer(OURS)
    weight = ours.model.classifier.weight
    for _ in range(2):
        before = weight.detach().clone()
        assert suite.epoch(ours) > 0
        assert ours.state.global_step == 2
        assert not torch.equal(weight, before)


@pytest.mark.slow
def test_accuracy_goes_on_and_keeps_the_rest(bench, given, monkeypatch, capsys):
    runs = bench("glue", *given, "--accuracy", "--seeds", "0")["cases"]
    assert [run["rows"][0]["name"] for run in runs] == [RECIPE, OURS]
    for run in runs:
        (row,) = run["rows"]
        assert 0 <= row["accuracy"] <= 1
        assert 0 <= row["f1"] <= 1
        assert row["examples_per_second"] > 0
        assert run["settings"]["epochs"] == 1

    done = []

    def fine_tune(name, config):
        if config.train.seed == 13 and name == OURS:
            raise KeyboardInterrupt
        done.append((name, config.train.seed))
        return SCORES

    monkeypatch.setattr(suite, "fine_tune", fine_tune)
    record = bench("glue", *given, "--accuracy", "--seeds", "0", "1")
    assert done == [(RECIPE, 1), (OURS, 1)]
    assert [case["rows"] for case in record["cases"][:2]] == [run["rows"] for run in runs]
    assert ", recorded before" in capsys.readouterr().out
    bench("glue", *given, "--accuracy", "--seeds", "0", "--epochs", "3")
    assert done[2:] == [(RECIPE, 0), (OURS, 0)]
    # every run is written at once
    with pytest.raises(KeyboardInterrupt):
        bench("glue", *given, "--accuracy", "--seeds", "13")
    record = bench("glue", *given)
    assert len(cases_of(record, "throughput")) == 1
    assert len(cases_of(record, "accuracy")) == 7


def test_whole_runs_take_all_rows():
    options = Namespace(quick=False, steps=None, epochs=None, seeds=None, batch_size=32)
    options.model, options.data_dir, options.learning_rate = "model", None, 1e-4
    (timed,) = Glue().cases("cpu", Namespace(**vars(options), accuracy=False))
    assert timed.settings["train_rows"] == 12 * 32
    whole = Glue().cases("cpu", Namespace(**vars(options), accuracy=True))
    assert all(case.settings["train_rows"] is None for case in whole)
    assert all(case.settings["epochs"] == 2 for case in whole)
    assert [case.seed for case in whole] == [0, 0, 1, 1, 2, 2]


def test_the_page_says_what_the_difference_is():
    where = {"device": "CPU", "cpu": "a CPU", "threads": 1, "commit": None, "started": "now"}
    title = "2 epochs over all rows"
    cases = [
        {"group": "accuracy", "title": title, "rows": [{"name": name, **SCORES, **row}]}
        for name, rate, scores in [(RECIPE, 5.0, (0.80, 0.82)), (OURS, 11.0, (0.82, 0.84))]
        for score in scores
        for row in [{"accuracy": score, "f1": 0.8, "examples_per_second": rate}]
    ]
    record = {"environment": {**where, "versions": {"torch": "2", "triton": None}}}
    page = Glue().page({**record, "cases": cases})
    assert "a CPU, 1 threads; torch 2; now, commit unknown." in page
    assert "| recipe | 2 | 81.0 (80.0-82.0) | 80.0 (80.0-80.0) | 5.0 (5.0-5.0) |" in page
    # standard errors of 1 point each
    assert "Ours minus recipe: +2.00 points of accuracy, standard error 1.41; 2.20 times" in page


def test_missing_data_is_one_line(bench, tiny_model, tmp_path):
    with pytest.raises(SystemExit, match=r"error: MRPC: there is no file .*train\.tsv"):
        bench("glue", "--model", tiny_model, "--data_dir", tmp_path)
    assert not list(tmp_path.iterdir())
