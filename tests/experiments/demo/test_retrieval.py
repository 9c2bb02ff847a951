"""Retrieval: what counts as answered, and what MiniLM answers."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from experiments.demo.retrieval import CONTROL, MODEL, _row, answered
from sparse_attn import Mapping
from sparse_attn.comparison.measure import Variant, measure
from sparse_attn.comparison.reader import open_reader

TEXTS = ["What is hail?", "Who wrote Faust?"]
TEXTS += ["Hail is lumps of ice that fall from thunderclouds.", "Goethe worked on Faust."]
TEXTS += ["Jet planes burn kerosene.", "Tofu takes up the flavour of sauces, such as soy sauce."]


def test_answered() -> None:
    questions = torch.eye(3, 4)
    answers = torch.eye(3, 4).roll(0, 0)
    answers[1], answers[2] = torch.eye(4)[3], F.normalize(torch.tensor([0.0, 0, 1, 0.5]), dim=0)
    distractors = torch.eye(4)[[3, 3, 2]]
    # of the second nothing is near but another's; the third's distractor is nearer than its answer
    assert answered(questions, answers, distractors).tolist() == [True, False, False]


def test_pretrained_attention_finds_the_answers() -> None:
    reader = open_reader(MODEL, embed=True)
    mappings = [Mapping("softmax"), Mapping(CONTROL, r=1.0)]
    variants = [Variant(mapping.name, reader, mapping) for mapping in mappings]
    batches = reader.batches([(text,) for text in TEXTS])
    softmax, random = measure(batches, variants, "")
    right = _row(softmax, softmax)
    assert (right["zeros"], right["right"], right["interval"]) == (0, 1, [0, 0])
    lost = _row(random, softmax)
    assert lost["zeros"] > 0.8
    assert lost["difference"] == pytest.approx(lost["right"] - 1)
    low, high = lost["interval"]
    assert low <= lost["difference"] <= high
    assert np.isfinite(random.agreement).all()
