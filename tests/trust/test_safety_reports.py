"""Reports show what records hold as text, and write to no other place than they should."""

import json
from collections.abc import Callable
from dataclasses import asdict
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from experiments.bottleneck.__main__ import EXPERIMENT as BOTTLENECK
from experiments.bottleneck.config import BottleneckSweepConfig
from experiments.images.__main__ import EXPERIMENT as IMAGES
from experiments.images.config import DataConfig as ImageData
from experiments.images.config import ImageSweepConfig, SweptLoss
from experiments.language_modeling.__main__ import main as language_modeling
from experiments.language_modeling.config import LanguageRunConfig
from experiments.length.__main__ import EXPERIMENT as LENGTH
from experiments.length.config import AttentionConfig, LengthSweepConfig
from experiments.multilabel.__main__ import EXPERIMENT as MULTILABEL
from experiments.multilabel.config import MethodConfig, MultilabelSweepConfig
from experiments.multilabel.data.config import DataConfig, SyntheticConfig
from glue.sweep import CandidateConfig
from sparse_attn.engine.config import ReportConfig
from sparse_attn.engine.experiment import Experiment
from sparse_attn.engine.sweep.records import (
    FOLDER,
    FORMAT,
    PACKED_FILE,
    SWEEP_FILE,
    Record,
    hash_of,
    write_record,
)
from sparse_attn.system.files import write_json
from tests.glue.report.make_sweep import LABELS, add, fill, make_config, ramp
from tests.glue.running import report as glue_report
from tests.marks import first

PLAIN = "plain"
# no / and no \, which names of files cannot have
HOSTILE = '"><img src=x onerror=alert(1)><b>|](javascript:a)[c](javascript:b)`**_$x^{$&lt;\n\n# h'
LONG = f"{HOSTILE}<script>alert(1)</script>\\"
Tags = list[tuple[str, list[str]]]


class Structure(HTMLParser):
    """Every tag of a page with the names of its attributes, and where its links lead."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: Tags = []
        self.links: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, [name for name, _ in attributes]))
        self.links += [value or "" for name, value in attributes if name in ("href", "src")]


def structure(file: Path) -> Tags:
    """What a browser makes of a page."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".md":
        text = MarkdownIt("commonmark").enable("table").render(text)
    found = Structure(text)
    assert not [link for link in found.links if link.startswith("javascript")]
    return found.tags


def glue(folder: Path, out: Path, name: str, long: str) -> None:
    label = PLAIN if name == PLAIN else "".join(name.split("\n"))
    mappings = {
        "softmax": CandidateConfig("softmax"),
        label: CandidateConfig("mixed-sparsemax", {"mix": 1.0}, schedule=ramp("mix")),
    }
    fill(folder, make_config(mappings=mappings, model=long))
    add(folder, label, "final", 1, LABELS, LABELS, device=long, versions={long: long})
    add(folder, label, "final", 2, status="failed", error=f"Boom\n{' '.join(long.split())}")
    (folder / FOLDER / f"{name}.json").write_text("{")
    glue_report(folder, out)


def reported(
    experiment: Experiment, sweep: Any, folder: Path, out: Path, name: str, results: dict[str, Any]
) -> None:
    """The report of a sweep whose runs all have these results, and of one broken record."""
    (folder / FOLDER).mkdir(parents=True)
    content = json.loads(json.dumps(sweep.content()))
    write_json(folder / SWEEP_FILE, {"format": FORMAT, **content})
    plan, done = experiment.plan(sweep), {}
    while due := list(plan.due(done)):
        for run in due:
            done[run.hash] = run.record(status="finished", results=results)
            write_record(folder, done[run.hash])
    (folder / FOLDER / f"{name}.json").write_text("{")
    experiment.report(ReportConfig(str(folder), str(out)))


def images(folder: Path, out: Path, name: str, long: str) -> None:
    losses = {"softmax": SweptLoss("softmax", [0.1, 0.2]), name: SweptLoss("sparsemax", [0.1, 0.2])}
    sweep = ImageSweepConfig(output_dir="", losses=losses, runs=2, data=ImageData())
    results = {
        "seed": 0,
        "measure": "negll",
        "score": 0.5,
        "validation": {"criterion": 0.5, "error": 0.25},
        "test": {"criterion": 0.5, "error": 0.25, "negll": 0.5},
        "epochs": 1,
        "best_epoch": 1,
        "history": [{"epoch": 1, "error": 0.25}],
        "images": {long: 10},
        "seconds": 1.0,
        "device": long,
    }
    reported(IMAGES, sweep, folder, out, name, results)


def multilabel(folder: Path, out: Path, name: str, long: str) -> None:
    data = SyntheticConfig(classes=4, labels=2, length=100, rows=240, features=12, hidden=8)
    sweep = MultilabelSweepConfig(
        "",
        {name: DataConfig(synthetic=data)},
        {"softmax": MethodConfig(thresholds=[0.1, 0.2]), name: MethodConfig("sparsemax")},
    )
    results = {
        "score": 0.5,
        "measured_on": "validation",
        "f1": {"micro": 0.5, "macro": 0.4, "samples": 0.3},
        "micro_by_threshold": {"0.1": 0.5, "0.2": 0.4},
        "decided_labels": 2.5,
        "best_epoch": 1,
        "true_labels": 2.0,
        "history": {"loss": [1.0, 0.5], "score": [0.4, 0.5]},
        "seconds": 1.5,
        "device": long,
    }
    reported(MULTILABEL, sweep, folder, out, name, results)


def bottleneck(folder: Path, out: Path, name: str, long: str) -> None:
    sweep = BottleneckSweepConfig("", [0.1], 30, [6], [2], {"mos": {}}, [0.1], 4, 10, 2)
    results = {
        "score": -0.1,
        **{"mode_matching": 50.0, "kl": 0.1, "log_error": 2.0, "floor": 1.0, "seconds": 1.0},
        "device": long,
    }
    reported(BOTTLENECK, sweep, folder, out, name, results)


def length(folder: Path, out: Path, name: str, long: str) -> None:
    attentions = {"softmax": AttentionConfig(), name: AttentionConfig("sparsemax")}
    sweep = LengthSweepConfig(output_dir="", attentions=attentions, lengths=[64, 128], seeds=2)
    results = {"score": 50.0, "accuracy": [90.0, 50.0], "zeros": [0.0, 1.0], "device": long}
    reported(LENGTH, sweep, folder, out, name, results)


def language(folder: Path, out: Path, name: str, long: str) -> None:
    config = LanguageRunConfig("runs/x").comparable()
    results = {
        "score": 1.0,
        "seed": 0,
        "epochs": [{"valid_nll": 4.7, "seconds": 1.0}] * 2,
        "test_perplexity": 100.0,
        "seconds": 1.0,
        "device": long,
        "versions": {long: long},
    }
    hashed = hash_of({"label": long, **config})
    record = Record(name, long, "grid", 0, hashed, config, "finished", None, results)
    experiment = folder / "records" / name
    experiment.mkdir(parents=True)
    (experiment / PACKED_FILE).write_text(json.dumps(asdict(record)) + "\n")
    language_modeling(["report", str(folder / "records"), "--output_dir", str(out)])


REPORTS: dict[str, Callable[[Path, Path, str, str], None]] = {
    "glue": glue,
    "images": images,
    "multilabel": multilabel,
    "bottleneck": bottleneck,
    "length": length,
    "language models": language,
}


@pytest.mark.parametrize("kind", first(*REPORTS))
def test_names_devices_and_errors_are_text_and_links_are_not_followed(
    kind: str, tmp_path: Path
) -> None:
    plain, hostile, outside = tmp_path / "plain", tmp_path / "hostile", tmp_path / "outside"
    REPORTS[kind](tmp_path / "a", plain, PLAIN, PLAIN)
    files = [path.relative_to(plain) for path in plain.rglob("*") if path.is_file()]
    outside.write_text("mine")
    for file in files:
        (hostile / file).parent.mkdir(parents=True, exist_ok=True)
        (hostile / file).symlink_to(outside)

    REPORTS[kind](tmp_path / "b", hostile, HOSTILE, LONG)
    assert "onerror" in (hostile / "report.md").read_text(encoding="utf-8")
    pages = [file for file in files if file.suffix in (".html", ".md")]
    assert "report.md" in map(str, pages)
    for page in pages:
        assert structure(hostile / page) == structure(plain / page)
    assert outside.read_text() == "mine"
