"""What was saved at commit 5fcc149 still loads.

tests/saved holds tiny models with the first numbers of what they gave. expected.json was written
with them, and neither is ever made anew.
"""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from .helpers import peft_warns

SAVED = Path(__file__).parents[1] / "saved"
EXPECTED = json.loads((SAVED / "expected.json").read_text())
IDS = torch.arange(12).view(2, 6) % 29 + 1
CAUSAL = {"lm-head", "attention-and-lm-head"}
CLASSIFIERS = {"attention", "learned", "multilabel", "by-layer"}


def check(name, outputs):
    with torch.no_grad():
        found = outputs.double().flatten().tolist()
    expected = EXPECTED[name]
    assert found[: len(expected)] == pytest.approx(expected, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("name", sorted(CLASSIFIERS | CAUSAL))
def test_a_checkpoint(name):
    cls = AutoModelForCausalLM if name in CAUSAL else AutoModelForSequenceClassification
    model = cls.from_pretrained(SAVED / name).eval()
    check(name, model(IDS)[0])


@peft_warns
def test_an_adapter():
    from peft import PeftModel

    base = AutoModelForSequenceClassification.from_pretrained(SAVED / "adapter-base")
    model = PeftModel.from_pretrained(base, SAVED / "adapter").eval()
    check("adapter", model(IDS)[0])


def test_a_sentence_transformer():
    package = pytest.importorskip("sentence_transformers", reason="needs sentence-transformers")
    path = str(SAVED / "sentence-transformer")
    model = package.SentenceTransformer(path, device="cpu", trust_remote_code=True)
    check("sentence-transformer", torch.from_numpy(model.encode(["abc d"])[0]))
