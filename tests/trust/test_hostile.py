"""Configs, models, checkpoints, names and records of others run no code and leave no folder."""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import pytest
import torch
from markdown_it import MarkdownIt
from matplotlib.figure import Figure
from torch import nn
from transformers import AutoModelForSequenceClassification as Classifier
from transformers import BertConfig, BertForSequenceClassification

from experiments.bottleneck import __main__ as bottleneck
from experiments.images import __main__ as images
from experiments.images.config import ImageSweepConfig, SweptLoss
from experiments.language_modeling import __main__ as language_modeling
from experiments.length import __main__ as length
from experiments.multilabel import __main__ as multilabel
from experiments.multilabel.config import MethodConfig, MultilabelSweepConfig
from experiments.multilabel.data.config import DataConfig, SyntheticConfig
from experiments.multilabel.data.images import read_coco, read_voc
from experiments.multilabel.models import pretrained
from glue import __main__ as glue
from glue.model import load_model, load_tokenizer
from sparse_attn import __main__ as sparse_attn
from sparse_attn import load_pretrained
from sparse_attn.engine.fitting import fit
from sparse_attn.evaluation.data import load_task
from sparse_attn.evaluation.tasks import TASKS, get_task
from sparse_attn.reports.page import Bullets, Heading, Page, Plot, Status, Table
from sparse_attn.system.hub import load_from_hub
from sparse_attn.system.paths import safe_join
from tests.comparison.running import text_file, texts
from tests.glue.make_glue import write_task
from tests.glue.running import MAPPINGS, sweep
from tests.letters import letter_tokenizer

PROGRAMS = [glue, images, multilabel, language_modeling, bottleneck, length]
RUN = ["train", "--task", "RTE", "--model", "m", "--output_dir", "o"]
HOSTILE = '"><img src=x onerror=alert(1)><b>|](javascript:a)[c](javascript:b)`**_$x^{$&lt;\n\n# h'
HOSTILE += "<script>alert(1)</script>\\"
TASK = 'text: sentence\nlabel: label\nlabels: ["0", "1"]\nsplits: {train: %s, dev: dev.tsv}\n'


@pytest.fixture(autouse=True)
def ran(tmp_path: Path) -> Iterator[Path]:
    """A file that would be there if something had run."""
    yield tmp_path / "ran"
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("stage", ["train", "sweep"])
@pytest.mark.parametrize(
    "main",
    [glue, images, multilabel, language_modeling, bottleneck, length],
    ids=lambda m: m.__name__,
)
def test_yaml_of_a_config(
    main: Any, stage: str, ran: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(f"output_dir: !!python/object/apply:os.mkdir [{ran}]\n")
    with pytest.raises(SystemExit):
        main.main([stage, "--config", str(config)])
    assert "could not determine a constructor for the tag" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--mapping.params", "!!python/object/apply:os.mkdir [ran]"),
        ("--mapping", "hostile.Mapping"),
        ("--mapping", "{class_path: hostile.Mapping}"),
        ("--mapping.schedule", "{class_path: hostile.Schedule}"),
    ],
)
def test_yaml_and_classes_of_an_option(
    option: str, value: str, ran: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hostile.py").write_text(f"import os\nos.mkdir({str(ran)!r})\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        glue.main([*RUN, option, value])


def test_yaml_of_a_task(ran: Path, tmp_path: Path) -> None:
    (tmp_path / "task.yaml").write_text(f"text: !!python/object/apply:os.mkdir [{ran}]\n")
    with pytest.raises(ValueError, match="could not determine a constructor for the tag"):
        get_task(tmp_path / "task.yaml")


class Attack:
    """Makes a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return Path.touch, (self.file,)


def test_the_attack_works(ran: Path, tmp_path: Path) -> None:
    torch.save(Attack(ran), tmp_path / "weights")
    torch.load(tmp_path / "weights", weights_only=False)
    ran.unlink()


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A classifier of letters, with its tokenizer and a file of texts."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "c"))
    folder = tmp_path / "model"
    letter_tokenizer().save_pretrained(folder)
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8}
    config = BertConfig(vocab_size=len(letter_tokenizer()), num_hidden_layers=1, **sizes)
    BertForSequenceClassification(config).save_pretrained(folder)
    text_file(folder, texts(90))
    return folder


def change(file: Path, **entries: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **entries}))


def remote_code(folder: Path, ran: Path, kind: str = "hostile") -> str:
    """Let a model and its tokenizer bring the code that makes them."""
    (folder / "code.py").write_text(f"import os\nos.mkdir({str(ran)!r})\n")
    classes = ("AutoModel", "AutoModelForSequenceClassification", "AutoConfig")
    change(folder / "config.json", model_type=kind, auto_map=dict.fromkeys(classes, "code.Hostile"))
    tokenizer = {"AutoTokenizer": ["code.Hostile", None]}
    change(folder / "tokenizer_config.json", tokenizer_class="Hostile", auto_map=tokenizer)
    return "trust_remote_code|is not run by default"


def pickled_weights(folder: Path, ran: Path) -> str:
    (folder / "model.safetensors").unlink()
    torch.save({"weight": Attack(ran)}, folder / "pytorch_model.bin")
    return "pickled weights are corrupt or name code"


def inspected(model: Path) -> None:
    sparse_attn.main(["inspect", str(model), "a film"])


def compared(model: Path) -> None:
    sparse_attn.main(["compare", str(model), "--texts", str(model / "texts.txt")])


def converted(model: Path) -> None:
    command = ["convert", str(model), "--texts", str(model / "texts.txt"), "--target_zeros", "0.6"]
    sparse_attn.main([*command, "--mapping", "entmax", "--out", str(model / "out")])


def tuned(model: Path) -> None:
    load_model(str(model), TASKS["RTE"])


def backbone(model: Path) -> None:
    pretrained(str(model))


@pytest.mark.parametrize("attack", [remote_code, pickled_weights])
@pytest.mark.parametrize("load", [inspected, compared, converted, tuned, backbone])
def test_code_of_a_model(
    load: Callable[[Path], None],
    attack: Callable[[Path, Path], str],
    ran: Path,
    model: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    says = attack(model, ran)
    with pytest.raises((SystemExit, ValueError)) as raised:
        load(model)
    told = capsys.readouterr().err + str(raised.value)
    assert re.search(says, told)
    assert "weights_only" not in told  # PyTorch's advice, which would run the code


def test_code_of_a_model_in_plain_calls(ran: Path, model: Path) -> None:
    remote_code(model, ran)
    for load in (lambda f: load_pretrained(Classifier, f), lambda f: load_tokenizer(str(f))):
        with pytest.raises(ValueError, match="trust_remote_code"):
            load(model)
    remote_code(model, ran, kind="bert")
    loaded = load_model(str(model), TASKS["RTE"])
    assert isinstance(loaded, BertForSequenceClassification)
    pickled_weights(model, ran)
    with pytest.raises(UnpicklingError):
        load_pretrained(Classifier, model)


def test_code_of_a_model_that_is_trusted(ran: Path, model: Path) -> None:
    remote_code(model, ran)
    with pytest.raises((SystemExit, AttributeError)):  # the code holds no class
        sparse_attn.main(["inspect", str(model), "a film", "--trust_remote_code"])
    ran.rmdir()


def test_code_of_a_data_set(ran: Path, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "data.py").write_text(f"import os\nos.mkdir({str(ran)!r})\n")
    with pytest.raises(ConnectionError, match="scripts are no longer supported"):
        load_from_hub(str(folder), split="train", what="it", instead="give another")


def test_checkpoint(ran: Path, tmp_path: Path) -> None:
    torch.save({"model": Attack(ran)}, tmp_path / "checkpoint")
    layer = nn.Linear(1, 1)
    with pytest.raises(ValueError, match="checkpoint"):
        fit(
            layer,
            torch.optim.SGD(layer.parameters(), 0.1),
            lambda epoch: {"loss": 0.0},
            lambda: {"score": 0.0},
            epochs=1,
            checkpoint=tmp_path / "checkpoint",
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth"])
def test_checkpoint_of_fine_tuning(name: str, ran: Path, model: Path, tmp_path: Path) -> None:
    write_task(tmp_path, "RTE", train=8, dev=2)
    command = ["train", "--task", "RTE", "--model", str(model), "--data_dir", str(tmp_path)]
    command += ["--train.epochs", "2", "--train.max_length", "32"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sparse_attn.hf.checkpoints.remove_checkpoints", lambda folder: None)
        glue.main([*command, "--output_dir", str(tmp_path / "run")])
    (tmp_path / "run/results.json").unlink()
    shutil.rmtree(tmp_path / "run/checkpoint-2")
    for file in (name, "training_args.bin"):
        torch.save({"state": Attack(ran)}, tmp_path / "run/checkpoint-1" / file)
    with pytest.raises(UnpicklingError):
        glue.main([*command, "--output_dir", str(tmp_path / "run"), "--resume"])


def task(folder: Path, name: str) -> None:
    (folder / "own.yaml").write_text(TASK % name)
    load_task(get_task(folder / "own.yaml"), folder)


def glue_task(folder: Path, name: str) -> None:
    load_task(replace(TASKS["RTE"], splits={"dev": name, "train": "train.tsv"}), folder)


def voc(folder: Path, name: str) -> None:
    lists = folder / "VOCdevkit/VOC2007/ImageSets/Main"
    lists.mkdir(parents=True)
    for split in ("train", "val"):
        (lists / f"{split}.txt").write_text(f"{name}\n")
    read_voc(folder, 8)


def coco(folder: Path, name: str) -> None:
    (folder / "annotations").mkdir()
    content = {
        "images": [{"id": 1, "file_name": name}],
        "annotations": [],
        "categories": [{"id": 1, "name": "cat"}],
    }
    for split in ("train", "val"):
        (folder / f"annotations/instances_{split}2017.json").write_text(json.dumps(content))
    read_coco(folder, 8)


@pytest.mark.parametrize("name", ["../../secret", "a/../../secret", "/secret"])
@pytest.mark.parametrize("read", [task, glue_task, voc, coco])
def test_paths_below_a_folder(read: Callable[[Path, str], None], name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"secret.* leaves the folder"):
        read(tmp_path, name)


def test_paths_that_stay_in_a_folder(tmp_path: Path) -> None:
    for name in ("a", "a/b.tsv", "..a", "a..b/c", "./a"):
        assert safe_join(tmp_path, name, "where") == tmp_path / name


DATA, METHODS = DataConfig(synthetic=SyntheticConfig()), {"softmax": MethodConfig()}


def own_task(name: str, folder: Path) -> None:
    (folder / "own.yaml").write_text(f"name: {json.dumps(name)}\n{TASK % 'train.tsv'}")
    sweep(tasks={str(folder / "own.yaml"): None})


NAMED: dict[str, Callable[[str, Path], Any]] = {
    "task": own_task,
    "mapping": lambda name, _: sweep(mappings={**MAPPINGS, name: MAPPINGS["softmax"]}),
    "data": lambda name, _: MultilabelSweepConfig("o", {name: DATA}, METHODS),
    "method": lambda name, _: MultilabelSweepConfig(
        "o", {"d": DATA}, {**METHODS, name: MethodConfig()}
    ),
    "loss": lambda name, _: ImageSweepConfig("o", {name: SweptLoss("softmax", [0.1])}, 1),
}
NAMES = ["../secret", "a/../../secret", "/secret", "..", "a\\..\\b", "a\0b", ".", "", "n" * 200]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", NAMED)
def test_names_that_become_names_of_files(kind: str, name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must fit into file names"):
        NAMED[kind](name, tmp_path)
    NAMED[kind]("a name", tmp_path)


class Structure(HTMLParser):
    """Tags of a page with the names of their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, list[str]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, [name for name, _ in attributes]))
        assert "javascript" not in str([v for n, v in attributes if n in ("href", "src")])


def page(words: str) -> Page:
    table = Table(words, [words, words], [[words, words]])
    plot = Plot("plot", words, words, Figure())
    return Page(words, [words, Heading(words), Bullets([words]), Status(words), table, plot], [])


def test_text_of_a_report(tmp_path: Path) -> None:
    """Renders as the same page as plain text, and is not written through links."""
    plain, hostile, outside = (tmp_path / name for name in ("plain", "hostile", "outside"))
    page("plain").write(plain)
    outside.write_text("mine")
    hostile.mkdir()
    for file in plain.iterdir():
        (hostile / file.name).symlink_to(outside)
    page(HOSTILE).write(hostile)
    assert outside.read_text() == "mine"
    assert "onerror" in (hostile / "report.md").read_text()
    read = MarkdownIt("commonmark").enable("table").render
    for name, render in (("report.html", str), ("report.md", read)):
        found, expected = (Structure(render((f / name).read_text())) for f in (hostile, plain))
        assert found.tags == expected.tags
