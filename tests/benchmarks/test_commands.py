"""Each command: a tiny run writes a record that can be read, and its page with tables."""

import json
from importlib.metadata import version

import pytest
import torch
from transformers import BertConfig, LlamaConfig, LlamaModel

from benchmarks import attention, heads, llm, screening, tune
from benchmarks.__main__ import main
from benchmarks.attention import measuring, step
from benchmarks.attention.cases import AttentionCase
from benchmarks.table import Pace, slug
from benchmarks.timing import DeviceLostError
from tests.hf.families import LLAMA
from tests.kernels.backends import INTERPRETS
from tests.letters import letter_tokenizer

TINY = [
    AttentionCase("attention", "one", 1, 8, 2, 4, few=True),
    AttentionCase("attention", "two", 2, 8, 2, 4, lengths=(5, 8), few=True),
    AttentionCase("step", "small", 2, 6, lengths=(4, 6), model="BERT-base", few=True),
    AttentionCase("sparsity", "causal", 1, 40, 4, 8, causal=True, key_heads=2, spread=2.0),
    AttentionCase("decoding", "9 keys", 1, 9, 2, 8, queries=1, few=True),
]


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """Runs a benchmark, tiny and for two rounds, into tmp_path; its record."""
    for module in (attention, heads, llm, screening, tune):
        small = module.BENCHMARK._replace(paces={"quick": Pace(0, 2, 600)})
        monkeypatch.setattr(module, "BENCHMARK", small)
    monkeypatch.setattr(attention, "BENCHMARK", attention.BENCHMARK._replace(cases=lambda *_: TINY))
    monkeypatch.setitem(heads.VOCABULARIES, "10k", 50)
    config = BertConfig(num_hidden_layers=1, hidden_size=24, intermediate_size=24)
    monkeypatch.setattr(step, "BertConfig", lambda **own: config)
    tokenizer = letter_tokenizer()
    shape = {**LLAMA, "vocab_size": len(tokenizer), "max_position_embeddings": 256}
    model = LlamaModel(LlamaConfig(**shape, initializer_range=0.5)).eval()
    monkeypatch.setattr(llm, "opened", lambda device: (model, tokenizer))
    # in this process: another one has no tiny model
    monkeypatch.setattr(llm, "in_another_process", lambda function, count: function(count))

    def run(name, *arguments):
        main([name, "--quick", "--device", "cpu", "--out", str(tmp_path), *arguments])
        return json.loads((tmp_path / f"{name}-cpu.json").read_text())

    return run


def zeros(case):
    return {row["name"]: row["zeros"] for row in case["rows"] if "zeros" in row}


def names(record):
    return [case["name"] for case in record["cases"]]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "attention",
        "heads",
        "llm",
        pytest.param("tune", marks=pytest.mark.skipif(not INTERPRETS, reason="needs no GPU")),
    ],
)
def test_record_and_page(name, bench, tmp_path, capsys):
    record = bench(name)
    page = (tmp_path / f"{name}-cpu.md").read_text()
    assert page in capsys.readouterr().out
    assert record["environment"]["threads"] == torch.get_num_threads()
    assert record["environment"]["versions"]["torch"] == version("torch")
    assert record["options"]["quick"] is True
    assert record["left_out"] == []
    for case in record["cases"]:
        assert f"## {case['group']}: {case['name']}\n\n{case['title']}" in page
        measured = [row for row in case["rows"] if row["reason"] is None]
        assert len(measured) > 1
        for row in measured:
            assert row["ms"]["n"] == row["to"][case["base"]]["n"] == 2
            assert row["ms"]["median"] > 0
            assert row.get("memory_mib", 1) > 0
            assert f"\n| {row['name']} | " in page.replace("\\", "")  # of Markdown
    assert str(tmp_path) not in json.dumps(record) + page
    if name == "attention":
        _, _, step, causal, few = map(zeros, record["cases"])
        assert causal["ours softmax"] == 0
        assert causal["ours r-softmax"] < causal["ours r-softmax, 90 % zeros"] < 1
        assert 0 < step["ours r-softmax"] < 1
        assert 0 < few["ours sparsemax"] < 1
    if name == "llm":
        prefill, *_, recording = record["cases"]
        found = zeros(prefill)
        assert found["ours softmax"] == 0
        assert 0 < found["ours top-p-softmax p=0.95"] < found["ours top-p-softmax p=0.9"]
        assert recording["rows"][1]["rows_mib"] > 0


@pytest.mark.slow
def test_screening_lists_every_key_within_the_gap(bench):
    multiply, *rows = bench("screening")["cases"][0]["rows"]
    if "int8 products" in (rows[0]["reason"] or ""):
        pytest.skip(rows[0]["reason"])
    assert multiply["ms"]["n"] == 2
    assert all(0 < row["within"] <= row["listed"] <= 100 for row in rows)


def test_skip_leaves_contestants_out(bench):
    record = bench("heads", "--case", "plif", "mixture", "--skip", "ours")
    assert names(record) == ["10k", "10k"]
    assert all([row["name"] for row in case["rows"]] == ["plain"] for case in record["cases"])


@pytest.mark.parametrize("error", [KeyboardInterrupt(), DeviceLostError("illegal memory access")])
def test_the_record_is_written_after_each_case(error, bench, tmp_path, monkeypatch):
    def stopped(case, race):
        if case.name == "two":
            raise error
        return measuring.measure(case, race)

    monkeypatch.setattr(attention, "BENCHMARK", attention.BENCHMARK._replace(measure=stopped))
    lost = isinstance(error, DeviceLostError)
    said = "attention: two: a kernel left the GPU unusable.*--skip" if lost else None
    with pytest.raises(SystemExit if lost else KeyboardInterrupt, match=said):
        bench("attention")
    assert names(json.loads((tmp_path / "attention-cpu.json").read_text())) == ["one"]
    assert (tmp_path / "attention-cpu.md").exists()


def test_budget_leaves_the_rest_out_and_says_so(bench, tmp_path):
    record = bench("attention", "--budget", "1e-9")
    assert record["cases"] == []
    left_out = [f"{case.group}: {case.name}" for case in TINY]
    assert record["left_out"] == left_out
    page = (tmp_path / "attention-cpu.md").read_text()
    assert page.endswith(f"Not reached within the time budget: {', '.join(left_out)}.\n")


def test_names_of_files():
    assert slug("NVIDIA H200") == "nvidia-h200"
