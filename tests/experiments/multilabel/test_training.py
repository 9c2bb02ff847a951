"""One run: data, choices, saving, resuming, bad input."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.multilabel.config import MethodConfig, MultilabelRunConfig
from experiments.multilabel.data.synthetic import load_synthetic
from experiments.multilabel.run import CHECKPOINT_FILE, MultilabelRun, assemble, load, load_data
from sparse_attn.engine.config import ScheduleConfig
from tests.experiments.multilabel.tiny import DATA, METHODS, run_config, train

RAMPED = MethodConfig("r-softmax", {"r": 0.5}, schedule=ScheduleConfig("r", 0.0, end=0.5))


@pytest.fixture
def config(tmp_path: Path) -> MultilabelRunConfig:
    """Three epochs of softmax into tmp_path/run."""
    return run_config(tmp_path)


def with_method(config: MultilabelRunConfig, name: str) -> MultilabelRunConfig:
    return replace(config, method=METHODS[name])


def performed(config: MultilabelRunConfig) -> dict[str, Any]:
    """The results of a run that keeps nothing."""
    return assemble(replace(config, keep_model=False)).perform(Path())


def untimed(results: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in results.items() if k not in ("seconds", "peak_memory_mib", "config")}


def test_synthetic_rows_are_standardised_and_in_one_part_each() -> None:
    data = load_synthetic(DATA, 0)
    assert [len(part) for part in (data.train, data.validation, data.test)] == [168, 24, 48]
    inputs = torch.cat([part[:]["inputs"] for part in (data.train, data.validation, data.test)])
    assert len(inputs.unique(dim=0)) == DATA.rows
    train = data.train[:]["inputs"]
    torch.testing.assert_close(train.mean(0), torch.zeros(12), atol=1e-5, rtol=0)
    torch.testing.assert_close(train.std(0, correction=0), torch.ones(12))
    labels = data.train[:]["labels"]
    assert labels.dtype == torch.float32
    assert set(labels.unique().tolist()) == {0.0, 1.0}
    assert not labels.any(-1).all()  # some rows have none
    assert torch.equal(load_synthetic(DATA, 0).test[:]["inputs"], data.test[:]["inputs"])
    assert not torch.equal(load_synthetic(DATA, 1).test[:]["inputs"], data.test[:]["inputs"])


def test_a_feature_that_never_occurs_stays_finite() -> None:
    rare = replace(DATA, length=1, features=100)
    assert load_synthetic(rare, 0).test[:]["inputs"].isfinite().all()


def test_training_stops_after_epochs_without_a_better_score(config: MultilabelRunConfig) -> None:
    stopped = replace(config, train=replace(config.train, epochs=500, stop_after=4))
    results = performed(stopped)
    assert len(results["history"]["score"]) == results["best_epoch"] + 4 < 500


@pytest.mark.parametrize("name", METHODS)
def test_every_method_learns(config: MultilabelRunConfig, name: str) -> None:
    longer = replace(config, train=replace(config.train, epochs=15))
    results = performed(with_method(longer, name))
    losses = results["history"]["loss"]
    assert losses[-1] < losses[0]
    # half of all labels apply: deciding on all of them gives about 2/3
    assert results["f1"]["micro"] > 0.62
    assert results["score"] == pytest.approx(max(results["history"]["score"]), abs=1e-5)
    assert len(json.dumps(results)) < 10_000


def test_methods_start_from_the_same_backbone_on_the_same_rows(config: MultilabelRunConfig) -> None:
    runs = [assemble(with_method(config, name)) for name in ("softmax", "r-softmax", "sigmoid")]
    first = next(runs[0].model.parameters())
    for run in runs[1:]:
        assert torch.equal(next(run.model.parameters()), first)
        assert run.data is runs[0].data


def test_epoch_and_threshold_are_chosen_on_validation_rows(config: MultilabelRunConfig) -> None:
    training = assemble(replace(config, keep_model=False))
    results = training.perform(Path())
    found = results["validation_by_threshold"]
    assert list(found) == config.method.thresholds
    assert results["threshold"] == max(found, key=found.get) == training.head.threshold
    assert results["score"] == found[results["threshold"]]
    assert results["micro_by_threshold"][results["threshold"]] == results["f1"]["micro"]
    scores = results["history"]["score"]
    assert results["best_epoch"] == scores.index(max(scores)) + 1


def test_the_test_set_is_looked_at_once(
    config: MultilabelRunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []
    predict = MultilabelRun.predict
    monkeypatch.setattr(
        MultilabelRun, "predict", lambda self, rows: looks.append(rows) or predict(self, rows)
    )
    training = assemble(replace(config, keep_model=False))
    training.perform(Path())
    assert [rows is training.data.test for rows in looks] == [False] * 4 + [True]


@pytest.mark.parametrize("method", [METHODS["softmax"], METHODS["t-softmax"], RAMPED])
def test_a_run_writes_what_loads_again(config: MultilabelRunConfig, method: MethodConfig) -> None:
    results = train(replace(config, method=method))
    folder = Path(config.output_dir)
    assert json.loads((folder / "results.json").read_text())["f1"] == results["f1"]
    assert not (folder / CHECKPOINT_FILE).exists()
    model = load(folder)
    if method is RAMPED:
        assert results["parameters"] == {"r": 0.5}
    assert model.head.threshold == results["threshold"]
    rows = load_data(config, 0).test[:]
    with torch.no_grad():
        log_p = model(inputs=rows["inputs"]).logits
    decided = model.head.decide(log_p)
    assert decided.sum(-1).float().mean().item() == results["decided_labels"]


@pytest.mark.parametrize("name", ["softmax", "r-softmax"])
def test_a_run_that_was_cut_off_goes_on_exactly(
    config: MultilabelRunConfig, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = performed(with_method(config, name))
    train_epoch = MultilabelRun.train_epoch

    def cut(self: MultilabelRun, epoch: int) -> dict[str, float]:
        if epoch == 2:
            raise KeyboardInterrupt
        return train_epoch(self, epoch)

    with monkeypatch.context() as patch:
        patch.setattr(MultilabelRun, "train_epoch", cut)
        with pytest.raises(KeyboardInterrupt):
            train(with_method(config, name))
    assert (Path(config.output_dir) / CHECKPOINT_FILE).exists()
    with pytest.raises(ValueError, match="--resume"):
        train(with_method(config, name))
    resumed = train(replace(with_method(config, name), resume=True))
    assert untimed(resumed) == untimed(whole)


def test_the_best_epoch_has_its_value_of_a_scheduled_parameter(
    config: MultilabelRunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no weight, so that bringing back the weights of an epoch leaves it where it ended."""
    method = MethodConfig("r-softmax", {"r": 0.8}, schedule=ScheduleConfig("r", 0.0))
    config = replace(config, method=method)
    evaluate, found = MultilabelRun.evaluate, []

    def falling(self: MultilabelRun) -> dict[str, float]:
        found.append(evaluate(self)["score"])
        return {"score": 0.5 if len(found) == 2 else 0.1}

    monkeypatch.setattr(MultilabelRun, "evaluate", falling)
    results = performed(config)
    assert results["best_epoch"] == 2
    assert results["parameters"] == pytest.approx({"r": 0.8 * 2 / config.train.epochs})
    assert max(results["validation_by_threshold"].values()) == found[1]
