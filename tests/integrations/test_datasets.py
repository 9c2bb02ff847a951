"""The cache of `datasets`: a call of a patched model does not make `map` compute again."""

import copy
import pickle

import pytest
import torch
from datasets import Dataset
from datasets.fingerprint import Hasher

from sparse_attn import patch_lm_head, patch_model, patch_multilabel_head, unpatch_model
from tests.hf.families import BY_NAME
from tests.marks import first

BERT = BY_NAME["bert"]
CLASSIFIER = "BertForSequenceClassification"
PATCHES = {
    "plain": (lambda model: model, CLASSIFIER),
    "sparsemax": (lambda model: patch_model(model, "sparsemax"), CLASSIFIER),
    "learned": (lambda model: patch_model(model, "entmax", learn="alpha"), CLASSIFIER),
    "LM head": (lambda model: patch_lm_head(model, "sigsoftmax"), "BertForMaskedLM"),
    "LM head with zeros": (lambda model: patch_lm_head(model, "sparsemax"), "GPT2LMHeadModel"),
    "multi-label head": (lambda model: patch_multilabel_head(model, "sparsemax"), CLASSIFIER),
}


def build(name):
    patch, cls = PATCHES[name]
    return patch(BY_NAME["gpt2" if "GPT2" in cls else "bert"].build(cls))


def call(model):
    with torch.no_grad():
        return model(**BERT.example).logits


@pytest.mark.parametrize("name", first(*PATCHES))
def test_the_fingerprint_is_that_of_the_weights_and_the_mapping(name):
    model = build(name)
    new = Hasher.hash(model)
    expected = call(model)
    assert Hasher.hash(model) == new
    for again in (build(name), copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert Hasher.hash(again) == new
        assert torch.equal(call(again), expected)
        assert Hasher.hash(again) == new


def test_other_values_have_other_fingerprints():
    models = [patch_model(BERT.build(), "r-softmax", r=r) for r in (0.4, 0.5)]
    hashes = {Hasher.hash(model) for model in (*models, BERT.build())}
    assert len(hashes) == 3
    assert Hasher.hash(unpatch_model(models[0])) == Hasher.hash(unpatch_model(models[1]))


def embed(row, model):
    return {"sum": model(torch.tensor([row["ids"]])).logits.sum().item()}


def test_map_finds_what_it_has_computed():
    rows, model = Dataset.from_list([{"ids": [5, 6, 7]}]), build("sparsemax")
    first, second = (rows.map(embed, fn_kwargs={"model": model}) for _ in range(2))
    assert first._fingerprint == second._fingerprint
