"""Wrong input to multi-label classification."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import BertConfig, BertModel

from experiments.multilabel.__main__ import main
from experiments.multilabel.config import (
    MethodConfig,
    MultilabelRunConfig,
    MultilabelSweepConfig,
    TrainConfig,
)
from experiments.multilabel.data.config import DataConfig, ImageConfig, SyntheticConfig
from experiments.multilabel.data.images import load_images, read_pixels
from experiments.multilabel.models import make_head, pretrained
from experiments.multilabel.run import load
from sparse_attn.engine.config import ScheduleConfig
from tests.bad_input import Wrong

Call = Callable[[Path], Any]
Row = tuple[Call, type[BaseException], str]


def refused(kind: Callable[..., Any], says: str, *args: Any, **options: Any) -> Row:
    return lambda folder: kind(*args, **options), ValueError, says


def sweep(says: str, **changes: Any) -> Row:
    given: dict[str, Any] = {
        "output_dir": "somewhere",
        "data": {"one": DataConfig(synthetic=SyntheticConfig())},
        "methods": {"softmax": MethodConfig()},
    }
    return refused(MultilabelSweepConfig, says, **{**given, **changes})


def train(says: str, *arguments: str) -> Row:
    """The command on synthetic rows; nothing is written."""

    def call(folder: Path) -> None:
        run = folder / "run"
        try:
            main(["train", "--output_dir", str(run), "--synthetic.rows", "100", *arguments])
        finally:
            assert not run.exists()

    return call, SystemExit, says


def schedule(says: str, method: MethodConfig) -> Row:
    return lambda folder: method.sparsity_schedule(), ValueError, says


def head(says: str, *args: Any, **options: Any) -> Row:
    return lambda folder: make_head(MethodConfig(*args, **options), 6, 4), ValueError, says


def not_convolutional(folder: Path) -> None:
    sizes = {"vocab_size": 5, "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1}
    BertModel(BertConfig(**sizes, intermediate_size=4)).save_pretrained(folder)
    pretrained(str(folder))


def no_picture(folder: Path) -> None:
    (folder / "a.png").write_text("no picture")
    read_pixels(folder / "a.png", 8)


# what sigmoid has not
FIXED = [("params", {"r": 0.5}), ("loss", "nll"), ("sparsity", "predicted"), ("learn", ["t"])]
FIXED += [("schedule", ScheduleConfig("t", 1.0))]
SCHEDULED = MethodConfig("r-softmax", schedule=ScheduleConfig("r", 0.0))
RESNET = "such as microsoft/resnet-18"
NO_VOC = ImageConfig("voc2007", data_dir="none")
NO_COCO = ImageConfig("coco2017", data_dir="none")

CASES: list[Row] = [
    refused(DataConfig, "got none"),
    refused(SyntheticConfig, r"synthetic\.classes=1", classes=1),
    refused(SyntheticConfig, "1 to 10", classes=10, labels=11),
    refused(SyntheticConfig, r"synthetic\.length=0", length=0),
    refused(SyntheticConfig, r"synthetic\.test=0\.95", test=0.95),
    refused(SyntheticConfig, r"synthetic\.validation=0\.0", validation=0.0),
    refused(SyntheticConfig, r"synthetic\.rows=3", rows=3),
    refused(ImageConfig, r"images\.size=0", "voc2007", size=0),
    refused(TrainConfig, r"train\.epochs=0", epochs=0),
    refused(TrainConfig, r"train\.learning_rate=inf", learning_rate=float("inf")),
    refused(TrainConfig, r"train\.batch_size=0", batch_size=0),
    refused(TrainConfig, r"train\.seed=-1", seed=-1),
    refused(TrainConfig, r"train\.stop_after=0", stop_after=0),
    refused(TrainConfig, r"train\.workers=-1", workers=-1),
    refused(
        MultilabelRunConfig,
        r"train\.stop_after=3",
        output_dir="x",
        synthetic=SyntheticConfig(),
        method=SCHEDULED,
        train=TrainConfig(stop_after=3),
    ),
    sweep("data={}", data={}),
    sweep("'softmax' among them", methods={"sparsemax": MethodConfig("sparsemax")}),
    sweep("seeds=0", seeds=0),
    sweep("give learning_rates", train=TrainConfig(learning_rate=0.5)),
    refused(MethodConfig, r"method\.thresholds", thresholds=[1.0]),
    refused(MethodConfig, r"method\.thresholds", thresholds=[0.2, 0.2]),
    *(refused(MethodConfig, "has no params", "sigmoid", **{name: value}) for name, value in FIXED),
    schedule("'t'", MethodConfig("r-softmax", schedule=ScheduleConfig("t", 0.1))),
    schedule(
        "it is learned",
        MethodConfig("t-softmax", learn=["t"], schedule=ScheduleConfig("t", 0.1)),
    ),
    schedule(
        r"method\.schedule\.initial",
        MethodConfig("r-softmax", {"r": 0.5}, schedule=ScheduleConfig("r", 2.0)),
    ),
    head("softmaxx", "softmaxx"),
    head("predicted", "sparsemax", sparsity="predicted"),
    head("nll", "sparsemax", loss="nll"),
    head("count=expected", "r-softmax", sparsity="predicted", count="expected"),
    head(r"count_weight=0\.1", "r-softmax", sparsity="predicted", count_weight=0.1),
    train("^error: .*softmaxx", "--method.mapping", "softmaxx"),
    train("^error: .*cuda", "--train.device", "cuda"),
    train("no run to resume", "--resume"),
    (load, ValueError, "kept its model"),
    (not_convolutional, ValueError, RESNET),
    (lambda folder: pretrained(str(folder / "none")), OSError, "none"),
    (lambda folder: load_images(NO_VOC), FileNotFoundError, "none/VOCdevkit"),
    (lambda folder: load_images(NO_COCO), FileNotFoundError, "none/annotations"),
    (no_picture, ValueError, "a.png: cannot be read as an image"),
]
ROWS = [Wrong(f"multilabel {n}: {case[2]}", *case) for n, case in enumerate(CASES)]
