"""Sparse rows of whole models, beside the dense weights of the same calls."""

from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from sparse_attn import patch_model
from sparse_attn.inspection import record_attention
from sparse_attn.kernels.sparse_rows import SparseRows
from tests.hf.families import BY_NAME, LLAMA, tokens
from tests.inspection.tiny import IDS, MASK, sharp_bert

FAMILIES = ("bert", "t5", "llama", "mistral", "gemma2", "gpt-oss", "vit", "bart")


def assert_equal(rows: SparseRows, weights: torch.Tensor, **tolerance: float) -> None:
    """The rows of all heads are the dense weights."""
    for sequence in range(rows.shape[0]):
        for head in rows.heads:
            expected = weights[sequence, head][rows.queries]
            found = rows[sequence, head].to_dense()
            torch.testing.assert_close(found, expected.to(found), **tolerance)


@pytest.mark.parametrize("name", FAMILIES)
def test_families(name: str) -> None:
    """Padding, biases, soft caps, windows, sinks, grouped heads, and keys of another stack."""
    family = BY_NAME[name]
    torch.manual_seed(0)
    model = patch_model(family.build(), "top-p-softmax", p=0.7)
    inputs = family.inputs()
    with torch.no_grad():
        with record_attention(model, weights=True) as dense:
            model(**inputs)
        with record_attention(model, weights="sparse") as sparse:
            model(**inputs)
    assert list(sparse.sparse) == dense.layers
    for index, (rows,) in enumerate(sparse.sparse.values()):
        weights = dense.weights[index]
        assert weights is not None
        assert rows.first == 0
        assert (rows.weights > 0).all()
        assert_equal(rows, weights, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(sparse.zeros, dense.zeros)


def llama(**changes: Any) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(**{**LLAMA, "max_position_embeddings": 2048, **changes})
    config.initializer_range = 0.5
    return LlamaForCausalLM(config).eval()


@pytest.mark.parametrize("cache", [None, "static"])
def test_generation_step_by_step(cache: str | None) -> None:
    """One entry for each call, whose queries follow those of the call before."""
    model = patch_model(llama(), "sparsemax")
    given = {"attention_mask": torch.ones(2, 5).long(), "max_new_tokens": 4, "min_new_tokens": 4}
    given |= {"do_sample": False, "cache_implementation": cache}
    prompt = tokens(2, 5)
    with record_attention(model, weights="sparse") as record:
        ids = model.generate(prompt, **given)
    with record_attention(model, weights=True) as dense, torch.no_grad():
        model(ids)
    for weights, calls in zip(dense.weights, record.sparse.values(), strict=True):
        assert weights is not None
        assert [rows.shape[2] for rows in calls] == [5, 1, 1, 1]
        position = 0
        for rows in calls:
            queries = rows.shape[2]
            if cache is None:
                assert rows.first == position
            for sequence in range(2):
                for head in rows.heads:
                    found = rows[sequence, head].to_dense()
                    expected = weights[sequence, head, position : position + queries]
                    width = min(found.shape[1], expected.shape[1])
                    torch.testing.assert_close(
                        found[:, :width], expected[:, :width], atol=1e-5, rtol=1e-4
                    )
                    assert not found[:, width:].any()
            position += queries


def test_a_choice() -> None:
    model = sharp_bert("sparsemax")
    with torch.no_grad():
        with record_attention(model, weights=True) as dense:
            model(IDS, attention_mask=MASK)
        with record_attention(
            model, weights="sparse", layers=[-1, dense.layers[0]], heads=[1], queries=[0, -1]
        ) as sparse:
            model(IDS, attention_mask=MASK)
    assert list(sparse.sparse) == [dense.layers[0], dense.layers[2]]
    for name, (rows,) in sparse.sparse.items():
        assert (rows.heads, rows.queries) == ([1], [0, 6])
        weights = dense.weights[dense.layers.index(name)]
        assert weights is not None
        assert_equal(rows, weights)


def test_small_weights_of_a_mapping_without_zeros() -> None:
    model = sharp_bert()
    with (
        pytest.raises(ValueError, match=r"softmax, the mapping of .*threshold=1e-3"),
        record_attention(model, weights="sparse"),
    ):
        pass
    with torch.no_grad(), record_attention(model, weights="sparse", threshold=0.1) as sparse:
        model(IDS, attention_mask=MASK)
    (rows,) = sparse.sparse["encoder.layer.0.attention.self"]
    assert 0.1 < float(rows.weights.min()) < 0.5


def test_weights_of_hooked_mappings() -> None:
    """Only the reference runs them, and the rows are what the model used."""
    model = patch_model(llama(), "sparsemax")
    hooked = model.model.layers[0].self_attn
    hooked.sparse_attn.register_forward_hook(lambda *given: given[2].flip(-1))
    ids = tokens(1, 6)
    with torch.no_grad(), record_attention(model, weights="sparse") as sparse:
        model(ids)
    with torch.no_grad(), record_attention(model, weights=True) as dense:
        model(ids)
    for weights, (rows,) in zip(dense.weights, sparse.sparse.values(), strict=True):
        assert weights is not None
        assert_equal(rows, weights)


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"weights": "dense"}, ValueError, "weights='dense': expected True, False or 'sparse'"),
        ({"weights": True, "threshold": 0.1}, ValueError, "threshold=0.1: only with weights='sp"),
        ({"weights": "sparse", "threshold": -1}, ValueError, "threshold=-1: expected a number of"),
        ({"weights": "sparse", "threshold": True}, TypeError, "threshold=True: expected a number"),
        ({"weights": "sparse", "layers": ["a"]}, ValueError, "no layer 'a'; .*names such as 'enc"),
        ({"weights": "sparse", "layers": "all"}, TypeError, r"layers='all': expected a list"),
        ({"weights": "sparse", "queries": []}, ValueError, r"queries=\[\]: names none"),
        ({"weights": "sparse", "heads": ["a"]}, TypeError, r"heads=\['a'\]: expected integers"),
        ({"heads": [0]}, ValueError, "heads=.*: only with weights='sparse'"),
        ({"received": "x"}, TypeError, "received='x': expected True or False"),
    ],
)
def test_wrong_choices(arguments: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says), record_attention(sharp_bert("sparsemax"), **arguments):
        pass


def test_a_layer_that_was_not_kept() -> None:
    with record_attention(sharp_bert("sparsemax"), weights="sparse", layers=[1]) as record:
        pass
    for layer in ("encoder.layer.0.attention.self", 0, -3, 3):
        assert layer not in record.sparse
        assert record.sparse.get(layer) is None
        with pytest.raises(KeyError, match=rf"no sparse rows of {layer!r}; the layers are enc"):
            record.sparse[layer]
    assert record.sparse[1] is record.sparse[-2] is record.sparse["encoder.layer.1.attention.self"]
    assert 1 in record.sparse
    assert record.sparse.get(1) is record.sparse[1]
