"""Patched models use the fused kernels by themselves, and the weights agree with them."""

import pytest
import torch

from sparse_attn import Mapping, patch_model
from sparse_attn.functional import r_softmax
from sparse_attn.kernels import dispatch
from sparse_attn.mappings import get_spec

from .families import BY_NAME
from .helpers import MAPPINGS, assert_near, gradients, mapping_id, mappings_of, patch

BERT = BY_NAME["bert"]
# weighted softmax is softmax of scores + log weights
FUSED = [entry for entry in MAPPINGS if get_spec(entry[0]).kernel or entry[0] == "weighted-softmax"]


@pytest.fixture
def calls(monkeypatch):
    """Every call, after the implementation that does it."""
    seen = []
    choose = dispatch.choose

    def spy(inputs, impl):
        seen.append((choose(inputs, impl), inputs))
        return seen[-1][0]

    monkeypatch.setattr(dispatch, "choose", spy)
    return seen


@pytest.mark.parametrize("mapping", FUSED, ids=mapping_id)
def test_output_is_that_of_the_reference(mapping, calls):
    inputs = BERT.inputs()
    model = patch(BERT.build(), mapping)
    fused = BERT.hidden(model, inputs)
    assert [name for name, _ in calls] == ["cpu"] * BERT.modules
    calls.clear()
    exact = BERT.hidden(model, {**inputs, "output_attentions": True})
    assert [name for name, _ in calls] == ["reference"] * BERT.modules
    assert_near(fused, exact, 5e-6)


def test_a_detached_gradient_is_never_that_of_the_kernels(calls, monkeypatch):
    inputs = BERT.inputs()
    towards = torch.randn(3, inputs["input_ids"].shape[1], BERT.build().config.hidden_size)

    def run(name, **options):
        model = patch_model(BERT.build(), name, r=0.3)
        hidden = model(**inputs, **options).last_hidden_state
        (hidden * towards).sum().backward()
        return hidden, gradients(model)

    detached, ours = run("detached-r-softmax")
    assert [name for name, _ in calls] == ["reference"] * BERT.modules
    hidden, exact = run("r-softmax", output_attentions=True)
    assert torch.equal(detached, hidden)

    def authors(self, scores, mask=None, dim=-1, sink=None):
        return r_softmax(scores, 0.3, gradient="detached", mask=mask, dim=dim)

    monkeypatch.setattr(Mapping, "forward", authors)
    _, expected = run("r-softmax", output_attentions=True)
    for name, gradient in ours.items():
        assert torch.equal(gradient, expected[name]), name
    moved = [name for name, gradient in ours.items() if not gradient.allclose(exact[name])]
    assert any("query" in name for name in moved)


@pytest.mark.parametrize("kind", ["register_forward_hook", "register_forward_pre_hook"])
def test_a_hook_on_the_mapping_sees_every_call(kind, calls):
    model = patch_model(BERT.build(), "sparsemax")
    seen = []
    for mapping in mappings_of(model):
        getattr(mapping, kind)(lambda *_: seen.append(1))
    model(**BERT.inputs())
    assert len(seen) == BERT.modules
    assert {name for name, _ in calls} == {"reference"}


def test_a_padding_mask_is_one_row(calls):
    inputs = BERT.inputs()
    patch_model(BERT.build(), "sparsemax")(**inputs)
    length = inputs["input_ids"].shape[1]
    for _, call in calls:
        assert call.mask.shape == (3, 1, length, length)
        assert call.mask.stride(2) == 0


def test_dropout_is_the_models(calls):
    model = patch_model(BERT.build(), "sparsemax").train()
    model(**BERT.inputs())
    rate = model.config.attention_probs_dropout_prob
    assert rate > 0
    assert {call.dropout for _, call in calls} == {rate}
    calls.clear()
    model.eval()(**BERT.inputs())
    assert {call.dropout for _, call in calls} == {0.0}
