"""Half precision leaves learned parameters of the mappings in float32, and fixed ones whole."""

import pytest
import torch

from sparse_attn import patch_model

from .families import BY_NAME, FAMILIES
from .helpers import (
    CALM,
    MAPPINGS,
    assert_near,
    gradients,
    learned,
    learning,
    mapping_id,
    mappings_of,
    patch,
)

BERT = BY_NAME["bert"]
HALVES = [torch.bfloat16, torch.float16]


CASTS = {
    "bfloat16": (lambda model: model.bfloat16(), torch.bfloat16),
    "half": (lambda model: model.half(), torch.float16),
    "to": (lambda model: model.to(torch.bfloat16), torch.bfloat16),
    "to and back": (lambda model: model.to(torch.bfloat16).to(torch.float32), torch.float32),
    "float": (lambda model: model.float(), torch.float32),
}


@pytest.mark.parametrize(("cast", "dtype"), CASTS.values(), ids=CASTS)
def test_casting_the_model_keeps_parameters(cast, dtype):
    """Of every kind: learned a head, values by head, a float."""
    model = learning(BERT.build(num_hidden_layers=3), per="head")
    patch_model(model, "r-softmax", r=[0.15, 0.2, 0.3, 0.45], per="head", layers=[1])
    patch_model(model, "r-softmax", r=0.15, layers=[2])
    before = [m.parameter_values() for m in mappings_of(model)]
    assert cast(model).embeddings.word_embeddings.weight.dtype == dtype
    assert [m.parameter_values() for m in mappings_of(model)] == before
    for mapping in mappings_of(model):
        assert all(learned.dtype == torch.float32 for learned in mapping.parameters())
        assert all(fixed.dtype.itemsize >= 4 for fixed in mapping.buffers())


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_patching_a_model_in_half_precision_keeps_parameters_in_float32(dtype):
    model = learning(BERT.build().to(dtype))
    assert all(p.dtype == torch.float32 for p in learned(model).values())


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("mapping", MAPPINGS, ids=mapping_id)
def test_every_mapping_is_finite_in_half_precision(mapping, dtype):
    model = patch(BERT.build().to(dtype), mapping).train()
    output = BERT.run(model, BERT.inputs())
    assert output.dtype == dtype
    output.float().square().mean().backward()
    assert output.isfinite().all()
    assert gradients(model)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_every_family_is_finite_in_half_precision(family, dtype):
    inputs = {n: t.to(dtype) if t.is_floating_point() else t for n, t in family.example.items()}
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
    found = gradients(model)
    for name, parameter in learned(model).items():
        assert parameter.dtype == found[name].dtype == torch.float32


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
