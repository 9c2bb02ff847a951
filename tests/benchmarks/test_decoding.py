"""Few queries: all compute the same attention, and which keys they meet."""

from argparse import Namespace

import pytest
import torch

from benchmarks import decoding
from benchmarks.attention import peers
from benchmarks.decoding import INTEGRATION, MAPPINGS, SDPA, Decoding, DecodingCase, called
from sparse_attn.hf.attention import sparse_attention

TINY = [
    DecodingCase("decoding", "9 keys", 1, 9, 2, 8, layers=3),
    DecodingCase("small", "4 tokens", 1, 4, 2, 8, queries=4, layers=2),
]


def test_rows(bench, monkeypatch):
    monkeypatch.setattr(Decoding, "cases", lambda *arguments: TINY)
    one, small = bench("decoding")["cases"]
    for case, passes in ((one, {"forward"}), (small, {"forward", "forward+backward"})):
        assert {row["pass"] for row in case["rows"]} == passes
        assert {row["name"] for row in case["rows"]} == {
            *(SDPA, INTEGRATION),
            *(f"ours {label}" for label in MAPPINGS),
        }
        assert all(row["reason"] is None for row in case["rows"])
    nonzeros = {row["mapping"]: row.get("nonzeros") for row in one["rows"] if row["ours"]}
    assert 0 < nonzeros["sparsemax"] < nonzeros["softmax"] == 1


@pytest.mark.parametrize("case", TINY)
def test_all_compute_attention(case):
    data = case.problems()[-1]
    expected = peers.sdpa(data, None)(*data.inputs)
    assert expected.shape == (1, 2, case.queries, 8)
    for forward in (
        called(decoding.sdpa_attention_forward),
        called(sparse_attention, MAPPINGS["softmax"]),
    ):
        torch.testing.assert_close(forward(*data.inputs), expected)
    sparse = called(sparse_attention, MAPPINGS["sparsemax"])(*data.inputs)
    assert not torch.allclose(sparse, expected, atol=1e-3)


def test_layers_share_no_memory():
    problems = TINY[0].problems()
    assert len({problem.key.data_ptr() for problem in problems}) == len(problems) == 3


@pytest.mark.parametrize("quick", [False, True])
def test_cases(quick):
    groups = [case.group for case in Decoding().cases("cpu", Namespace(quick=quick))]
    assert groups == ["decoding"] * (1 if quick else 2) + ["small"]
