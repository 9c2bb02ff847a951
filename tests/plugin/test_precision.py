"""Half precision leaves the parameters of the mappings in float32."""

import pytest
import torch

from sparse_attn import patch_model

from .families import BY_NAME, FAMILIES
from .helpers import (
    CALM,
    MAPPINGS,
    assert_near,
    jitter,
    mapping_id,
    mappings_of,
    patch,
)

BERT = BY_NAME["bert"]

HALVES = [torch.bfloat16, torch.float16]


def cast(inputs, dtype):
    return {n: t.to(dtype) if t.is_floating_point() else t for n, t in inputs.items()}


def mixed(family):
    """Every kind of parameter: learned a head, values by head, a float."""
    model = patch_model(family.build(num_hidden_layers=3), "t-softmax", learn="t", per="head")
    patch_model(model, "r-softmax", r=[0.15, 0.2, 0.3, 0.45], per="head", layers=[1])
    patch_model(model, "r-softmax", r=0.15, layers=[2])
    return model


@pytest.mark.parametrize("change", ["bfloat16", "half", "to", "to-and-back", "float"])
def test_casting_the_model_keeps_parameters(change):
    model = mixed(BY_NAME["bert"])
    jitter(model)
    before = [m.parameter_values() for m in mappings_of(model)]
    if change == "to":
        model.to(torch.bfloat16)
    elif change == "to-and-back":
        model.to(torch.bfloat16).to(torch.float32)
    else:
        getattr(model, change)()
    expected = {"bfloat16": torch.bfloat16, "half": torch.float16, "to": torch.bfloat16}
    weight = model.embeddings.word_embeddings.weight
    assert weight.dtype == expected.get(change, torch.float32)
    assert [m.parameter_values() for m in mappings_of(model)] == before
    for mapping in mappings_of(model):
        tensors = [*mapping.parameters(), *mapping.buffers()]
        assert all(tensor.dtype == torch.float32 for tensor in tensors)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_patching_a_model_in_half_precision_keeps_parameters_in_float32(dtype):
    model = BY_NAME["bert"].build().to(dtype)
    patch_model(model, "t-softmax", learn="t")
    assert all(p.dtype == torch.float32 for m in mappings_of(model) for p in m.parameters())


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("mapping", MAPPINGS, ids=mapping_id)
def test_every_mapping_is_finite_in_half_precision(mapping, dtype):
    inputs = BERT.inputs()
    model = patch(BERT.build().to(dtype), mapping).train()
    output = BERT.run(model, inputs)
    assert output.dtype == dtype
    output.float().square().mean().backward()
    assert output.isfinite().all()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            assert parameter.grad.isfinite().all(), name


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_every_family_is_finite_in_half_precision(family, dtype):
    inputs = cast(family.inputs(), dtype)
    model = patch_model(family.build().to(dtype), "sparsemax")
    output = family.hidden(model, inputs)
    assert output.dtype == dtype
    assert output.isfinite().all()


@pytest.mark.parametrize("mapping", CALM, ids=mapping_id)
def test_autocast_trains_float32_parameters(mapping):
    inputs = BERT.inputs()
    model = patch(BERT.build(), mapping)
    exact = BERT.hidden(model, inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = BERT.run(model, inputs)
        output.float().square().mean().backward()
    assert_near(output.detach()[inputs["attention_mask"].bool()].float(), exact, 0.25)
    for held in mappings_of(model):
        for parameter in held.parameters():
            assert parameter.dtype == parameter.grad.dtype == torch.float32
            assert parameter.grad.isfinite().all()


def test_additive_mask_of_another_precision_than_the_scores():
    """Under autocast the scores are bfloat16 and the mask float32; in float16 -1e9 is -inf."""
    inputs = BERT.inputs()
    model = patch_model(BERT.build().to(torch.float16), "r-softmax", r=0.3)
    expected = BERT.hidden(model, inputs)
    keep = inputs["attention_mask"].bool()
    additive = torch.zeros(3, 1, 1, 9).masked_fill(~keep[:, None, None, :], -1e9)
    with torch.no_grad():
        actual = BERT.run(model, {**inputs, "attention_mask": additive})[keep]
    assert torch.equal(actual, expected)
