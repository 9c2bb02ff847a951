"""Padding changes nothing, a row without keys is zeros with finite gradients."""

import pytest
import torch

from sparse_attn import patch_model

from .families import BY_NAME, FAMILIES, PADDED, padding, tokens
from .helpers import CALM, FEW, MAPPINGS, assert_near, gradients, mapping_id, mappings_of, patch

BERT, LLAMA, ROBERTA = BY_NAME["bert"], BY_NAME["llama"], BY_NAME["roberta"]
# Rows of other shapes are summed in another order, and two random layers amplify the rounding.
ROUNDING = 3e-5

SEQUENCES = [family for family in FAMILIES if family.name != "vit"]  # images have no padding


@pytest.mark.parametrize("mapping", CALM, ids=mapping_id)
def test_padded_batch_equals_its_rows_for_every_mapping(mapping):
    check_rows(patch(BERT.build(), mapping), BERT)


@pytest.mark.parametrize("mapping", FEW, ids=mapping_id)
@pytest.mark.parametrize("family", SEQUENCES, ids=str)
def test_padded_batch_equals_its_rows_in_every_family(family, mapping):
    check_rows(patch(family.build(), mapping), family)


def unpadded(inputs, row):
    """One row of a padded batch without its padding and without masks."""
    result = {name: tensor[row : row + 1] for name, tensor in inputs.items()}
    for mask, names in PADDED.items():
        if mask in result:
            length = int(result.pop(mask).sum())
            result.update({n: result[n][:, :length] for n in names if n in result})
    return result


def check_rows(model, family):
    inputs = family.inputs()
    with torch.no_grad():
        batch = family.run(model, inputs)
        keep = family.valid(inputs, batch)
        for row in range(len(batch)):
            alone = family.run(model, unpadded(inputs, row))
            assert_near(batch[row][keep[row]], alone[0], ROUNDING)


@pytest.mark.parametrize("mapping", MAPPINGS, ids=mapping_id)
def test_sequence_without_tokens_is_zeros_with_finite_gradients(mapping):
    model = patch(BERT.build(), mapping)
    inputs = {"input_ids": tokens(), "attention_mask": padding((9, 4, 9))}
    inputs["attention_mask"][2] = 0
    mass = next(mappings_of(model)).spec.mass
    output = model(**inputs, output_attentions=True)
    for weights in output.attentions:
        assert (weights[2] == 0).all()
        attends = weights[:2].sum(-1) > 0
        # a row that need not sum to one may be all zeros
        assert attends.all() or (mass != "one" and attends.any())
    output.last_hidden_state.sum().backward()
    assert gradients(model)
    assert output.last_hidden_state.isfinite().all()


@pytest.mark.parametrize("family", [f for f in FAMILIES if f.causal], ids=str)
def test_left_padding_gives_finite_outputs_and_gradients(family):
    """The first queries of a left-padded row see no key at all."""
    model = patch_model(family.build(), "sparsemax")
    inputs = family.inputs()
    inputs["attention_mask"] = inputs["attention_mask"].flip(-1)
    output = model(**inputs)
    output.last_hidden_state[inputs["attention_mask"].bool()].square().sum().backward()
    assert output.last_hidden_state.isfinite().all()
    assert any(gradient.any() for gradient in gradients(model).values())


@pytest.mark.parametrize("lowest", [-1e4, torch.finfo(torch.float16).min, -torch.inf])
@pytest.mark.parametrize("mapping", FEW, ids=mapping_id)
def test_additive_padding_may_carry_a_bias(mapping, lowest):
    """-1e4 + a bias of up to 500 still masks, and so does -1e4 + -1e4."""
    model, ids = patch(BERT.build(), mapping), tokens()
    bias = torch.rand(3, 1, 9, 9)
    bias[0] = bias[0] * 1000 - 500
    shut = (padding() == 0)[:, None, None, :]
    given = bias + torch.zeros(3, 1, 1, 9).masked_fill(shut, lowest)
    given[:, :, ::2] = given[:, :, ::2].where(~shut, 2 * given[:, :, ::2])
    with torch.no_grad():
        batch = model(ids, attention_mask=given).last_hidden_state
        for row, length in enumerate(padding().sum(-1).tolist()):
            one = slice(row, row + 1), slice(None, length)
            alone = model(ids[one], attention_mask=bias[row : row + 1, :, :length, :length])
            assert_near(batch[one], alone.last_hidden_state, ROUNDING)
