"""`python -m benchmarks` from its arguments to its files, in every suite."""

import json
from importlib.metadata import version

import pytest
import torch

from benchmarks.__main__ import main
from benchmarks.attention.cases import AttentionCase
from benchmarks.attention.suite import Attention
from benchmarks.factored import Factored, Factors
from benchmarks.heads import VOCABULARIES
from benchmarks.measure import get_suite
from benchmarks.record import slug
from benchmarks.recording import Recorded, Recording
from benchmarks.suite import Pace
from benchmarks.timing import DeviceLostError
from tests.marks import first

TINY = [
    AttentionCase("attention", "one", 1, 8, 2, 4, few=True),
    AttentionCase("attention", "two", 2, 8, 2, 4, lengths=(5, 8), few=True),
    *(AttentionCase("length", f"N={n}", 1, n, 2, 4, few=True) for n in (4, 8)),
]


@pytest.fixture
def tiny(monkeypatch):
    """Cases that take no time."""
    small = {
        Attention: TINY,
        Factored: [Factors("factored", "small", 20, 4), Factors("factored", "smaller", 10, 4)],
        Recording: [Recorded("recording", name, name, 2, 8) for name in ("unpatched", "entmax")],
    }
    for suite, cases in small.items():
        monkeypatch.setattr(suite, "cases", lambda self, device, options, own=cases: own)
    monkeypatch.setitem(VOCABULARIES, "10k", 50)


def names(record):
    return [case["name"] for case in record["cases"]]


@pytest.mark.parametrize(
    ("suite", "pictures"),
    first(
        ("attention", ["attention-cpu-length-memory.png", "attention-cpu-length-time.png"]),
        ("factored", ["factored-cpu.png"]),
        ("heads", []),
        ("recording", []),
    ),
)
def test_files(suite, pictures, tiny, bench, tmp_path, capsys):
    record = bench(suite)
    files = {f"{suite}-cpu.json", f"{suite}-cpu.md", *pictures}
    assert {path.name for path in tmp_path.iterdir()} == files
    assert record["environment"]["threads"] == torch.get_num_threads()
    assert record["environment"]["versions"]["torch"] == version("torch")
    assert record["left_out"] == []
    for case in record["cases"]:
        measured = [row for row in case["rows"] if row["reason"] is None]
        assert len(measured) > 1
        for row in measured:
            assert row["ms"]["n"] == 2
            assert row["ms"]["median"] > 0
            assert row["to"][get_suite(suite).base]["n"] == 2
            assert row.get("memory_mib", 1) > 0
    page = (tmp_path / f"{suite}-cpu.md").read_text()
    assert str(tmp_path) not in json.dumps(record) + page
    printed = capsys.readouterr().out
    last = record["cases"][-1]
    assert f"[{len(names(record))}/{len(names(record))}] {last['group']}: {last['name']}" in printed
    assert page in printed


@pytest.mark.slow
def test_several_suites(tiny, tmp_path):
    main(["factored", "--quick", "recording", "--rounds", "1", "--out", str(tmp_path)])
    assert {path.stem for path in tmp_path.iterdir()} == {"factored-cpu", "recording-cpu"}


def test_options_choose(tiny, bench, tmp_path):
    record = bench("attention", "--only", "length", "--case", "=4", "=5", "--skip", "entmax")
    assert names(record) == ["N=4"]
    assert not any("entmax" in row["name"] for row in record["cases"][0]["rows"])
    assert names(bench("heads", "--only", "plif", "mixture", "--skip", "ours")) == ["10k", "10k"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), DeviceLostError("illegal memory access")])
def test_the_record_is_written_after_each_case(error, tiny, bench, tmp_path, monkeypatch):
    whole = Attention.measure

    def stopped(self, case, *arguments):
        if case.name == "two":
            raise error
        return whole(self, case, *arguments)

    monkeypatch.setattr(Attention, "measure", stopped)
    lost = isinstance(error, DeviceLostError)
    said = r"attention: two: a kernel left the GPU unusable.*--keep" if lost else None
    with pytest.raises(SystemExit if lost else KeyboardInterrupt, match=said):
        bench("attention")
    assert names(json.loads((tmp_path / "attention-cpu.json").read_text())) == ["one"]
    assert (tmp_path / "attention-cpu.md").exists()


def test_keep_takes_over_the_other_cases(tiny, bench, tmp_path):
    bench("attention", "--case", "one", "two")
    record = bench("attention", "--case", "two", "--keep")
    assert names(record) == ["one", "two"]
    kept, new = record["cases"]
    assert (
        f"Measured {kept['environment']['started']} at commit"
        in (tmp_path / "attention-cpu.md").read_text()
    )
    assert "environment" not in new
    assert names(bench("attention", "--case", "two")) == ["two"]


def test_budget_leaves_the_rest_out_and_says_so(tiny, bench, tmp_path):
    record = bench("attention", "--budget", "1e-9")
    assert record["cases"] == []
    assert record["left_out"] == ["attention: one", "attention: two", "length: N=4", "length: N=8"]
    page = (tmp_path / "attention-cpu.md").read_text()
    assert page.endswith(f"Not reached within the time budget: {', '.join(record['left_out'])}.\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "error: nothing: unknown; expected one of attention, sparsity, "),
        (["hedas"], "error: hedas: unknown; did you mean heads?"),
        (["--only", "nothing"], "--only nothing: unknown; expected one of attention, step, "),
        (["--only", "step", "lenght"], "--only lenght: unknown; did you mean length?"),
        (["--case", "nothing"], "no case of attention: N=128, "),
        (["heads", "--only", "mixture", "--case", "128k"], "no case of softmax: 10k, "),
        (["--budget", "-1"], "expected a number above 0"),
        (["--budget", "soon"], "--budget"),
        (["--device", "tpu"], "invalid choice"),
        (["--publish"], "not allowed with"),
        (["--bugdet", "9", "heads"], "--bugdet: unknown; did you mean --budget?"),
        (["--round=9"], "--round: unknown; did you mean --rounds?"),
        (["-x"], "-x: unknown; expected one of -h, --help, --out, "),
        (["glue", "--rounds", "0"], "expected a number above 0"),
        (["glue", "--epochs", "-1"], "expected a number above 0"),
        (["glue", "--seeds"], "--seeds"),
        pytest.param(
            ["--device", "cuda"],
            "PyTorch finds no GPU",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="needs to be without one"),
        ),
    ],
)
def test_bad_arguments(arguments, message, tmp_path, capsys):
    with pytest.raises(SystemExit) as error:
        main([*arguments, "--out", str(tmp_path)])
    assert error.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert message in said
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("more", "folder"), [([], "runs/benchmarks"), (["--publish"], "results/benchmarks")]
)
def test_only_publish_writes_into_results(more, folder, tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(Attention, "paces", {"cpu": Pace(0, 2, 60)})
    monkeypatch.chdir(tmp_path)
    published = tmp_path / "results/benchmarks/attention-cpu.json"
    published.parent.mkdir(parents=True)
    published.write_text("published")
    main(["--device", "cpu", "--case", "one", *more])
    assert (tmp_path / folder / "attention-cpu.md").exists()
    assert (published.read_text() == "published") == (not more)


def test_names_of_files():
    assert slug("NVIDIA H200") == "nvidia-h200"


def test_a_suite_of_the_cpu_refuses_a_gpu(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(SystemExit, match="2"):
        main(["crossover"])
    assert "crossover: it measures the CPU kernels; add --device cpu" in capsys.readouterr().err
