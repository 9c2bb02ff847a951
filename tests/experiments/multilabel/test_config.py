"""What a config refuses, and what makes two runs the same."""

import re
from collections.abc import Callable
from dataclasses import asdict, replace

import pytest

from experiments.multilabel.config import MethodConfig, RunConfig, SweepConfig, TrainConfig
from experiments.multilabel.data.config import DataConfig, ImageConfig, SyntheticConfig
from pipeline.config import ScheduleConfig


def sweep(**changes: object) -> SweepConfig:
    given: dict[str, object] = {
        "output_dir": "somewhere",
        "data": {"one": DataConfig(synthetic=SyntheticConfig())},
        "methods": {"softmax": MethodConfig()},
        "learning_rates": [0.001],
    }
    return SweepConfig(**{**given, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: RunConfig(output_dir="x"), "data: expected one of synthetic, images, text"),
        (lambda: DataConfig(), "got none"),
        (lambda: SyntheticConfig(classes=1), "synthetic.classes=1"),
        (lambda: SyntheticConfig(classes=10, labels=11), "1 to 10"),
        (lambda: SyntheticConfig(labels=0), "synthetic.labels=0"),
        (lambda: SyntheticConfig(length=0), "synthetic.length=0"),
        (lambda: SyntheticConfig(test=0.95), "synthetic.test=0.95"),
        (lambda: SyntheticConfig(validation=0.0), "synthetic.validation=0.0"),
        (lambda: SyntheticConfig(rows=3), "synthetic.rows=3"),
        (lambda: TrainConfig(epochs=0), "train.epochs=0"),
        (lambda: TrainConfig(learning_rate=float("inf")), "train.learning_rate=inf"),
        (lambda: TrainConfig(batch_size=0), "train.batch_size=0"),
        (lambda: TrainConfig(seed=-1), "train.seed=-1"),
        (lambda: TrainConfig(workers=-1), "train.workers=-1"),
        (lambda: sweep(data={}), "data={}"),
        (lambda: sweep(methods={"sparsemax": MethodConfig("sparsemax")}), "'softmax' among them"),
        (lambda: sweep(learning_rates=[]), "learning_rates="),
        (lambda: sweep(learning_rates=[0.1, 0.1]), "each once"),
        (lambda: sweep(learning_rates=[0.1, -1.0]), "train.learning_rate=-1.0"),
        (lambda: sweep(seeds=0), "seeds=0"),
        (lambda: sweep(train=TrainConfig(seed=3)), "give seeds"),
        (lambda: sweep(train=TrainConfig(learning_rate=0.5)), "give learning_rates"),
        (lambda: sweep(data={"a/b": DataConfig(synthetic=SyntheticConfig())}), "'a/b'"),
    ],
)
def test_bad_values_are_named(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        make()


def test_the_same_run_wherever_it_lies_and_however_it_is_read(config: RunConfig) -> None:
    elsewhere = replace(
        config,
        output_dir="elsewhere",
        keep_model=False,
        resume=True,
        train=replace(config.train, workers=2),
    )
    assert config.comparable() == elsewhere.comparable()
    assert config.comparable() != replace(config, method=MethodConfig("entmax")).comparable()


def test_a_config_comes_back_from_its_dict(config: RunConfig) -> None:
    method = MethodConfig(
        "r-softmax", {"r": 0.5}, schedule=ScheduleConfig("r", 0.0, "cosine"), thresholds=[0.1]
    )
    scheduled = replace(config, method=method)
    assert RunConfig.from_dict(asdict(scheduled)) == scheduled


def test_a_run_of_a_sweep_has_its_data_method_rate_and_seed() -> None:
    run = sweep(train=TrainConfig(epochs=7)).run("one", "softmax", 0.25, 3)
    assert run.synthetic == SyntheticConfig()
    assert run.train == TrainConfig(epochs=7, learning_rate=0.25, seed=3)
    assert not run.keep_model


def test_where_files_lie_does_not_matter_to_a_sweep() -> None:
    def images(folder: str) -> dict[str, DataConfig]:
        return {"voc": DataConfig(images=ImageConfig("voc2007", data_dir=folder))}

    here, there = sweep(data=images("a")), sweep(data=images("b"), train=TrainConfig(workers=2))
    assert here.content() == there.content()
    first, second = (s.run("voc", "softmax", 0.1, 0) for s in (here, there))
    assert first.comparable() == second.comparable()
    assert second.images is not None
    assert second.images.data_dir == "b"
