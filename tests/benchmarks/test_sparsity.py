"""Which zeros the suite of sparse attention measures, and where."""

from argparse import Namespace
from dataclasses import replace

import pytest
import torch

from benchmarks import sparsity
from benchmarks.attention.contestants import share_of_zeros
from benchmarks.sparsity import COLUMNS, MAPPINGS, SDPA, SOFTMAX, TRAINING, Sparsity, SparsityCase
from sparse_attn import Mapping

TINY = [
    SparsityCase("random", "small", 1, 40, 2, 8),
    SparsityCase("minilm", "small", 6, 24, 3, 32),
    SparsityCase("random", "causal", 1, 40, 4, 8, causal=True, key_heads=2),
]


def test_rows(bench, monkeypatch, tmp_path):
    monkeypatch.setattr(Sparsity, "cases", lambda *arguments: TINY)
    threads = torch.get_num_threads()
    for case in bench("sparsity")["cases"]:
        by = {(row["name"], row["pass"]): row for row in case["rows"]}
        assert by.keys() == {(name, column) for name in (*MAPPINGS, SDPA) for column in COLUMNS}
        assert all(row["reason"] is None and row["to"][SOFTMAX]["n"] == 2 for row in by.values())
        zeros = {name: by[name, TRAINING]["zeros"] for name in MAPPINGS}
        assert zeros[SOFTMAX] == 0 < zeros["r-softmax r=0.15"] < zeros["r-softmax r=0.9"]
    assert torch.get_num_threads() == threads
    page = (tmp_path / "sparsity-cpu.md").read_text()
    assert f"| sparsemax | {100 * zeros['sparsemax']:.4g}% |" in page


def test_share_of_zeros():
    data = TINY[0].problem()
    scores = data.query @ data.key.transpose(-2, -1) * 8**-0.5
    for name, mapping in MAPPINGS.items():
        expected = (mapping(scores) == 0).float().mean().item()
        assert share_of_zeros(data, mapping) == pytest.approx(expected, abs=1e-4), name


def test_random_scores_have_their_spread():
    data = SparsityCase("random", "", 2, 256, 4).problem()
    scores = data.query @ data.key.transpose(-2, -1) / 8
    assert scores.std().item() == pytest.approx(sparsity.SPREAD, rel=0.05)


def test_recorded_scores_are_those_of_the_model():
    from transformers import AutoModel, AutoTokenizer

    from benchmarks.command import MINILM
    from sparse_attn.hf.opening import resolve_model

    folder = resolve_model(MINILM)
    model = AutoModel.from_pretrained(folder, attn_implementation="eager")
    ids = AutoTokenizer.from_pretrained(folder)(sparsity.TEXT.read_text(), return_tensors="pt")
    ids = torch.cat([ids["input_ids"][:, :23], ids["input_ids"][:, -1:]], dim=1)
    with torch.no_grad():
        weights = model(ids, output_attentions=True).attentions
    data = replace(TINY[1], heads=12).problem()
    scores = data.query @ data.key.transpose(-2, -1) * 32**-0.5
    torch.testing.assert_close(Mapping(SOFTMAX)(scores), torch.cat(weights), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_longer_rows_are_several_pieces():
    short, long = (SparsityCase("minilm", "", 6, n, 2, 32).problem() for n in (512, 1024))
    torch.testing.assert_close(long.key[:, :, :512], short.key, rtol=1e-3, atol=1e-3)
    assert long.key.shape == (6, 2, 1024, 32)


@pytest.mark.parametrize("quick", [False, True])
def test_cases(quick):
    found = Sparsity().cases("cpu", Namespace(quick=quick))
    assert len({(case.group, case.name) for case in found}) == len(found)
    assert all(str(case.length) in case.name for case in found)
