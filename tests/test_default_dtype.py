"""Numbers and parameters do not depend on PyTorch's default dtype, which some scripts set."""

from dataclasses import replace

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, BertModel

from sparse_attn import Mapping, mapping_names, patch_lm_head, patch_model, register_mapping
from sparse_attn.heads import FactoredSphericalHead, LinearHead, search_threshold
from sparse_attn.inspection import sum_attention
from sparse_attn.losses import bouchard_bound
from sparse_attn.mappings import registry


def under(dtype, make):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        torch.manual_seed(0)
        return make()
    finally:
        torch.set_default_dtype(before)


def own_mapping():
    """A user's mapping, whose weights have the default dtype."""
    plif = registry.get_spec("plif")
    registry._SPECS.pop("own", None)
    register_mapping(replace(plif, name="own", weights=lambda **_: {"raw": torch.ones(3)}))
    return Mapping("own")


def lm_head():
    config = BertConfig(vocab_size=50, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
                        intermediate_size=8)  # fmt: skip
    return patch_lm_head(BertForMaskedLM(config), "plif").cls.predictions.decoder.mapping


MODULES = {
    **{name: lambda name=name: Mapping(name) for name in mapping_names()},
    "learned": lambda: Mapping("mixed-t-softmax", t=3.3, mix=0.4, learn=("t", "mix"), num_heads=2),
    "own": own_mapping,
    "head": lambda: LinearHead(4, 6, "monotone").mapping,
    "factored": lambda: FactoredSphericalHead(4, 6),
    "lm head": lm_head,
}


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    monkeypatch.setattr(registry, "_SPECS", dict(registry._SPECS))


@pytest.mark.parametrize(
    ("name", "dtype"),
    # in a model in float64 a mapping is moved to float64
    [*((n, torch.bfloat16) for n in MODULES), *((n, torch.float64) for n in [*MODULES][:-1])],
    ids=str,
)
def test_parameters_are_float32(name, dtype):
    state = under(dtype, MODULES[name]).state_dict()
    expected = under(torch.float32, MODULES[name]).state_dict()
    assert state.keys() == expected.keys()
    assert all(t.dtype == torch.float32 for t in state.values())
    if name != "factored":  # random numbers of another dtype are others
        torch.testing.assert_close(state, expected, rtol=0, atol=0, equal_nan=True)


def summed():
    config = BertConfig(vocab_size=50, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
                        intermediate_size=8)  # fmt: skip
    model = under(torch.float32, lambda: patch_model(BertModel(config).eval(), "sparsemax"))
    with torch.no_grad(), sum_attention(model, 5) as found:
        model(torch.arange(5)[None])
    return found.total


SCORES = torch.linspace(-3, 3, 1001, dtype=torch.float64)
NUMBERS = {
    "Bouchard's bound": lambda: bouchard_bound(SCORES, xi=1.0),
    # F1 of 999 or 1000 hits of 1000, which bfloat16 cannot tell apart
    "the best threshold": lambda: torch.tensor(
        search_threshold(
            SCORES.log_softmax(-1)[None], SCORES[None] > SCORES[1], [1e-6 * i for i in range(20)]
        ),
        dtype=torch.float64,
    ),
    "summed attention": summed,
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_are_exact(name):
    assert torch.equal(under(torch.bfloat16, NUMBERS[name]), under(torch.float32, NUMBERS[name]))
