"""PyTorch's dynamic int8 quantisation of the linear layers around a mapping."""

from copy import deepcopy

import pytest
import torch

from sparse_attn import patch_model, unpatch_model
from tests.hf.families import BY_NAME
from tests.hf.helpers import FEW, assert_near, mapping_id

BERT = BY_NAME["bert"]
# PyTorch would rather have it done by torchao
pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated"),
    pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor"),
]


def quantized(model):
    return torch.ao.quantization.quantize_dynamic(model.eval(), {torch.nn.Linear})


@pytest.mark.parametrize("mapping", FEW, ids=mapping_id)
def test_only_the_linear_layers_change(mapping):
    name, parameters = mapping
    plain = BERT.build()
    before = quantized(patch_model(deepcopy(plain), name, **parameters))
    after = patch_model(quantized(plain), name, **parameters)
    assert torch.equal(BERT.hidden(before), BERT.hidden(after))
    inputs = BERT.inputs()
    found = before(**inputs, output_attentions=True).attentions[0]
    expected = patch_model(deepcopy(plain), name, **parameters).eval()
    close = expected(**inputs, output_attentions=True).attentions[0]
    assert (found == 0).any()
    assert (found - close).abs().mean() < 0.02  # of 8 bits
    assert torch.equal(BERT.hidden(unpatch_model(before)), BERT.hidden(quantized(plain)))


def test_softmax_is_that_of_the_plain_model():
    plain = BERT.build()
    found = BERT.hidden(quantized(patch_model(deepcopy(plain), "softmax")))
    assert_near(found, BERT.hidden(quantized(plain)), 1e-5)


def test_its_weights_are_loaded_into_a_model_made_the_same_way():
    model = quantized(patch_model(BERT.build(), "t-softmax", t=2.0, learn="t", per="head"))
    again = quantized(patch_model(BERT.build(), "t-softmax", t=5.0, learn="t", per="head"))
    again.load_state_dict(model.state_dict())
    assert torch.equal(BERT.hidden(again), BERT.hidden(model))
