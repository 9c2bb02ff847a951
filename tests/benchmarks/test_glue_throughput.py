"""`python -m benchmarks.glue` on a tiny model: who is compared, what is recorded and kept."""

import json

import pytest
import torch
from torch.utils.data import RandomSampler
from transformers import Trainer

from benchmarks import glue as command
from benchmarks.glue_tables import OURS, RECIPE, markdown
from glue.trainer import EpochTrainer
from pipeline.batches import EpochSampler
from sparse_attn.patching import is_patched

NAMES = [RECIPE, "ours softmax", "ours r-softmax"]
ROWS = 16


@pytest.fixture
def given(tiny_model, glue_folder, tmp_path):
    """Arguments of the command, and what it has written."""

    class Given:
        def __init__(self):
            self.out, self.folder = tmp_path / "out", tmp_path / "runs"
            self.arguments = ["--quick", "--model", str(tiny_model), "--data_dir", str(glue_folder)]
            self.arguments += ["--batch_size", "8", "--out", str(self.out)]

        def run(self, *more):
            command.main([*self.arguments, *more])
            return json.loads((self.out / "glue-throughput.json").read_text())

        def trainer(self, name, **train):
            options = command._parser().parse_args(self.arguments)
            command._complete(options)
            assert options.train_rows == ROWS
            config = command.configured(name, options, self.folder, **train)
            return command.trainer_of(name, config)

    return Given()


def test_throughput_end_to_end(given, capsys):
    record = given.run()
    found = record["throughput"]
    assert [row["name"] for row in found["rows"]] == NAMES
    assert (found["rounds"], found["steps"]) == (2, 2)
    assert found["settings"]["train_rows"] == ROWS
    for row in found["rows"]:
        assert row["examples_per_second"]["n"] == row["to_recipe"]["n"] == 2
        assert row["examples_per_second"]["median"] > 0
    recipe, ours, _ = found["rows"]
    assert recipe["to_recipe"]["median"] == 1
    assert recipe["padded_length"] == 128
    assert ours["padded_length"] < 128
    assert found["environment"]["threads"] == torch.get_num_threads()
    table = (given.out / "glue-throughput.md").read_text()
    assert table == markdown(record)
    assert "| ours r-softmax |" in table
    assert table in capsys.readouterr().out
    assert str(given.folder.parent) not in json.dumps(found["rows"]) + table


def test_the_recipe_is_that_of_transformers(given):
    trainer = given.trainer(RECIPE, epochs=1.0)
    assert type(trainer) is Trainer
    assert type(trainer._get_train_sampler(trainer.train_dataset)) is RandomSampler
    assert trainer.model.config._attn_implementation == "sdpa"
    assert not is_patched(trainer.model)
    batch = next(iter(trainer.get_train_dataloader()))
    assert batch["input_ids"].shape == batch["attention_mask"].shape == (8, 128)


@pytest.mark.parametrize("name", NAMES[1:])
def test_ours_is_the_pipeline(given, name):
    trainer = given.trainer(name, epochs=1.0)
    assert type(trainer) is EpochTrainer
    assert type(trainer._get_train_sampler()) is EpochSampler
    assert is_patched(trainer.model)
    assert not given.folder.exists() or {p.name for p in given.folder.iterdir()} == {name}


def test_everyone_trains_on_the_same_rows_from_the_same_weights(given):
    trainers = [given.trainer(name, epochs=1.0) for name in NAMES]
    rows = []
    for trainer in trainers:
        batches = list(trainer.get_train_dataloader())
        masks = [b["input_ids"][i][b["attention_mask"][i].bool()]
                 for b in batches for i in range(len(b["input_ids"]))]  # fmt: skip
        rows.append(sorted(tuple(ids.tolist()) for ids in masks))
    assert len(rows[0]) == ROWS
    assert rows[0] == rows[1] == rows[2]
    states = [trainer.model.state_dict() for trainer in trainers]
    for name, weight in states[0].items():
        assert all(torch.equal(state[name], weight) for state in states[1:])


def test_every_epoch_is_whole_and_learns(given):
    """Warming up for some steps must leave no schedule behind that ends there."""
    trainer = given.trainer("ours softmax", epochs=1.0)
    weight = trainer.model.classifier.weight
    assert command.epoch(trainer, 1) > 0
    assert trainer.state.global_step == 1
    for _ in range(2):
        before = weight.detach().clone()
        assert command.epoch(trainer) > 0
        assert trainer.state.global_step == 2
        assert not torch.equal(weight, before)


def test_turns(monkeypatch):
    """Warm-ups first; then everyone once a round, with the seconds of that turn."""
    calls = []

    def epoch(trainer, steps=-1):
        calls.append((trainer, steps))
        return len(calls)

    monkeypatch.setattr(command, "epoch", epoch)
    found = command.take_turns({"a": "A", "b": "B"}, 3)
    assert calls[:2] == [("A", command.WARM_UP), ("B", command.WARM_UP)]
    turns = [trainer for trainer, steps in calls[2:] if steps == -1]
    assert [sorted(turns[i : i + 2]) for i in (0, 2, 4)] == [["A", "B"]] * 3
    times = sorted(ms for m in found.values() for ms in m.samples.values())
    assert times == [1e3 * n for n in range(3, 9)]


def test_accuracy_end_to_end_and_goes_on(given, monkeypatch, capsys):
    record = given.run("--accuracy", "--seeds", "0")
    runs = record["accuracy"]
    assert [(run["name"], run["seed"]) for run in runs] == [(RECIPE, 0), (OURS, 0)]
    for run in runs:
        assert 0 <= run["accuracy"] <= 1
        assert 0 <= run["f1"] <= 1
        assert run["examples_per_second"] > 0
        assert run["settings"]["epochs"] == 1

    done = []

    def fine_tune(name, config):
        done.append((name, config.train.seed))
        return {"accuracy": 0.5, "f1": 0.6, "seconds": 1.0, "examples_per_second": 4.0}

    monkeypatch.setattr(command, "fine_tune", fine_tune)
    record = given.run("--accuracy", "--seeds", "0", "1")
    assert done == [(RECIPE, 1), (OURS, 1)]
    assert record["accuracy"][:2] == runs
    assert "recipe, seed 0: recorded before" in capsys.readouterr().out
    given.run("--accuracy", "--seeds", "0", "--epochs", "3")
    assert done[2:] == [(RECIPE, 0), (OURS, 0)]
    # and the other part is kept by each
    assert given.run().keys() == {"accuracy", "throughput"}
    assert given.run("--accuracy").keys() == {"accuracy", "throughput"}


def test_accuracy_is_written_after_every_run(given, monkeypatch):
    def fine_tune(name, config):
        if name == OURS:
            raise KeyboardInterrupt
        return {"accuracy": 0.5, "f1": 0.6, "seconds": 1.0, "examples_per_second": 4.0}

    monkeypatch.setattr(command, "fine_tune", fine_tune)
    with pytest.raises(KeyboardInterrupt):
        given.run("--accuracy")
    record = json.loads((given.out / "glue-throughput.json").read_text())
    assert [run["name"] for run in record["accuracy"]] == [RECIPE]


def test_whole_runs_take_all_rows():
    options = command._parser().parse_args(["--accuracy"])
    command._complete(options)
    assert (options.train_rows, options.epochs, options.seeds) == (None, 2.0, [0, 1, 2])
    options = command._parser().parse_args([])
    command._complete(options)
    assert (options.train_rows, options.rounds, options.steps) == (12 * 32, 3, 12)


def test_the_table_says_what_the_difference_is():
    where = {"device": "CPU", "cpu": "a CPU", "cuda": None, "threads": 1, "commit": None}
    where |= {"started": "now", "versions": {"torch": "2", "transformers": "5"}}
    settings = {"train_rows": None, "batch_size": 32, "learning_rate": 1e-4, "epochs": 2.0}
    runs = [
        {"name": name, "seed": seed, "settings": settings, "environment": where, "f1": 0.8,
         "accuracy": score, "examples_per_second": rate}
        for name, rate, scores in [(RECIPE, 5.0, (0.80, 0.82)), (OURS, 11.0, (0.82, 0.84))]
        for seed, score in enumerate(scores)
    ]  # fmt: skip
    table = markdown({"accuracy": runs})
    assert "| recipe | 2 | 81.0 (80.0-82.0) | 80.0 (80.0-80.0) | 5.0 (5.0-5.0) |" in table
    assert "2 epochs over all rows, batches of 32, learning rate 0.0001" in table
    # standard errors of 1 point each
    assert "Ours minus recipe: +2.00 points of accuracy, standard error 1.41; 2.20 times" in table


def test_missing_data_is_one_line(given, tmp_path, capsys):
    with pytest.raises(SystemExit, match=r"error: MRPC: there is no file .*train\.tsv"):
        given.run("--data_dir", str(tmp_path))
    assert not given.out.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rounds", "0"], "expected a number from 1 on"),
        (["--epochs", "-1"], "expected a number above 0"),
        (["--seeds"], "--seeds"),
        (["--speed"], "unrecognized arguments"),
    ],
)
def test_bad_arguments(given, arguments, message, capsys):
    with pytest.raises(SystemExit) as error:
        given.run(*arguments)
    assert error.value.code == 2
    assert message in capsys.readouterr().err
