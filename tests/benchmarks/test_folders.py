"""Where benchmarks write: `runs` unless told to, so that published records stay what they are."""

import importlib
from pathlib import Path

import pytest

from benchmarks import __main__ as attention
from benchmarks.cases import Case

MAINS = ("__main__", "factored", "glue", "heads", "recording")


@pytest.mark.parametrize("name", MAINS)
def test_only_publish_writes_into_results(name, capsys):
    parser = importlib.import_module(f"benchmarks.{name}")._parser()
    assert parser.parse_args([]).out == Path("runs/benchmarks")
    assert parser.parse_args(["--out", "elsewhere"]).out == Path("elsewhere")
    assert parser.parse_args(["--publish"]).out == Path("results/benchmarks")
    with pytest.raises(SystemExit):
        parser.parse_args(["--publish", "--out", "elsewhere"])
    assert "not allowed with" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "folder"), [([], "runs/benchmarks"), (["--publish"], "results/benchmarks")]
)
def test_make_bench_leaves_the_published_record_alone(more, folder, tmp_path, monkeypatch):
    tiny = [Case("one", "attention", 1, 8, 2, 4, few=True)]
    monkeypatch.setattr(attention, "cases", lambda device, quick: tiny)
    monkeypatch.setitem(attention.PACES, "cpu", attention.Pace(60, 0, 2))
    monkeypatch.chdir(tmp_path)
    published = tmp_path / "results/benchmarks/cpu.json"
    published.parent.mkdir(parents=True)
    published.write_text("published")
    attention.main(["--device", "cpu", *more])
    assert (tmp_path / folder / "cpu.md").exists()
    assert (published.read_text() == "published") == (not more)
