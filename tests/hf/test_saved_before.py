"""What was saved at commit 5fcc149, before modules moved to other folders, still loads.

tests/saved holds tiny models with the first numbers of what they gave. expected.json was written
with them, and neither is ever made anew.
"""

import json
import pickle
from importlib import import_module
from pathlib import Path

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from sparse_attn import load_pretrained
from sparse_attn.inspection import record_attention
from sparse_attn.moved import MOVED

from .helpers import peft_warns

SAVED = Path(__file__).parents[1] / "saved"
EXPECTED = json.loads((SAVED / "expected.json").read_text())
IDS = torch.arange(12).view(2, 6) % 29 + 1
CAUSAL = {"lm-head", "attention-and-lm-head"}
CLASSIFIERS = {"attention", "learned", "multilabel", "by-layer"}
PICKLED_WITH = "5.23.0"  # whose modules the pickles name beside ours


def check(name, outputs):
    with torch.no_grad():
        found = outputs.double().flatten().tolist()
    expected = EXPECTED[name]
    assert found[: len(expected)] == pytest.approx(expected, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("name", sorted(CLASSIFIERS | CAUSAL))
def test_a_checkpoint(name):
    cls = AutoModelForCausalLM if name in CAUSAL else AutoModelForSequenceClassification
    model = load_pretrained(cls, SAVED / name).eval()
    check(name, model(IDS)[0])


@peft_warns
def test_an_adapter():
    from peft import PeftModel

    base = load_pretrained(AutoModelForSequenceClassification, SAVED / "adapter-base")
    model = PeftModel.from_pretrained(base, SAVED / "adapter").eval()
    check("adapter", model(IDS)[0])


def test_a_sentence_transformer():
    package = pytest.importorskip("sentence_transformers", reason="needs sentence-transformers")
    path = str(SAVED / "sentence-transformer")
    model = package.SentenceTransformer(path, device="cpu", trust_remote_code=True)
    check("sentence-transformer", torch.from_numpy(model.encode(["abc d"])[0]))


@pytest.mark.skipif(
    transformers.__version__ != PICKLED_WITH, reason=f"pickled with Transformers {PICKLED_WITH}"
)
@pytest.mark.parametrize("name", ["pickled", "pickled-head"])
def test_a_pickled_model(name):
    model = torch.load(SAVED / f"{name}.pt", weights_only=False)
    with record_attention(model) as record:
        check(name, model(IDS)[0])
    assert record.mean > 0.1


def test_pickled_mappings_and_a_schedule():
    learned, scaled, schedule = pickle.loads((SAVED / "mapping.pkl").read_bytes())
    assert (learned.name, learned.learned) == ("t-softmax", ("t",))
    assert learned.parameter_values() == {"t": pytest.approx([3.0])}
    assert scaled.name == "scaled-entmax"
    assert schedule.value(1.0) == pytest.approx(0.3)


@pytest.mark.parametrize("before", MOVED)
def test_a_module_by_its_earlier_name(before):
    module = import_module(before)
    assert module is import_module(MOVED[before])
    assert module.__spec__.name == module.__name__ == MOVED[before]
