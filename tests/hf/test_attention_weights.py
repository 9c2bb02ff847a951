"""The attention weights a model gives out are the mapping's."""

import pytest
import torch

from sparse_attn import patch_model
from sparse_attn.hf.attention import sparse_attention

from .families import BY_NAME, FAMILIES
from .helpers import MAPPINGS, mapping_id, mappings_of, patch

BERT = BY_NAME["bert"]


def attentions(model, inputs):
    with torch.no_grad():
        output = model(**inputs, output_attentions=True)
    names = ("attentions", "encoder_attentions", "decoder_attentions", "cross_attentions")
    return [w for name in names for w in getattr(output, name, None) or ()]


@pytest.mark.parametrize("mapping", MAPPINGS, ids=mapping_id)
def test_rows_have_the_mass_and_the_zeros_that_the_mapping_says(mapping):
    inputs = BERT.inputs()
    model = patch(BERT.build(), mapping)
    spec = next(mappings_of(model)).spec
    keep = inputs["attention_mask"].bool()[:, None, None, :].expand(3, 4, 9, 9)
    for weights in attentions(model, inputs):
        assert (weights >= 0).all()
        mass = weights.sum(-1)
        if spec.mass != "free":
            assert (mass <= 1 + 1e-5).all()
        if spec.mass == "one":
            torch.testing.assert_close(mass, torch.ones(3, 4, 9))
        else:
            assert ((mass - 1).abs() > 1e-3).any()
        assert (weights[~keep] == 0).all()
        share = (weights[keep] == 0).float().mean()
        if mapping[0] == "weighted-softmax":  # zeros only where a weight is zero
            continue
        # a share of softmax leaves no zero
        zeros = spec.zeros and mapping[1].get("mix", 1.0) == 1.0
        assert (share > 0.05) == zeros or "spherical" in mapping[0]


@pytest.mark.parametrize("family", [f for f in FAMILIES if f.name != "clip"], ids=str)
def test_every_module_gives_its_weights(family):
    inputs = family.unmasked()
    expected = attentions(family.build(attn_implementation="eager"), inputs)
    model = patch_model(family.build(), "softmax")
    actual = attentions(model, inputs)
    assert len(actual) == len(expected) == (2 if family.name == "albert" else family.modules)
    sparse = attentions(patch_model(model, "sparsemax"), inputs)
    for ours, theirs, zeros in zip(actual, expected, sparse, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
        mass = zeros.sum(-1)
        # the sinks of the model take the rest
        expected_mass = mass.clamp(0, 1) if family.name == "gpt-oss" else torch.ones_like(mass)
        torch.testing.assert_close(mass, expected_mass)
        assert (zeros == 0).sum() > (ours == 0).sum()


def test_weights_are_those_before_dropout():
    layer = patch_model(BY_NAME["bert"].build(), "softmax").encoder.layer[0].attention.self.train()
    query = torch.randn(2, 4, 5, 4)
    output, weights = sparse_attention(
        layer, query, query, query, None, dropout=0.5, output_attentions=True
    )
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, 5))
    assert not torch.allclose(output, (weights @ query).transpose(1, 2))
    exact, _ = sparse_attention(layer.eval(), query, query, query, None, dropout=0.5)
    torch.testing.assert_close(exact, (weights @ query).transpose(1, 2))
