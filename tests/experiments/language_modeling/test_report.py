"""The page about language models: numbers by hand, published ones as printed, bad records."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from experiments.language_modeling.config import (
    HeadConfig,
    ModelConfig,
    RunConfig,
    StageConfig,
)
from experiments.language_modeling.report import report
from experiments.language_modeling.report.plots import learning
from experiments.language_modeling.report.published import published_tables
from experiments.language_modeling.report.runs import at, read_experiments
from tests.figures import blank_panels

# as printed; in the code they would look like x and -
TIMES, DASH = "\N{MULTIPLICATION SIGN}", "\N{EN DASH}"


def write(
    folder: Path,
    head: HeadConfig | None = None,
    seed: int = 0,
    test: float | None = 100.0,
    changed: dict[str, Any] | None = None,
    **settings: Any,
) -> Path:
    """A record as a run writes it, `changed` laid over it, in a file of its own."""
    head = head or HeadConfig()
    config = RunConfig(str(folder), head=head, seed=seed, **settings).to_dict()
    epochs = [
        {"epoch": n, "train_nll": 5.0 / n, "valid_nll": 4.7 + 1 / n, "seconds": 10.0 + n}
        for n in (1, 2)
    ]
    record = {
        "config": config,
        "head": head.name,
        "parameters": 4_130_000,
        "epochs": epochs,
        "valid_perplexity": test and test + 5,
        "test_perplexity": test,
        "top_10_error": 0.4567,
        "rank": None,
        "slopes": None,
        "simlex": None,
        "dynamic": None,
        "seconds": 1234.0,
        "device": "CPU, 1 thread",
        "versions": {"python": "3.12.1", "torch": "2.13.0"},
        "status": "finished",
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{head.name}-{len(list(folder.iterdir()))}.json"
    path.write_text(json.dumps({**record, **(changed or {})}))
    return path


# a paper's protocol, in place of the files in configs
FILES = {
    "ptb-awd": {"train": {"learning_rate": 30.0, "epochs": 500}, "finetune": {"epochs": 500}},
    "1bw-ff": {"model": {"kind": "feed-forward", "embedding": 8, "layers": 2}},
    "heads/softmax": {"head": {"mapping": "softmax"}},
    "heads/taylor": {"head": {"mapping": "taylor-softmax"}},
}


@pytest.fixture
def configs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "configs"
    monkeypatch.setattr("experiments.language_modeling.report.published.CONFIGS", folder)
    for name, content in FILES.items():
        path = folder / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump({"output_dir": "runs/x", **content}))
    for name in {row.head for table in published_tables() for row in table.rows if row.head}:
        path = folder / "heads" / f"{name}.yaml"
        if not path.exists():
            path.write_text(yaml.safe_dump({"head": {"mapping": "softmax", "bias": False}}))


def page_of(results: Path, output: Path) -> str:
    path = report(results, output / "page.md").path
    assert path == output / "page.md"
    return path.read_text()


def cells_of(page: str, section: str, label: str) -> list[str]:
    """The row of a table that begins with the label, in the section whose title begins so."""
    part = next(p for p in re.split(r"\n##+ ", page) if p.startswith(section))
    line = next(line for line in part.splitlines() if line.startswith(f"| {label} |"))
    return [cell.strip().replace("\\", "") for cell in line.split(" | ")][1:]


TAYLOR = HeadConfig(mapping="taylor-softmax")
RANK = {"rank": 202, "contexts": 1000, "vocab": 10_000, "tolerance": 1e-3, "d": 200}


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Softmax 100, 102, 104; Taylor 111, 112, 116 and one that diverged; MoS with one seed."""
    folder = tmp_path / "ptb-small"
    for seed, (softmax, taylor) in enumerate([(100.0, 111.0), (102.0, 112.0), (104.0, 116.0)]):
        simlex = {"simlex": {"rho": 0.1, "pairs_found": 575, "pairs": 999}}
        write(folder, seed=seed, test=softmax, changed={"rank": RANK, **simlex})
        write(folder, TAYLOR, seed, taylor, {"rank": {**RANK, "rank": 900 + seed}})
    write(folder, TAYLOR, 3, 7.0, {"status": "diverged"})
    write(folder, TAYLOR, 4, None, {"status": "running"})
    write(folder, HeadConfig("mixture"), 1, 95.0)
    return tmp_path


def test_table_of_an_experiment(small: Path, tmp_path: Path):
    page = page_of(small, tmp_path)
    softmax = ["3", "0", "0", "107.00 ± 2.00", "102.00 ± 2.00", "-", "-"]
    softmax += ["202 (201, 202)", "0.4567", "0.100", "4,130,000", "1,234 |"]
    assert cells_of(page, "ptb-small", "softmax") == softmax
    # differences 11, 10, 12: mean 11, sd 1, t(0.975, 2) = 4.3027, half 4.3027 / sqrt(3) = 2.484
    taylor = ["3", "1", "1", "118.00 ± 2.65", "113.00 ± 2.65", "+11.00", "[+8.52, +13.48] (3)"]
    taylor += ["901 ± 1 (201, 202)", "0.4567", "n/a", "4,130,000", "1,234 |"]
    assert cells_of(page, "ptb-small", "taylor-softmax") == taylor
    mixture = ["1", "0", "0", "100.00", "95.00", "-7.00", "one pair", "n/a"]
    assert cells_of(page, "ptb-small", "mos")[:8] == mixture
    # softmax, then the best first
    labels = re.findall(r"^\| ([\w-]+) \| \d \| \d \|", page, re.MULTILINE)
    assert labels == ["softmax", "mos", "taylor-softmax"]
    assert "No published table has these settings" in page
    assert "Device: CPU, 1 thread. Versions: python 3.12.1, torch 2.13.0." in page


def test_page_depends_on_the_records_alone(small: Path, tmp_path: Path):
    first = page_of(small, tmp_path / "one")
    assert page_of(small, tmp_path / "two") == first
    images = re.findall(r"!\[.*?\]\((.*?)\)", first)
    assert images == ["page/ptb-small-learning.png"]
    one, two = ((tmp_path / place / images[0]).read_bytes() for place in ("one", "two"))
    assert one == two
    assert one.startswith(b"\x89PNG")
    # an experiment by itself is called the same
    assert page_of(small / "ptb-small", tmp_path / "three") == first


def test_every_row_of_a_table_is_as_long_as_its_header(small: Path, tmp_path: Path):
    table: list[int] = []
    for line in page_of(small, tmp_path).splitlines():
        table = [*table, len(re.findall(r"(?<!\\)\|", line))] if line.startswith("|") else []
        assert len(set(table)) <= 1, line


def test_spectra_are_plotted_where_they_were_recorded(tmp_path: Path):
    spectrum = {**RANK, "spectrum": [[1, 1.0], [10, 0.1], [200, 1e-4], [1000, 1e-9]]}
    write(tmp_path / "runs" / "a", changed={"rank": spectrum})
    write(tmp_path / "runs" / "a", TAYLOR, changed={"rank": RANK})
    assert "page/a-spectrum.png" in page_of(tmp_path / "runs", tmp_path)
    assert (tmp_path / "page" / "a-spectrum.png").stat().st_size > 10_000


def test_one_epoch_is_no_curve_and_among_others_a_point(tmp_path: Path):
    one = [{"epoch": 1, "train_nll": 5.0, "valid_nll": 4.7, "seconds": 10.0}]
    write(tmp_path / "a", changed={"epochs": one})
    assert "a-learning" not in page_of(tmp_path, tmp_path)
    write(tmp_path / "a", TAYLOR)
    figure = learning(read_experiments(tmp_path)["a"])
    point, curve = figure.axes[0].lines
    assert (len(point.get_xdata()), len(curve.get_xdata())) == (1, 2)
    curve.remove()
    assert blank_panels(figure) == []


def test_slopes_and_dynamic_evaluation(tmp_path: Path):
    slopes = {"mean": 1.1, "std": 0.62, "min": 0.02, "max": 5.16}
    dynamic = {"valid_perplexity": 51.5, "test_perplexity": 50.25}
    write(tmp_path / "a", HeadConfig(mapping="plif"), changed={"slopes": slopes})
    write(tmp_path / "a", test=60.0, changed={"dynamic": dynamic})
    page = page_of(tmp_path, tmp_path)
    assert cells_of(page, "a", "softmax")[4:8] == ["60.00", "-", "-", "50.25"]
    assert cells_of(page, "a", "plif")[4:8] == ["100.00", "+40.00", "one pair", "n/a"]
    assert "| plif | 1.10 | 0.62 | 0.02 | 5.16 |" in page


def test_a_head_with_exact_zeros_has_no_perplexity(tmp_path: Path):
    epochs = [{"epoch": 1, "train_nll": 1.0, "valid_nll": math.inf, "seconds": 3.0}]
    for seed in (0, 1):
        write(tmp_path / "a", seed=seed)
        sparse = HeadConfig(mapping="sparsemax")
        write(tmp_path / "a", sparse, seed, math.inf, {"epochs": epochs})
    row = cells_of(page_of(tmp_path, tmp_path), "a", "sparsemax")
    assert row[:7] == ["2", "0", "0", "inf", "inf", "n/a", "n/a"]


@pytest.mark.usefixtures("configs")
def test_settings_are_told_apart_and_paired_with_their_own_softmax(tmp_path: Path):
    for layers, softmax, taylor in ((1, 20.0, 29.0), (2, 19.0, 28.5)):
        model = ModelConfig("feed-forward", 8, 1000, layers)
        write(tmp_path / "1bw-ff", test=softmax, model=model)
        write(tmp_path / "1bw-ff", TAYLOR, test=taylor, model=model)
    page = page_of(tmp_path, tmp_path)
    for layers, difference in ((1, "+9.00"), (2, "+9.50")):
        label = f"taylor-softmax (model.layers {layers})"
        assert cells_of(page, "1bw-ff", label)[5] == difference
    source = "de Brebisson & Vincent 2016, Table 6".replace("&", r"\&")
    found = cells_of(page, source, f"Log Taylor softmax, 1{TIMES}1000")
    assert found[:3] == ["28.9", "29.00", "0.313"]
    missing = cells_of(page, source, "Log Taylor softmax, no hidden layer")
    assert missing[0:2] == ["75.8", "-"]
    assert missing[-2:] == [
        "not run here",
        "1bw-ff.yaml + heads/taylor.yaml --model.layers 0 |",
    ]


@pytest.mark.usefixtures("configs")
def test_ours_beside_the_published(tmp_path: Path):
    runs = tmp_path / "results" / "ptb-awd"
    train = StageConfig(learning_rate=30.0, epochs=40)
    rank = {"rank": {**RANK, "rank": 402, "d": 400}}
    for seed, test in ((0, 58.0), (1, 59.0)):
        write(runs, None, seed, test, rank, train=train)
    tuned = rank | {"dynamic": {"valid_perplexity": 51.5, "test_perplexity": 50.25}}
    doubled = StageConfig(epochs=1000)
    write(runs, None, 0, 55.0, tuned, train=doubled, finetune=doubled)
    write(runs, None, 0, 1.0, train=train, model=ModelConfig(embedding=7))
    page = page_of(tmp_path / "results", tmp_path)
    parthiban = cells_of(page, "Parthiban, Mao", "Softmax")
    expected = ["24.22M", "4,130,000", "33.91±0.25", "59.55±0.12", "63.50 ± 0.71"]
    expected += ["57.08±0.09", "58.50 ± 0.71", DASH, "402±0", "402"]
    expected += ["2 seeds, 2 epochs, train.epochs 40"]
    assert parthiban[:11] == expected
    ganea = cells_of(page, "Ganea et al. 2019, Table 1", r"Linear-Softmax + AWD-LSTM")
    assert ganea[2:6] == ["60.83", "63.50 ± 0.71", "58.37", "58.50 ± 0.71"]
    told = "2 seeds, 2 epochs, train.epochs 40, train.learning_rate 30"
    assert ganea[6:9] == ["~60", "12", told]
    assert ganea[9].endswith("--finetune null --train.learning_rate 20.0 |")
    # what was not finetuned stands beside no number of a finetuned model, another head beside none
    kanai = cells_of(page, "Kanai et al. 2018, Table 1", "Softmax")
    assert kanai[:5] == ["51.2±0.5", "51.50", "50.5±0.5", "50.25", "1 seed, 2 epochs, finetuned"]
    kanai = cells_of(page, "Kanai et al. 2018, Table 3", "Softmax")
    assert kanai[:3] == ["402", "402", "1 seed, 2 epochs, finetuned"]
    kanai = cells_of(page, "Kanai et al. 2018, Table 3", "Sigsoftmax")
    assert kanai[:3] == ["4640", "-", "not run here"]


def test_cells_of_one_head_are_named_by_what_they_differ_in(tmp_path: Path):
    write(tmp_path / "a", test=60.0)
    write(tmp_path / "a", test=59.0, finetune=StageConfig())
    found = [cell.label for cell in read_experiments(tmp_path)["a"]]
    assert found == ["softmax (finetune on)", "softmax (finetune off)"]


def test_published_numbers_are_those_of_the_papers():
    """Copied from the papers' tables by hand, apart from the file."""
    tables = {(t.source, t.title): t for t in published_tables()}
    printed = {
        ("Kanai", "Penn", "Sigsoftmax"): [["49.7±0.5", "49.2±0.4"], ["4640"]],
        ("Kanai", "WikiText-2", "MoSS"): [["42.1±0.2", "40.3±0.2"], ["19834"]],
        ("Kanai", "Penn", "g:ReLU"): [[f"(4.91±5){TIMES}10³", f"(2.78±8){TIMES}10⁵"], ["8243"]],
        ("Kanai", "WikiText-2", "g:Sigmoid"): [["45.7±0.1", "43.5±0.1"], ["463"]],
        ("Ganea", "Penn", "LMS-PLIF, 10⁵ knots"): [["24.4M", "59.45", "57.25", "~70"]],
        ("Ganea", "WikiText-2", "MoS, K=15"): [["33M", "66.01", "63.33", "~550"]],
        ("Ganea", "slopes", "LMS-PLIF"): [["1.10", "0.62", "0.02", "5.16"]],
        ("Brebisson", "Penn", f"Log softmax abs, 2{TIMES}809"): [["128.2", "0.503", "0.0777", "7"]],
        ("Brebisson", "Billion", f"Log softmax, 2{TIMES}1000"): [["19.2", "0.244", "0.318"]],
        ("Brebisson", "Billion", "Log spherical softmax, no hidden layer"): [
            ["72.9", "0.417", "0.164"]
        ],
        ("Parthiban", "Penn", "LMS-PLIF"): [
            ["24.32M", "36.67±0.30", "59.08±0.09", "56.80±0.11", "1.91e-5", "496±83"]
        ],
        ("Parthiban", "WikiText-2", "MoS"): [
            ["34.90M", "36.17±0.30", "64.54±0.36", "61.96±0.40", "2.04e-13", "15,734±188"]
        ],
    }
    for (source, title, model), expected in printed.items():
        found = [
            row.published
            for key, table in tables.items()
            for row in table.rows
            if source in key[0] and title in key[1] and row.model == model
        ]
        assert found == expected, (source, title, model)
    # 4 x 6 of Kanai, 4 + 3 and 1 of Ganea, 4 and 9 of de Brebisson, 2 x 4 and 2 of Parthiban
    assert sum(len(table.rows) for table in tables.values()) == 24 + 7 + 1 + 4 + 9 + 8 + 2


def test_published_tables_are_whole_and_their_commands_parse():
    for table in published_tables():
        for row in table.rows:
            assert len(row.published) == len(table.columns), (table.title, row.model)
            if row.config is not None:
                run = row.wanted()
                assert all(at(run.to_dict(), key) == value for key, value in row.options.items())


def test_run_folders_are_read_too(tmp_path: Path):
    for name in ("softmax", "taylor"):
        folder = tmp_path / "runs" / "ptb-small" / name
        path = write(folder, TAYLOR if name == "taylor" else None)
        path.rename(folder / "results.json")
    folder = tmp_path / "runs" / "ptb-small" / "cut"
    path = write(folder, HeadConfig("mixture", mapping="sigsoftmax"))
    content = json.loads(path.read_text())
    path.unlink()
    # what a run has written before its first epoch
    cut = {"config": content["config"], "status": "running"}
    (folder / "results.json").write_text(json.dumps(cut))
    experiments = read_experiments(tmp_path / "runs")
    found = {cell.label: len(cell.finished) for cell in experiments["ptb-small"]}
    assert found == {"softmax": 1, "taylor-softmax": 1, "moss": 0}
    assert cells_of(page_of(tmp_path, tmp_path), "ptb-small", "moss")[:4] == ["0", "0", "1", "n/a"]


def test_bad_records(tmp_path: Path):
    with pytest.raises(ValueError, match="holds no record of a run"):
        report(tmp_path, tmp_path / "page.md")
    assert not (tmp_path / "page.md").exists()
    twice = tmp_path / "twice" / "a"
    write(twice, seed=4)
    write(twice, seed=4)
    with pytest.raises(ValueError, match="a: 2 records of softmax have seed 4"):
        report(tmp_path / "twice", tmp_path / "page.md")
    broken = tmp_path / "broken" / "a.json"
    broken.parent.mkdir()
    for content in ("{", "[1]"):
        broken.write_text(content)
        with pytest.raises(ValueError, match=r"a\.json: not a readable record"):
            read_experiments(broken.parent)
    broken.write_text('{"config": {}}')
    with pytest.raises(ValueError, match="the record of a run, which has status"):
        read_experiments(broken.parent)
