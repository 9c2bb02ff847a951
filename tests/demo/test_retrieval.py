"""Retrieval: what counts as answered, the interval, and what an encoder with a mapping makes."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from tqdm import tqdm

from demo.retrieval import DRAWS, RANDOM, SETTINGS, Encoder, answered, interval, measure
from glue.config import MappingConfig
from sparse_attn import patched

TEXTS = ["What is hail?", "Who wrote Faust?"]
TEXTS += ["Hail is lumps of ice that fall from thunderclouds.", "Goethe worked on Faust."]
TEXTS += ["Jet planes burn kerosene.", "Tofu takes up the flavour of sauces, such as soy sauce."]


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return Encoder(TEXTS)


def test_answered() -> None:
    questions = torch.eye(3, 4)
    answers = torch.eye(3, 4).roll(0, 0)
    answers[1], answers[2] = torch.eye(4)[3], F.normalize(torch.tensor([0.0, 0, 1, 0.5]), dim=0)
    distractors = torch.eye(4)[[3, 3, 2]]
    # of the second nothing is near but another's; the third's distractor is nearer than its answer
    assert answered(questions, answers, distractors).tolist() == [True, False, False]


def test_interval_is_that_of_the_mean() -> None:
    differences = np.tile([0.0, 0.0, 0.0, -1.0], 100)
    low, high = interval(differences)
    half = 1.96 * differences.std() / 20
    assert (low, high) == pytest.approx((-0.25 - half, -0.25 + half), abs=5e-3)
    assert interval(np.zeros(9)) == (0, 0)


def test_embeddings_are_those_of_each_text_alone(encoder: Encoder) -> None:
    together = encoder()
    alone = torch.cat([Encoder([text])() for text in TEXTS])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-5)
    torch.testing.assert_close(together.norm(dim=-1), torch.ones(len(TEXTS)))


def test_a_draw_drops_other_keys_and_changes_nothing_else(encoder: Encoder) -> None:
    torch.testing.assert_close(encoder(0), encoder(1), rtol=0, atol=1e-4)
    with patched(encoder.model, RANDOM, r=0.5):
        assert (encoder(0) - encoder(1)).abs().max() > 1e-2
        assert torch.equal(encoder(1), encoder(1))


@pytest.mark.parametrize("name", ["r-softmax", RANDOM])
def test_measured(encoder: Encoder, name: str) -> None:
    with tqdm(disable=True) as bar:
        zeros, right = measure(MappingConfig(name, {"r": 0.5}), encoder, bar)
    assert 0.5 <= zeros < 0.6
    assert right.shape == (2,)
    assert set(right * (DRAWS if name == RANDOM else 1)) <= set(range(DRAWS + 1))


def test_pretrained_attention_finds_the_answers(encoder: Encoder) -> None:
    with tqdm(disable=True) as bar:
        zeros, right = measure(SETTINGS[0], encoder, bar)
    assert (zeros, right.tolist()) == (0, [1, 1])
