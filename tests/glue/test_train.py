"""Whole runs on a tiny model: every task, what is written, resuming, loading again."""

import json
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer

from glue.config import RunConfig, TrainConfig
from glue.model import encode
from glue.scoring import compute_metrics
from glue.train import warn_of_slow_bf16
from glue.trainer import training_arguments
from sparse_attn import load_pretrained, patch_model
from sparse_attn.engine.batches import EpochSampler
from sparse_attn.evaluation.data import load_task
from sparse_attn.evaluation.tasks import TASKS, get_task
from sparse_attn.hf.layers import attention_layers
from tests.commands import ROOT
from tests.glue.running import Asked, prepared, trained
from tests.marks import slow

R_SOFTMAX = ["--config", str(ROOT / "configs/mapping/r-softmax.yaml")]


@pytest.mark.parametrize("task", ["MRPC", "STS-B", *slow(*sorted({*TASKS} - {"MRPC", "STS-B"}))])
def test_every_task_runs_and_writes_its_results(task: str, asked: Asked, tmp_path: Path) -> None:
    trained(prepared(asked(tmp_path / "run", "--task", task, *R_SOFTMAX)))
    results = json.loads((tmp_path / "run/results.json").read_text())
    splits = TASKS[task].dev_splits
    assert results["rows"] == {"train": 24, **dict.fromkeys(splits, 7)}
    names = {*TASKS[task].metrics, "loss"}
    if len(splits) > 1:
        names = {f"{split}/{name}" for split in splits for name in names}
    assert set(results["metrics"]) == names
    assert [entry["epoch"] for entry in results["per_epoch"]] == [1.0, 2.0]
    for name in names:
        assert results["metrics"][name] == pytest.approx(results["per_epoch"][-1][name])
    for split in splits:
        assert len(results["sparsity"][split]["per_layer"]) == 2
        assert 0.1 < results["sparsity"][split]["mean"] < 0.3
    assert results["seed"] == 0
    assert results["versions"]["torch"] == version("torch")
    assert results["config"]["mapping"]["params"] == {"r": 0.15}
    assert results["examples_per_second"] > 0


def test_softmax_has_no_zeros_and_a_finished_run_keeps_its_model_alone(
    asked: Asked, tmp_path: Path
) -> None:
    results = trained(prepared(asked(tmp_path)))
    assert results["sparsity"]["dev"] == {
        "mean": 0.0,
        "per_layer": [0.0, 0.0],
        "per_head": [[0.0, 0.0], [0.0, 0.0]],
    }
    kept = {path.name for path in tmp_path.iterdir()}
    assert kept == {"config.json", "results.json", "model", "runs"}


def test_saved_model_gives_the_same_metrics(
    asked: Asked, glue_folder: Path, tmp_path: Path
) -> None:
    results = trained(prepared(asked(tmp_path / "run", *R_SOFTMAX)))
    folder = tmp_path / "run/model"
    model = load_pretrained(AutoModelForSequenceClassification, folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    task = get_task("RTE")
    dev = encode(load_task(task, glue_folder), tokenizer, 128)["dev"]
    settings = training_arguments(
        RunConfig(
            task="RTE",
            model=str(folder),
            output_dir=str(tmp_path / "again"),
            keep_model=False,
        )
    )
    again = Trainer(
        model,
        settings,
        eval_dataset=dev,
        processing_class=tokenizer,
        compute_metrics=compute_metrics(task),
    ).evaluate()
    for name in ("accuracy", "loss"):
        assert again[f"eval_{name}"] == pytest.approx(results["metrics"][name], abs=1e-6)


@pytest.mark.parametrize(
    ("precision", "supported", "warned"), [("bf16", False, 1), ("bf16", True, 0), ("no", False, 0)]
)
def test_slow_bf16_is_told(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    precision: str,
    supported: bool,
    warned: int,
) -> None:
    monkeypatch.setattr("torch.accelerator.is_available", lambda: False)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: supported)
    warn_of_slow_bf16(TrainConfig(mixed_precision=precision))
    assert caplog.text.count("use --train.mixed_precision no") == warned


def test_a_converted_model_keeps_its_mappings(asked: Asked, tmp_path: Path) -> None:
    plain = asked(tmp_path / "plain")
    base = plain[plain.index("--model") + 1]
    model = AutoModelForSequenceClassification.from_pretrained(base)
    patch_model(model, "entmax", alpha=1.7)
    patch_model(model, "entmax", alpha=1.3, layers=[1])
    model.save_pretrained(tmp_path / "converted")
    AutoTokenizer.from_pretrained(base).save_pretrained(tmp_path / "converted")
    here = ["--model", str(tmp_path / "converted")]
    trained(prepared(asked(tmp_path / "run", *here, "--mapping", "saved")))
    kept = load_pretrained(AutoModelForSequenceClassification, tmp_path / "run/model")
    assert [layer.module.sparse_attn.alpha for layer in attention_layers(kept)] == [1.7, 1.3]
    with pytest.raises(ValueError, match="mappings of its own; --mapping saved keeps"):
        prepared(asked(tmp_path / "other", *here))
    with pytest.raises(ValueError, match="was saved with softmax"):
        prepared(asked(tmp_path / "other", "--mapping", "saved"))
    with pytest.raises(ValueError, match="takes no other options"):
        prepared(asked(tmp_path / "other", *here, "--mapping", "saved", "--mapping.layers", "[0]"))


@pytest.mark.slow
def test_resume_in_the_middle_of_an_epoch_is_exact(
    asked: Asked, tmp_path: Path, kept_checkpoints: None
) -> None:
    def step(*resume: str) -> dict[str, torch.Tensor]:
        run = prepared(asked(tmp_path, *R_SOFTMAX, *resume))
        run.trainer.args.save_strategy = "steps"
        run.trainer.args.save_steps = 4  # of 3 an epoch
        run.trainer.args.save_total_limit = None
        trained(run)
        return load_file(tmp_path / "model/model.safetensors")

    whole = step()
    (tmp_path / "results.json").unlink()
    for path in tmp_path.glob("checkpoint-*"):
        if path.name != "checkpoint-4":
            (path / "trainer_state.json").unlink()
    resumed = step("--resume")
    for name, tensor in whole.items():
        assert torch.equal(tensor, resumed[name]), name


def test_sampler_orders_by_seed_and_epoch_alone() -> None:
    lengths = torch.randint(3, 60, (100,)).tolist()

    def order(seed: int, epoch: int) -> list[int]:
        sampler = EpochSampler(lengths, 8, seed)
        sampler.set_epoch(epoch)
        return list(sampler)

    assert order(1, 2) == order(1, 2)
    assert sorted(order(1, 2)) == list(range(100))
    assert order(1, 2) != order(1, 3)
    assert order(1, 2) != order(2, 2)


def test_schedule_is_in_the_log(asked: Asked, tmp_path: Path) -> None:
    run = prepared(asked(tmp_path / "run", *R_SOFTMAX))
    trained(run)
    values = [
        line["sparsity/r"] for line in run.trainer.state.log_history if "eval_dev_loss" in line
    ]
    assert values == pytest.approx([0.075, 0.15])
    events = EventAccumulator(str(next((tmp_path / "run/runs").iterdir())))
    events.Reload()
    # Trainer prefixes what it does not know
    assert events.Scalars("train/sparsity/r")[-1].value == pytest.approx(0.15)
