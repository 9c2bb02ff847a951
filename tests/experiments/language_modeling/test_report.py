"""The page about language models: numbers by hand, published ones as printed, single runs."""

import json
import math
import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from experiments.language_modeling.__main__ import EXPERIMENT
from experiments.language_modeling.config import LanguageRunConfig
from experiments.language_modeling.report.plots import function, learning
from experiments.language_modeling.report.runs import described
from experiments.language_modeling.report.tables import published_tables
from experiments.language_modeling.sections import HeadConfig, StageConfig
from sparse_attn.engine.config import ReportConfig
from tests.figures import blank_panels

# as printed; in the code they would look like x and -
TIMES, DASH = "\N{MULTIPLICATION SIGN}", "\N{EN DASH}"
TAYLOR, MIXTURE = HeadConfig(mapping="taylor-softmax"), HeadConfig("mixture")
RANK = {"rank": 202, "contexts": 1000, "vocab": 10_000, "tolerance": 1e-3, "d": 200}
CONFIGS = Path(__file__).parents[3] / "configs" / "language_modeling"
PUBLISHED = {
    (table["source"], table["title"], row["model"]): row
    for table in published_tables()
    for row in table["rows"]
}


def write(
    folder: Path,
    head: HeadConfig | None = None,
    seed: int = 0,
    test: float | None = 100.0,
    config: dict[str, Any] | None = None,
    **changed: Any,
) -> None:
    """The folder of a run as `train` leaves it, `changed` laid over its results."""
    head = head or HeadConfig()
    made = config or LanguageRunConfig("", head, **changed.pop("settings", {})).comparable()
    epochs = [
        {"epoch": n, "train_nll": 5.0 / n, "valid_nll": 4.7 + 1 / n, "seconds": 10.0 + n}
        for n in (1, 2)
    ]
    results = {
        "head": HeadConfig(**made["head"]).name,
        "parameters": 4_130_000,
        "epochs": epochs,
        "valid_perplexity": test and test + 5,
        "test_perplexity": test,
        "top_10_error": 0.4567,
        "seconds": 1234.0,
        "seed": seed,
        "device": "CPU, 1 thread",
        "versions": {"python": "3.12.1", "torch": "2.13.0"},
        "status": "finished",
    }
    run = folder / str(len(list(folder.glob("*"))))
    run.mkdir(parents=True)
    (run / "config.json").write_text(json.dumps({**made, "seed": seed}))
    if test is not None:
        (run / "results.json").write_text(json.dumps({**results, **changed}))


def page_of(results: Path, output: Path) -> str:
    EXPERIMENT.report(ReportConfig(str(results), str(output)))
    return (output / "report.md").read_text()


def cells_of(page: str, section: str, label: str) -> list[str]:
    """The row of a table that begins with the label, in the section whose title begins so."""
    part = next(p for p in re.split(r"\n##+ ", page) if p.startswith(section))
    line = next(line for line in part.splitlines() if line.startswith(f"| {label} |"))
    return [cell.strip().replace("\\", "") for cell in line.strip("| ").split(" | ")][1:]


def wanted(command: str) -> dict[str, Any]:
    """The settings of the run that a published row's config files and options train."""
    model, _, head, *options = command.split()
    files = ["--config", str(CONFIGS / model), "--config", str(CONFIGS / head)]
    _, (config,) = EXPERIMENT.program.parse(["train", *files, *options])
    return json.loads(json.dumps(config.comparable()))


def settings_of(source: str, title: str, model: str) -> dict[str, Any]:
    """Those of the one row whose table and model are called so in part."""
    (found,) = (
        row
        for key, row in PUBLISHED.items()
        if source in key[0] and title in key[1] and key[2] == model
    )
    return wanted(found["config"])


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Softmax 100, 102, 104; Taylor 111, 112, 116 and one that diverged; MoS with one seed."""
    folder = tmp_path / "runs/ptb-small"
    for seed, (softmax, taylor) in enumerate([(100.0, 111.0), (102.0, 112.0), (104.0, 116.0)]):
        write(folder, None, seed, softmax, rank=RANK, simlex={"rho": 0.1, "pairs": 999})
        write(folder, TAYLOR, seed, taylor, rank={**RANK, "rank": 900 + seed})
    write(folder, TAYLOR, 3, 7.0, status="diverged")
    write(folder, TAYLOR, 4, None)  # cut off
    write(folder, MIXTURE, 1, 95.0)
    return tmp_path / "runs"


def test_table_of_an_experiment(small: Path, tmp_path: Path):
    page = page_of(small, tmp_path / "page")
    softmax = ["3", "0", "0", "107.00 ± 2.00", "102.00 ± 2.00", *["-"] * 6]
    softmax += ["202 (201, 202)", "0.4567", "0.100", "4,130,000", "1,234"]
    assert cells_of(page, "ptb-small", "softmax") == softmax
    # differences 11, 10, 12: mean 11, sd 1, t(0.975, 2) = 4.3027, half 4.3027 / sqrt(3) = 2.484;
    # p of t = 11 sqrt(3) = 19.05 with 2 degrees of freedom is 0.0027; one head has it
    taylor = ["3", "1", "1", "118.00 ± 2.65", "113.00 ± 2.65", "+11.00", "[+8.52, +13.48]"]
    # power 80 % at Cohen's d of 3.26 for three pairs
    taylor += ["0.003", "0.003", "worse", "3.26", "901 ± 1 (201, 202)", "0.4567", "n/a"]
    taylor += ["4,130,000", "1,234"]
    assert cells_of(page, "ptb-small", "taylor-softmax") == taylor
    mixture = ["1", "0", "0", "100.00", "95.00", "-7.00", *["n/a"] * 3]
    assert cells_of(page, "ptb-small", "mos")[:9] == mixture
    assert cells_of(page, "ptb-small", "mos")[9] == "not judged"
    # softmax, then the best first
    labels = re.findall(r"^\| ([\w-]+) \| \d \| \d \|", page, re.MULTILINE)
    assert labels == ["softmax", "mos", "taylor-softmax"]
    assert "No published table has these settings" in page
    assert "Device: CPU, 1 thread. Versions: python 3.12.1, torch 2.13.0." in page
    # every row of a table is as long as its header
    for table in re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1


def test_p_is_corrected_for_the_number_of_heads(small: Path, tmp_path: Path):
    for seed, test in enumerate((90.0, 95.0, 93.0)):
        write(small / "ptb-small", HeadConfig(mapping="sigsoftmax"), seed, test)
    page = page_of(small, tmp_path / "page")
    # of two the lower one counts twice; differences -10, -7, -11: t = -9.33 / 2.08 * sqrt(3)
    assert cells_of(page, "ptb-small", "taylor-softmax")[8:10] == ["0.005", "worse"]
    assert cells_of(page, "ptb-small", "sigsoftmax")[8:10] == ["0.016", "better"]


@pytest.mark.slow
def test_page_depends_on_the_records_alone(small: Path, tmp_path: Path):
    first = page_of(small, tmp_path / "one")
    assert page_of(small, tmp_path / "two") == first
    images = re.findall(r"!\[.*?\]\((.*?)\)", first)
    assert images == ["ptb-small-differences.png", "ptb-small-learning.png"]
    one, two = ((tmp_path / place / images[0]).read_bytes() for place in ("one", "two"))
    assert one == two
    assert one.startswith(b"\x89PNG")
    # an experiment by itself is called the same
    assert page_of(small / "ptb-small", tmp_path / "three") == first


def test_plots_where_there_is_something_to_show(tmp_path: Path):
    runs = tmp_path / "runs"
    one = [{"epoch": 1, "train_nll": 5.0, "valid_nll": 4.7, "seconds": 10.0}]
    spectrum = {**RANK, "spectrum": [[1, 1.0], [10, 0.1], [200, 1e-4], [1000, 1e-9]]}
    write(runs / "a", epochs=one, rank=spectrum)
    page = page_of(runs, tmp_path / "page")
    assert "a-learning" not in page  # one epoch is no curve
    assert "a-spectrum.png" in page
    assert (tmp_path / "page/a-spectrum.png").stat().st_size > 10_000
    write(runs / "a", TAYLOR, rank=RANK)
    figure = learning(EXPERIMENT.read(runs), "a")
    assert figure is not None
    point, curve = figure.axes[0].lines  # among others it is a point
    assert (len(point.get_xdata()), len(curve.get_xdata())) == (1, 2)
    curve.remove()
    assert blank_panels(figure) == []


def test_learned_functions_are_drawn_beside_the_identity(tmp_path: Path):
    runs, learned = tmp_path / "runs", [[-2.0, -3.0], [0.0, 0.0], [2.0, 1.0]]
    write(runs / "a")
    assert "a-function" not in page_of(runs, tmp_path / "without")
    write(runs / "a", HeadConfig(mapping="plif"), function=learned)
    write(runs / "a", HeadConfig(mapping="monotone"), function=learned[::2])
    page = page_of(runs, tmp_path / "page")
    assert "![The learned function](a-function.png)" in page
    figure = function(EXPERIMENT.read(runs), "a")
    assert figure is not None
    identity, *lines = figure.axes[0].lines
    assert identity.get_slope() == 1
    assert {line.get_label(): line.get_xydata().tolist() for line in lines} == {
        "plif": learned,
        "monotone": learned[::2],
    }


def test_slopes_and_dynamic_evaluation(tmp_path: Path):
    slopes = {"mean": 1.1, "std": 0.62, "min": 0.02, "max": 5.16}
    dynamic = {"valid_perplexity": 51.5, "test_perplexity": 50.25}
    write(tmp_path / "runs/a", HeadConfig(mapping="plif"), slopes=slopes)
    write(tmp_path / "runs/a", test=60.0, dynamic=dynamic)
    page = page_of(tmp_path / "runs", tmp_path / "page")
    assert cells_of(page, "a", "softmax")[4:12] == ["60.00", *["-"] * 6, "50.25"]
    assert cells_of(page, "a", "plif")[4:7] == ["100.00", "+40.00", "n/a"]
    assert "| plif | 1.10 | 0.62 | 0.02 | 5.16 |" in page


def test_a_head_with_exact_zeros_has_no_perplexity(tmp_path: Path):
    epochs = [{"epoch": 1, "train_nll": 1.0, "valid_nll": math.inf, "seconds": 3.0}]
    for seed in (0, 1):
        write(tmp_path / "runs/a", seed=seed)
        write(tmp_path / "runs/a", HeadConfig(mapping="sparsemax"), seed, math.inf, epochs=epochs)
    found = cells_of(page_of(tmp_path / "runs", tmp_path / "page"), "a", "sparsemax")
    assert found[:7] == ["2", "0", "0", "inf", "inf", "n/a", "n/a"]


def test_settings_are_told_apart_and_paired_with_their_own_softmax(tmp_path: Path):
    for layers, softmax, taylor in ((1, 20.0, 29.0), (2, 19.0, 28.5)):
        for loss, test in (("softmax", softmax), ("Taylor softmax", taylor)):
            config = settings_of("Brebisson", "Billion", f"Log {loss}, {layers}{TIMES}1000")
            write(tmp_path / "runs/1bw-ff", test=test, config=config)
    page = page_of(tmp_path / "runs", tmp_path / "page")
    assert "No published table" not in page
    source = "de Brebisson & Vincent 2016, Table 6".replace("&", r"\&")
    assert cells_of(page, source, f"Log Taylor softmax, 1{TIMES}1000")[:3] == [
        *("28.9", "29.00", "0.313")
    ]
    missing = cells_of(page, source, "Log Taylor softmax, no hidden layer")
    assert missing[:2] == ["75.8", "-"]
    assert missing[-2:] == ["not run here", "1bw-ff.yaml + heads/taylor.yaml --model.layers 0"]
    labels = {label for _, label in EXPERIMENT.read(tmp_path / "runs").cells}
    assert labels == {
        f"{head} (model.layers {layers})"
        for head in ("softmax", "taylor-softmax")
        for layers in (1, 2)
    }
    for layers, difference in ((1, "+9.00"), (2, "+9.50")):
        found = cells_of(page, "1bw-ff", f"taylor-softmax (model.layers {layers})")
        assert found[5] == difference


def test_a_head_is_compared_with_softmax_of_its_start_and_rate(tmp_path: Path):
    prior = HeadConfig(mapping="taylor-softmax", start="prior")
    write(tmp_path / "runs/few", HeadConfig(), test=20.0)
    write(tmp_path / "runs/few", HeadConfig(start="prior"), test=15.0)
    write(tmp_path / "runs/few", prior, test=16.0)
    slow = {"settings": {"train": StageConfig(learning_rate=1.0)}}
    write(tmp_path / "runs/few", HeadConfig(mapping="sigsoftmax"), test=10.0, **slow)
    page = page_of(tmp_path / "runs", tmp_path / "page")
    assert cells_of(page, "few", "taylor-softmax")[5] == "+1.00"
    assert cells_of(page, "few", "sigsoftmax")[5] == "n/a"
    rates = re.findall(r"\| sgd, rate (\d+), batches of 20 x 70, 1 epoch \| - \|", page)
    assert rates == ["30", "1"]


def test_ours_beside_the_published(tmp_path: Path):
    runs = tmp_path / "runs/mine"
    plain = settings_of("Parthiban", "Penn", "Softmax")
    plain["train"]["epochs"] = 40
    rank = {**RANK, "rank": 402, "d": 400}
    for seed, test in ((0, 58.0), (1, 59.0)):
        write(runs, None, seed, test, plain, rank=rank)
    tuned = settings_of("Kanai", "perplexity, Penn", "Softmax")
    dynamic = {"valid_perplexity": 51.5, "test_perplexity": 50.25}
    write(runs, None, 0, 55.0, tuned, rank=rank, dynamic=dynamic)
    other = deepcopy(plain)
    other["model"]["embedding"] = 7
    write(runs, None, 0, 1.0, other)
    page = page_of(tmp_path / "runs", tmp_path / "page")
    parthiban = cells_of(page, "Parthiban, Mao", "Softmax")
    expected = ["24.22M", "4,130,000", "33.91±0.25", "59.55±0.12", "63.50 ± 0.71"]
    expected += ["57.08±0.09", "58.50 ± 0.71", DASH, "402±0", "402"]
    assert parthiban[:11] == [*expected, "2 seeds, 2 epochs"]
    ganea = cells_of(page, "Ganea et al. 2019, Table 1", "Linear-Softmax + AWD-LSTM")
    assert ganea[2:6] == ["60.83", "63.50 ± 0.71", "58.37", "58.50 ± 0.71"]
    assert ganea[6:9] == ["~60", "12", "2 seeds, 2 epochs"]
    assert ganea[9].endswith("--finetune null --train.learning_rate 20.0")
    # what was not finetuned stands beside no number of a finetuned model, another head beside none
    kanai = cells_of(page, "Kanai et al. 2018, Table 1", "Softmax")
    assert kanai[:5] == ["51.2±0.5", "51.50", "50.5±0.5", "50.25", "1 seed, 2 epochs"]
    kanai = cells_of(page, "Kanai et al. 2018, Table 3", "Softmax")
    assert kanai[:3] == ["402", "402", "1 seed, 2 epochs"]
    kanai = cells_of(page, "Kanai et al. 2018, Table 3", "Sigsoftmax")
    assert kanai[:3] == ["4640", "-", "not run here"]


def test_cells_of_one_head_are_named_by_what_they_differ_in(tmp_path: Path):
    write(tmp_path / "runs/a", test=60.0)
    write(tmp_path / "runs/a", test=59.0, settings={"finetune": StageConfig()})
    found = {label for _, label in EXPERIMENT.read(tmp_path / "runs").cells}
    assert found == {"softmax (finetune on)", "softmax (finetune off)"}


def test_two_runs_of_one_seed_are_refused(tmp_path: Path):
    for _ in range(2):
        write(tmp_path / "runs/a", seed=4)
    with pytest.raises(ValueError, match="a: several records of softmax have seed 4"):
        EXPERIMENT.read(tmp_path / "runs")


def test_published_numbers_are_those_of_the_papers():
    """Copied from the papers' tables by hand, apart from the file."""
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
            row["published"]
            for key, row in PUBLISHED.items()
            if source in key[0] and title in key[1] and key[2] == model
        ]
        assert found == expected, (source, title, model)
    # 4 x 6 of Kanai, 4 + 3 and 1 of Ganea, 4 and 9 of de Brebisson, 2 x 4 and 2 of Parthiban
    assert len(PUBLISHED) == 24 + 7 + 1 + 4 + 9 + 8 + 2
    for table in published_tables():
        lengths = {len(row["published"]) for row in table["rows"]}
        assert lengths == {len(table["columns"])}, table["title"]


@pytest.mark.slow
def test_commands_of_published_tables_make_the_runs_that_are_wanted():
    commands = {row["config"]: row["run"] for row in PUBLISHED.values() if "config" in row}
    for command, run in commands.items():
        assert described(wanted(command)) == run, command
