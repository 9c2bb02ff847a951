"""Transformers' tests of its models pass over patched ones, but for causes that are known."""

import json
from itertools import chain

import pytest

from tests.upstream.outcomes import (
    DIFFERS,
    EXPECTED,
    MAPPINGS,
    UNEXPECTED,
    UNPATCHED,
    run,
    summary,
)
from tests.upstream.testers import NAMES, SOURCES

pytestmark = pytest.mark.skipif(
    not SOURCES.is_dir(), reason=f"{SOURCES} is not there; `make upstream` fetches it"
)

FEW = (
    "test_attention_outputs",
    "test_batching_equivalence",
    "test_can_be_initialized_on_meta",
    "test_determinism",
    "test_gradient_checkpointing_enable_disable",
    "test_hidden_states_output",
    "test_model_outputs_equivalence",
    "test_retain_grad_hidden_states_attentions",
    "test_save_load",
    "test_torch_save_load",
    "test_training",
    "test_training_gradient_checkpointing",
)
EAGER = "test_eager_matches_sdpa_inference"
AGAINST_EAGER = (f"{EAGER}_09_fp32_pad_left", f"{EAGER}_13_fp32_pad_right")


@pytest.mark.slow
@pytest.mark.parametrize("mapping", ["softmax", "r-softmax"])
@pytest.mark.parametrize("name", ["bert", "bart", "gpt2", "llama", "vit"])
def test_a_few(name: str, mapping: str) -> None:
    found = summary(mapping, run(mapping, name, FEW + AGAINST_EAGER), {})
    if mapping == "softmax":
        assert found == {"passed": len(FEW) + 2, "skipped": 0}
    else:
        assert found == {"passed": len(FEW), "skipped": 0, DIFFERS: {EAGER: 2}}


@pytest.mark.soak
@pytest.mark.parametrize("mapping", MAPPINGS)
@pytest.mark.parametrize("name", NAMES)
def test_all(mapping: str, name: str) -> None:
    expected = {}
    if EXPECTED.exists():
        rows = map(json.loads, EXPECTED.read_text().splitlines())
        expected = {(row.pop("mapping"), row.pop("family")): row for row in rows}
    unpatched = expected.get((UNPATCHED, name)) or summary(UNPATCHED, run(UNPATCHED, name), {})
    outcomes = run(mapping, name)
    found = summary(mapping, outcomes, unpatched)
    unexpected = {why: tests for why, tests in found.items() if why.startswith(UNEXPECTED)}
    assert not unexpected, "\n".join(chain.from_iterable(outcomes.values()))
    if not expected:
        pytest.skip(f"there is no {EXPECTED.name} to compare with; found {found}")
    assert found == expected[mapping, name]
