"""Each patch and each way together give what the reference gives, or say why they do not."""

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
import torch

from sparse_attn import patch_lm_head, patch_model, patch_multilabel_head
from sparse_attn.kernels import dispatch
from tests.hf.families import BY_NAME, VOCABULARY
from tests.hf.helpers import jitter

from .ways import WAYS, Batch

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # of PEFT, about Transformers
    pytest.mark.filterwarnings("ignore::UserWarning"),
    # Dynamo makes an instance of each autograd function that it traces
    pytest.mark.filterwarnings(
        "ignore:.*autograd.function.Function.* should not be instantiated:DeprecationWarning"
    ),
]
LENGTHS = (9, 6, 9, 6)  # halves alike, so that the mean of their losses is that of the whole
LABELS = 5


def learned(model: Any) -> None:
    patch_model(model, "t-softmax", t=2.0, learn="t", per="head")
    jitter(model)


PATCHES: dict[str, Callable[[Any], Any]] = {
    "attention": lambda model: patch_model(model, "r-softmax", r=0.3),
    "sink": lambda model: patch_model(model, "scaled-entmax", alpha=1.5, sink=0.5),
    "learned": learned,
    "by query": lambda model: patch_model(model, "scaled-entmax", alpha=1.5, per="query"),
    "LM head": lambda model: patch_lm_head(model, "entmax", alpha=1.5),
    "multi-label head": lambda model: patch_multilabel_head(
        model, "sparsemax", loss="sparsegen-hinge"
    ),
}


def build(name: str) -> Any:
    """A tiny Llama, with the same weights at every call."""
    kind = "SequenceClassification" if name == "multi-label head" else "CausalLM"
    options = {"num_labels": LABELS, "attn_implementation": "eager"}
    model = BY_NAME["llama"].build(f"LlamaFor{kind}", **options)
    torch.manual_seed(1)
    PATCHES[name](model)
    return model


def batch(name: str) -> Batch:
    """Rows with padding on the right, and labels."""
    torch.manual_seed(2)
    mask = (torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]).long()
    ids = torch.randint(5, VOCABULARY, mask.shape) * mask  # Llama's classifier looks for padding
    labels = ids.masked_fill(mask == 0, -100)
    if name == "multi-label head":
        labels = torch.eye(LABELS)[: len(ids)]
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", PATCHES)
def test_both_together(name: str, way: str) -> None:
    given = WAYS[way]
    if given.generates and name == "multi-label head":
        pytest.skip("a classifier")
    if given.refused and name == "LM head":
        with pytest.raises(ValueError, match=given.refused):
            given.answer(build(name), batch(name))
        return
    actual = given.answer(build(name), batch(name))
    with patch.dict(dispatch.AUTOMATIC, cpu=("reference",)):
        expected = (given.expected or given.answer)(build(name), batch(name))
    assert actual.keys() == expected.keys()
    for key, tensor in expected.items():
        other, finite = actual[key], tensor.isfinite()
        assert torch.equal(other[~finite], tensor[~finite]), f"{key}: infinities or NaN differ"
        error = (other[finite].double() - tensor[finite].double()).norm()
        assert error <= given.tolerance * tensor[finite].double().norm(), f"{key}: off by {error}"
