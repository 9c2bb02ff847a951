"""Several processes train the model that one process trains: DDP, FSDP, an uneven last batch.

Dropout is 0 here: every process draws masks of its own, so that with dropout two processes are
another random run than one, as two seeds are.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import transformers
from accelerate.commands.config import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from packaging.version import Version
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification

from sparse_attn import load_pretrained
from tests.commands import ROOT, wait_for
from tests.glue.make_glue import write_task
from tests.glue.running import prepared, trained

CONFIGS = sorted((ROOT / "configs/accelerate").glob("*.yaml"))
TWO = ["torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
# A mapping with exact zeros, so that what is counted of them shows.
LEARNED = ["--mapping.name", "r-softmax", "--mapping.params.r", "0.3", "--mapping.learn", "[r]"]
# One value for layer 1 alone: shape [1], and a layer without any.
BY_LAYER = [*LEARNED, "--mapping.layers", "[1]"]
BY_HEAD = [*LEARNED, "--mapping.per", "head"]
# accelerate knows FSDP for GPUs alone, and elsewhere falls back to DDP without a word. Told that
# gloo is the backend of GPUs, it goes the way it goes there.
FSDP_ON_CPU = """
import sys
from accelerate.state import PartialState
from accelerate.utils import DistributedType
import sparse_attn.hf.checkpoints
from glue.__main__ import main
sparse_attn.hf.checkpoints.remove_checkpoints = lambda folder: None  # a test looks at them
PartialState._prepare_backend = lambda *args, **kwargs: ("gloo", DistributedType.MULTI_GPU)
main(sys.argv[1:])
"""


def kill(launcher: subprocess.Popen[str]) -> None:
    """The launcher with its workers, which have sessions of their own and would go on."""
    family = [psutil.Process(launcher.pid), *psutil.Process(launcher.pid).children(recursive=True)]
    for process in family:
        process.kill()


class Runs:
    """Runs of one model on one task, each launched once, by what was asked of it."""

    def __init__(self, folder: Path, tiny_model: Path) -> None:
        self.folder = folder
        self.model = folder / "model"
        shutil.copytree(tiny_model, self.model)
        config = json.loads((self.model / "config.json").read_text())
        config |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        (self.model / "config.json").write_text(json.dumps(config))
        self.fsdp = folder / "fsdp_on_cpu.py"
        self.fsdp.write_text(FSDP_ON_CPU)

    def arguments(self, name: str, rows: int, batch_size: int, *more: str) -> list[str]:
        data = self.folder / f"glue-{rows}"
        if not data.exists():
            write_task(data, "RTE", train=rows, dev=7)
        given = {"task": "RTE", "model": self.model, "data_dir": data}
        given |= {"output_dir": self.folder / name, "train.batch_size": batch_size}
        given |= {"train.epochs": 5, "train.learning_rate": "5e-3"}
        options = [x for key, value in given.items() for x in (f"--{key}", str(value))]
        return ["train", *options, *more]

    def start(self, launch: list[str], arguments: list[str], **env: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", *launch, *arguments],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **env},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def finish(self, name: str, process: subprocess.Popen[str]) -> dict[str, Any]:
        try:
            _, errors = process.communicate(timeout=200)
        finally:
            if process.poll() is None:
                kill(process)
        assert process.returncode == 0, errors
        return json.loads((self.folder / name / "results.json").read_text())

    def run(self, name: str, launch: list[str], rows: int, size: int, *more: str) -> None:
        """In this process, unless something launches it."""
        if (self.folder / name / "results.json").exists():
            return
        arguments = self.arguments(name, rows, size, *more)
        if launch:
            self.finish(name, self.start(launch, arguments))
        else:
            trained(prepared(arguments))

    def run_fsdp(self, name: str, rows: int, size: int, *more: str) -> dict[str, Any]:
        env = {
            "ACCELERATE_TORCH_DEVICE": "cpu",
            "ACCELERATE_USE_FSDP": "true",
            "FSDP_VERSION": "2",
            "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
            # Trainer saves nothing of it; the pipeline saves whole all the same
            "FSDP_STATE_DICT_TYPE": "SHARDED_STATE_DICT",
        }
        launch = [*TWO, str(self.fsdp)]
        return self.finish(name, self.start(launch, self.arguments(name, rows, size, *more), **env))

    def weights(self, name: str) -> dict[str, torch.Tensor]:
        return load_file(self.folder / name / "model/model.safetensors")

    def assert_equal(self, one: str, two: str) -> None:
        results = [json.loads((self.folder / n / "results.json").read_text()) for n in (one, two)]
        assert [r["processes"] for r in results] == [1, 2]
        for key in ("steps", "rows", "sparsity"):
            assert results[0][key] == results[1][key], key
        assert results[0]["sparsity"]["dev"]["mean"] > 0.1
        assert results[0]["metrics"]["accuracy"] == results[1]["metrics"]["accuracy"]
        assert results[1]["metrics"] == pytest.approx(results[0]["metrics"], rel=1e-5)
        assert results[0]["predictions"] == results[1]["predictions"]
        assert len(results[1]["predictions"]["dev"]["labels"]) == 7
        assert len(results[0]["log"]) > 1
        for lines in zip(results[0]["log"], results[1]["log"], strict=True):
            assert lines[1] == pytest.approx(lines[0], rel=1e-5)
        for epochs in zip(results[0]["per_epoch"], results[1]["per_epoch"], strict=True):
            assert epochs[1] == pytest.approx(epochs[0], rel=1e-5)
        weights = [self.weights(one), self.weights(two)]
        assert weights[0].keys() == weights[1].keys()
        for name, tensor in weights[0].items():
            torch.testing.assert_close(weights[1][name], tensor, rtol=1e-4, atol=2e-5, msg=name)

    def assert_learned(self, name: str, shape: tuple[int], layers: int) -> None:
        """The learned values have moved, and load as they were saved."""
        model = load_pretrained(AutoModelForSequenceClassification, self.folder / name / "model")
        learned = {n: p for n, p in model.named_parameters() if n.endswith("raw_r")}
        assert [p.shape for p in learned.values()] == [shape] * layers
        saved = self.weights(name)
        for key, parameter in learned.items():
            assert torch.equal(saved[key], parameter)
            assert ((parameter - torch.tensor(0.3).logit()).abs() > 1e-3).all()


@pytest.fixture(scope="module")
def runs(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("processes"), tiny_model)


@pytest.mark.slow
def test_uneven_last_batch_counts_once(runs: Runs) -> None:
    """29 rows: the last step has 5, so 4 and 1; learned values of shape [heads].

    Launched as a user does, with the config file.
    """
    launch = ["accelerate.commands.launch", "--config_file", f"{ROOT}/configs/accelerate/cpu.yaml"]
    runs.run("one-29", [], 29, 8, *BY_HEAD)
    runs.run("two-29", [*launch, "-m", "glue"], 29, 4, *BY_HEAD)
    runs.assert_equal("one-29", "two-29")
    runs.assert_learned("two-29", (2,), layers=2)


@pytest.mark.slow
def test_fsdp_shards_learned_values(runs: Runs) -> None:
    """A value of shape [1] lies on the first of two processes, the second holds nothing of it."""
    runs.run("one-26", [], 26, 8, *BY_LAYER)
    runs.run_fsdp("fsdp-26", 26, 4, *BY_LAYER)
    runs.assert_equal("one-26", "fsdp-26")
    runs.assert_learned("fsdp-26", (1,), layers=1)
    assert list((runs.folder / "fsdp-26").glob("checkpoint-*/pytorch_model_fsdp.bin"))


@pytest.mark.soak
@pytest.mark.skipif(
    Version(transformers.__version__) < Version("5.23"),
    reason="Trainer of Transformers 5.17 cannot load the optimizer of several processes on a CPU",
)
def test_killed_processes_resume_to_the_same_weights(runs: Runs) -> None:
    runs.run("two-29", [*TWO, "-m", "glue"], 29, 4, *BY_HEAD)
    arguments = runs.arguments("killed", 29, 4, *BY_HEAD)
    process = runs.start([*TWO, "-m", "glue"], arguments)
    killed = runs.folder / "killed"
    # every process has written the first once a second begins
    wait_for(lambda: len(list(killed.glob("checkpoint-*"))) > 1, process)
    kill(process)
    process.communicate()
    assert not (killed / "results.json").exists()
    resumed = runs.finish("killed", runs.start([*TWO, "-m", "glue"], [*arguments, "--resume"]))
    assert resumed["resumed_from_step"] > 0
    whole = runs.weights("two-29")
    for name, tensor in runs.weights("killed").items():
        assert torch.equal(tensor, whole[name]), name


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_accelerate_config(path: Path) -> None:
    config = load_config_from_file(str(path))  # raises for a key it does not know
    parser = launch_command_parser()
    given, _, _ = _validate_launch_command(
        parser.parse_args(["--config_file", str(path), "-m", "glue"])
    )
    assert given.multi_gpu == (path.stem in ("cpu", "multi_gpu", "multi_node"))
    assert given.use_fsdp == (path.stem == "fsdp")
    assert given.num_processes == config.num_processes
    known = {action.dest for action in parser._actions}
    assert {f"fsdp_{k.removeprefix('fsdp_')}" for k in config.fsdp_config} <= known
    assert f"configs/accelerate/{path.name}" in path.read_text()
