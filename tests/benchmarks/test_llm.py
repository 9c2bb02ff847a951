"""The benchmark of a language model, on a tiny one."""

import pytest
from transformers import LlamaConfig, LlamaModel

from benchmarks import llm
from benchmarks.llm import MAPPINGS, RECORDED, ROWS, SDPA
from tests.hf.families import LLAMA
from tests.letters import letter_tokenizer


@pytest.fixture
def tiny(monkeypatch):
    tokenizer = letter_tokenizer()
    config = {**LLAMA, "vocab_size": len(tokenizer), "max_position_embeddings": 256}
    model = LlamaModel(LlamaConfig(**config, initializer_range=0.5)).eval()
    monkeypatch.setattr(llm, "opened", lambda device: (model, tokenizer))
    # in this process: another one has no tiny model
    monkeypatch.setattr(
        llm, "in_another_process", lambda function, *arguments: function(*arguments)
    )


def test_rows(bench, tiny):
    prefill, dynamic, static, recording = bench("llm")["cases"]
    for case in (prefill, dynamic, static):
        assert [row["name"] for row in case["rows"]] == [SDPA, *(f"ours {n}" for n in MAPPINGS)]
    for case in (prefill, dynamic, static, recording):
        assert all(row["reason"] is None for row in case["rows"])
    zeros = {row["name"]: row.get("zeros") for row in prefill["rows"]}
    assert zeros["ours softmax"] == 0
    assert 0 < zeros["ours top-p-softmax p=0.95"] < zeros["ours top-p-softmax p=0.9"]
    plain, rows = recording["rows"]
    assert (plain["name"], rows["name"]) == (RECORDED, ROWS)
    assert rows["rows_mib"] > 0
    assert rows["to"][RECORDED]["median"] > 0
