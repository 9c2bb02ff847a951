"""Wrong input to multi-label classification."""

import io
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from datasets import Dataset
from PIL import Image
from torch.utils.data import DataLoader

from engine.config import ScheduleConfig
from experiments.multilabel.__main__ import main
from experiments.multilabel.backbones import resnet
from experiments.multilabel.config import (
    MethodConfig,
    MultilabelRunConfig,
    MultilabelSweepConfig,
    TrainConfig,
)
from experiments.multilabel.data.config import (
    DataConfig,
    ImageConfig,
    SyntheticConfig,
    TextConfig,
)
from experiments.multilabel.data.images import load_images
from experiments.multilabel.data.text import load_text
from experiments.multilabel.models import make_head, text_model
from experiments.multilabel.run import load
from tests.bad_input import Wrong
from tests.experiments.multilabel.tiny import (
    TABLE,
    coco,
    own,
    tiny_bert,
    voc,
    write,
)
from tests.glue.make_glue import write_task

Call = Callable[[Path], Any]
Config = ImageConfig | TextConfig


def make(kind: type, *args: Any, **options: Any) -> Call:
    return lambda folder: kind(*args, **options)


def sweep(**changes: Any) -> Call:
    given: dict[str, Any] = {
        "output_dir": "somewhere",
        "data": {"one": DataConfig(synthetic=SyntheticConfig())},
        "methods": {"softmax": MethodConfig()},
    }
    return lambda folder: MultilabelSweepConfig(**{**given, **changes})


def train(*arguments: str) -> Call:
    """The command on synthetic rows; nothing is written."""

    def call(folder: Path) -> None:
        run = folder / "run"
        try:
            main(["train", "--output_dir", str(run), "--synthetic.rows", "100", *arguments])
        finally:
            assert not run.exists()

    return call


def schedule(method: MethodConfig) -> Call:
    return lambda folder: method.sparsity_schedule()


def head(*args: Any, **options: Any) -> Call:
    return lambda folder: make_head(MethodConfig(*args, **options), 6, 4)


def changed(make: Callable[[Path], Config], file: str, content: Any) -> Call:
    """A data set of which one file is not there (None), or holds something else."""

    def call(folder: Path) -> None:
        config, path = make(folder), folder / file
        new = content(path.read_text()) if callable(content) else content
        path.unlink(missing_ok=True)
        if new is not None:
            write(path, new)
        data = load_images(config) if isinstance(config, ImageConfig) else load_text(config)
        next(iter(DataLoader(data.train, collate_fn=data.collate)))

    return call


def voc2007(file: str, content: str | None) -> Call:
    splits = {"train": {"1": ["cat"]}, "val": {"2": ["dog"]}}
    return changed(lambda f: voc(f, splits), f"VOCdevkit/VOC2007/{file}", content)


def coco2017(content: Any) -> Call:
    shown = {"train": [[1]], "val": [[1]]}
    return changed(lambda f: coco(f, shown), "annotations/instances_val2017.json", content)


def folder_of_images(content: str) -> Call:
    return changed(own, "validation/labels.csv", content)


def text(
    file: str, content: Any, splits: Iterable[str] = ("train", "validation"), **options: Any
) -> Call:
    def make(folder: Path) -> TextConfig:
        for split in splits:
            write(folder / f"{split}.csv", TABLE)
        given = {"dataset": "own", "data_dir": str(folder), "max_length": 32, **options}
        return TextConfig("folder", str(tiny_bert(folder / "model")), **given)

    return changed(make, file, content)


def hub(**options: str) -> Call:
    def call(folder: Path) -> None:
        rows = Dataset.from_dict({"image": ["a"], "labels": [["cat"]], "one": ["cat"]})
        for split in ("train", "validation"):
            rows.to_parquet(folder / f"{split}.parquet")
        load_images(ImageConfig("hub", **{"dataset": str(folder), **options}))

    return call


def glue_scores(folder: Path) -> None:
    write_task(folder, "STS-B")
    model = str(tiny_bert(folder / "model"))
    load_text(TextConfig("glue", model, data_dir=str(folder), dataset="STS-B"))


SYNTHETIC = {
    r"synthetic\.classes=1": {"classes": 1},
    "1 to 10": {"classes": 10, "labels": 11},
    r"synthetic\.labels=0": {"labels": 0},
    r"synthetic\.length=0": {"length": 0},
    r"synthetic\.test=0\.95": {"test": 0.95},
    r"synthetic\.validation=0\.0": {"validation": 0.0},
    r"synthetic\.rows=3": {"rows": 3},
}
TRAIN = {
    r"train\.epochs=0": {"epochs": 0},
    r"train\.learning_rate=inf": {"learning_rate": float("inf")},
    r"train\.batch_size=0": {"batch_size": 0},
    r"train\.seed=-1": {"seed": -1},
    r"train\.stop_after=0": {"stop_after": 0},
    r"train\.workers=-1": {"workers": -1},
}
SWEEP: dict[str, dict[str, Any]] = {
    "data={}": {"data": {}},
    "'softmax' among them": {"methods": {"sparsemax": MethodConfig("sparsemax")}},
    r"learning_rates=\[\]": {"learning_rates": []},
    "without duplicates": {"learning_rates": [0.1, 0.1]},
    r"train\.learning_rate=-1\.0": {"learning_rates": [0.1, -1.0]},
    "seeds=0": {"seeds": 0},
    "give seeds": {"train": TrainConfig(seed=3)},
    "give learning_rates": {"train": TrainConfig(learning_rate=0.5)},
    "'a/b'": {"data": {"a/b": DataConfig(synthetic=SyntheticConfig())}},
}
SIGMOID: tuple[dict[str, Any], ...] = (
    {"params": {"r": 0.5}},
    {"loss": "nll"},
    {"sparsity": "predicted"},
    {"learn": ["t"]},
    {"schedule": ScheduleConfig("t", 1.0)},
)
TEXT: dict[str, dict[str, Any]] = {
    r"text\.dataset=None: expected a name, which": {"source": "folder"},
    r"text\.dataset=None: expected a name": {"source": "glue"},
    r"text\.label_column=None: expected a column": {"source": "hub", "dataset": "a/b"},
    r"text\.text=\[\]: expected one column": {"source": "glue", "dataset": "RTE", "text": []},
    r"text\.max_length=2: expected": {"source": "glue", "dataset": "RTE", "max_length": 2},
    r"text\.separator='': expected": {"source": "glue", "dataset": "RTE", "separator": ""},
}
BUFFER = io.BytesIO()
Image.new("RGB", (64, 64)).save(BUFFER, "png")
HALF = BUFFER.getvalue()[: BUFFER.tell() // 2]
PERSON = {"categories": [{"id": 1, "name": "person"}]}
UNICORN = "<a><object><name>unicorn</name></object></a>"
IMAGE_TABLES = {
    "line 2: column 'dog' holds 'yes', expected 0 or 1": "file,cat,dog\na.png,1,yes\n",
    "expected a column for the file, then cat, dog; got file": "file\na.png\n",
    "expected .* then cat, dog; got file, cat, cow": "file,cat,cow\na.png,1,0\n",
    "line 1: more than one column 'cat'": "file,cat,cat\na.png,1,0\n",
    r"line 2: expected 3 columns \(file, cat, dog\), got 2": "file,cat,dog\na.png,1\n",
    "labels.csv: holds no rows": "file,cat,dog\n",
}
TEXT_TABLES = {
    "no column 'text'; the columns are words, sad": "words,sad,glad\na,0,1\n",
    "line 2: no column 'glad'; the columns are text, sad": "text,sad\na,0\n",
    "line 2: column 'glad' holds '2', expected 0 or 1": "text,sad,glad\na,0,2\n",
    r"line 2: expected a text in text, got \(' ',\)": "text,sad,glad\n ,0,1\n",
    r"line 2: expected 3 columns \(text, sad, glad\), got 2": "text,sad,glad\na,0\n",
    "line 2: .* double any quote inside a field": 'text,sad,glad\n"a"b,0,1\n',
    "validation.csv: holds no rows": "text,sad,glad\n",
}
JSON_LINES = {
    "line 1: not JSON": '{"text": "a", "sad": 0, "glad": 1\n',
    "line 1: expected an object, got int": '3\n["a", 0, 1]\n',
    r"line 1: expected a text in text, got \(None": '{"text": null, "sad": 0, "glad": 1}\n',
    "column 'sad' holds 0.5, expected 0 or 1": '{"text": "a", "sad": 0.5, "glad": 1}\n',
    "line 2: expected the keys of": '{"text": "a", "sad": 0, "glad": 1}\n{"text": "b"}\n',
}
ONE_OF = r"data: expected one of synthetic, images, text"
T, LEARNED = ScheduleConfig("t", 0.1), MethodConfig("t-softmax", learn=["t"])

CASES: list[tuple[Call, type[BaseException], str]] = [
    # configs
    (make(MultilabelRunConfig, output_dir="x"), ValueError, ONE_OF),
    (make(DataConfig), ValueError, "got none"),
    *((make(SyntheticConfig, **options), ValueError, says) for says, options in SYNTHETIC.items()),
    *((make(TrainConfig, **options), ValueError, says) for says, options in TRAIN.items()),
    *((sweep(**changes), ValueError, says) for says, changes in SWEEP.items()),
    *(
        (make(MethodConfig, "sigmoid", **options), ValueError, r"mapping=sigmoid: has no params")
        for options in SIGMOID
    ),
    *(
        (make(MethodConfig, thresholds=some), ValueError, r"method\.thresholds")
        for some in ([0.0], [1.0], [0.2, 0.2], [-0.1])
    ),
    (make(ImageConfig, "hub"), ValueError, r"images\.dataset=None: .* which source=hub"),
    (make(ImageConfig, "folder"), ValueError, r"images\.dataset=None: expected a name"),
    (make(ImageConfig, "voc2007", size=0), ValueError, r"images\.size=0: expected at least 1"),
    (
        make(MethodConfig, "r-softmax", count="expected"),
        ValueError,
        r"method\.count='expected': expected true; predicted if r is",
    ),
    (
        make(MethodConfig, "detached-r-softmax", sparsity="predicted", count="expected"),
        ValueError,
        r"method\.count='expected': expected true; predicted if r is",
    ),
    (
        lambda folder: MultilabelRunConfig(
            output_dir="x",
            synthetic=SyntheticConfig(),
            method=MethodConfig("r-softmax", schedule=ScheduleConfig("r", 0.0)),
            train=TrainConfig(stop_after=3),
        ),
        ValueError,
        r"train\.stop_after=3: expected none beside method\.schedule",
    ),
    (
        make(MethodConfig, "r-softmax", sparsity="predicted", count_weight=-1.0),
        ValueError,
        r"method\.count_weight=-1\.0: expected 1, or",
    ),
    (
        lambda folder: text_model(
            TextConfig("glue", "m", dataset="SST-2"),
            MethodConfig("r-softmax", sparsity="predicted", count="expected"),
            2,
        ),
        ValueError,
        r"method\.count=expected, count_weight=1\.0: expected true and 1 for texts",
    ),
    *((make(TextConfig, model="m", **options), ValueError, says) for says, options in TEXT.items()),
    # methods
    (schedule(MethodConfig("r-softmax", schedule=T)), ValueError, "'t': expected a parameter of"),
    (schedule(MethodConfig(**{**vars(LEARNED), "schedule": T})), ValueError, "'t': it is learned"),
    (
        schedule(MethodConfig("r-softmax", {"r": 0.5}, schedule=ScheduleConfig("r", 2.0))),
        ValueError,
        r"method\.schedule\.initial: r=2",
    ),
    (head("softmaxx"), ValueError, "softmaxx"),
    (head("sparsemax", sparsity="predicted"), ValueError, "predicted"),
    (head("sparsemax", loss="nll"), ValueError, "nll"),
    (train("--method.mapping", "softmaxx"), SystemExit, "^error: .*softmaxx"),
    (train("--method.mapping", "sparsemax", "--method.loss", "nll"), SystemExit, "nll"),
    (train("--train.device", "cuda"), SystemExit, "^error: .*cuda"),
    (train("--resume"), SystemExit, "no run to resume"),
    # networks
    (lambda folder: resnet("m", "x.pth"), ValueError, r"weights=x.pth: only for torchvision://"),
    (lambda f: resnet(str(tiny_bert(f))), ValueError, "BertModel is not a convolutional network"),
    (lambda folder: resnet(str(folder / "none")), OSError, "none"),
    (load, ValueError, "kept its model"),
    # images
    (voc2007("ImageSets/Main/train.txt", None), FileNotFoundError, "train.txt; expected VOCdevk"),
    (voc2007("JPEGImages/2.jpg", None), FileNotFoundError, "no such image; 1 of 1 are missing"),
    (voc2007("Annotations/2.xml", None), FileNotFoundError, "2.xml; expected an annotation"),
    (voc2007("Annotations/2.xml", "<annotation>"), ValueError, "2.xml: not XML"),
    (voc2007("Annotations/2.xml", UNICORN), ValueError, "'unicorn' is not one of the 20: aeropl"),
    (coco2017(lambda old: json.loads(old) | PERSON), ValueError, "same categories .*got person,"),
    (coco2017({"images": []}), ValueError, "got a file without 'annotations'"),
    (coco2017("{"), ValueError, r"instances_val2017.json: not JSON"),
    (coco2017(None), FileNotFoundError, r"no such file: .*instances_val2017.json; expected"),
    (
        changed(lambda f: own(f, ()), "train/a.png", ""),
        FileNotFoundError,
        r"images\.data_dir: .* labels.csv or .*a folder with a.png",
    ),
    *((folder_of_images(content), ValueError, says) for says, content in IMAGE_TABLES.items()),
    (folder_of_images("file,cat,dog\nz.png,1,0\n"), FileNotFoundError, "z.png: no such image"),
    (changed(own, "train/a.png", "no picture"), ValueError, "a.png: cannot be read as an image"),
    (changed(own, "train/a.png", HALF), ValueError, "a.png: cannot be read as an image"),
    (hub(), ValueError, "image_column=image: expected a column of images, got Value"),
    (hub(image_column="picture"), ValueError, "'picture'; the columns are image, labels, one"),
    (hub(label_column="one"), ValueError, "'one': expected a list of names or numbers"),
    (hub(dataset="./none"), ConnectionError, r"split 'train' from .* use source: folder"),
    (lambda folder: load_images(ImageConfig("voc2007")), ValueError, "images.data_dir=None: exp"),
    (lambda f: load_images(own(f / "none", ())), FileNotFoundError, "data_dir=.*none: no such"),
    # texts
    *((text("validation.csv", content), ValueError, says) for says, content in TEXT_TABLES.items()),
    *(
        (text("validation.jsonl", content, ["train"]), ValueError, says)
        for says, content in JSON_LINES.items()
    ),
    (text("train.csv", TABLE, label_column="mood"), ValueError, "line 2: no column 'mood'; the "),
    (
        text("validation.csv", "text,sad,glad\na,2,1\n", label_column="sad"),
        ValueError,
        "label '2' is not one of the 2: 0",
    ),
    (
        text("train.csv", TABLE, data_dir=None),
        ValueError,
        r"text\.data_dir=None: expected a folder",
    ),
    (text("train.csv", TABLE, data_dir="none"), FileNotFoundError, "=none: no such folder"),
    (text("dev.csv", TABLE, ["train"]), FileNotFoundError, "validation.csv or .*with dev.csv, mod"),
    (text("train.csv", TABLE, train_rows=4), ValueError, "rows=4: expected 1 to 3,"),
    (text("train.csv", TABLE, max_length=65), ValueError, "=65: the model takes at most 64 tokens"),
    (
        text("validation.tsv", TABLE),
        ValueError,
        "validation.csv and validation.tsv; remove all",
    ),
    (
        text("model/tokenizer_config.json", lambda old: json.loads(old) | {"pad_token": None}),
        ValueError,
        "its tokenizer has no padding token; set pad_token",
    ),
    (
        text("validation.jsonl", '{"text": "a", "sad": 3}', ["train"], label_column="sad"),
        ValueError,
        "line 1: the labels are 3, expected names joined by ',' or a list of names",
    ),
    (glue_scores, ValueError, r"text\.dataset=STS-B: a regression task"),
]
ROWS = [
    Wrong(f"multilabel {number}: {says}", *case)
    for number, case in enumerate(CASES)
    for says in [case[2]]
]
