"""One run: measures against SciPy, what a step moves, and what the heads can do."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from scipy.special import rel_entr

from experiments.bottleneck.config import Options
from experiments.bottleneck.heads import HEADS, make_head
from experiments.bottleneck.run import assemble, fit, measure
from experiments.bottleneck.targets import draw
from sparse_attn.evaluation.predictions import DivergedError
from tests.experiments.bottleneck.tiny import one

CPU = torch.device("cpu")
OPTIONS: dict[str, Options] = {"mos": {"components": 3}, "lms": {"units": 8}, "plif": {"knots": 50}}


@pytest.mark.parametrize("alpha", [0.005, 0.1, 1.0])
def test_measures_against_scipy(alpha: float) -> None:
    log_p = draw(alpha, 50, 12, seed=0).log_p
    head = make_head("softmax", 4, 12, {})
    contexts = torch.randn(50, 4)
    found = measure(head, contexts, log_p, batch=7)
    p = log_p.double().exp().numpy()
    q = (contexts @ head.weight.T).double().softmax(-1).detach().numpy()
    assert found["kl"] == pytest.approx(rel_entr(p, q).sum(-1).mean(), rel=1e-5)
    assert found["mode_matching"] == pytest.approx(100 * (p.argmax(-1) == q.argmax(-1)).mean())
    log_q = torch.from_numpy(q).log()
    assert found["log_error"] == pytest.approx(
        (log_p.double() - log_q).square().mean().item(), rel=1e-5
    )


def test_measures_of_a_perfect_fit() -> None:
    """D = M and the identity as word vectors: the context vectors are log P*."""
    log_p = draw(0.1, 20, 6, seed=0).log_p
    head = make_head("softmax", 6, 6, {})
    with torch.no_grad():
        head.weight.copy_(torch.eye(6))
    found = measure(head, log_p, log_p, batch=20)
    assert found["kl"] == pytest.approx(0, abs=1e-5)
    assert found["mode_matching"] == 100
    assert found["log_error"] == pytest.approx(0, abs=1e-8)
    wrong = measure(head, log_p.roll(1, dims=-1), log_p, batch=20)
    assert wrong["mode_matching"] == 0
    assert wrong["kl"] > 1


@pytest.mark.parametrize("head", HEADS)
def test_every_head_learns(head: str) -> None:
    log_p = draw(0.1, 30, 6, seed=0).log_p
    options = OPTIONS.get(head, {})
    short = one(head=head, options=options, dimension=5, steps=1, learning_rate=0.1)
    before = measure(*fit(short, log_p), log_p, 30)
    after = measure(*fit(replace(short, steps=150), log_p), log_p, 30)
    assert after["kl"] < 0.5 * before["kl"]
    assert after["mode_matching"] > before["mode_matching"]


def test_softmax_of_full_dimension_reaches_the_targets() -> None:
    log_p = draw(1.0, 30, 4, seed=0).log_p
    full = one(dimension=4, vocabulary=4, steps=400)
    found = measure(*fit(full, log_p), log_p, 30)
    assert found["kl"] < 1e-3
    assert found["mode_matching"] == 100


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_step_moves_ten_contexts_and_a_pass_all_thirty(steps: int) -> None:
    log_p = draw(0.1, 30, 6, seed=0).log_p
    whole = one(steps=steps)
    contexts = [fit(replace(whole, learning_rate=rate), log_p)[1] for rate in (1e-12, 0.1)]
    assert ((contexts[0] - contexts[1]).abs().amax(-1) > 1e-3).sum() == 10 * steps


def test_seed_decides_the_run() -> None:
    first, again = assemble(one()).perform(Path()), assemble(one()).perform(Path())
    assert {**first, "seconds": 0} == {**again, "seconds": 0}
    assert first["score"] == -first["kl"]
    assert assemble(one(seed=1)).perform(Path())["kl"] != first["kl"]


def test_a_run_that_diverges_says_so() -> None:
    with pytest.raises(DivergedError, match="diverged; lower learning_rate"):
        assemble(one(learning_rate=1e30)).perform(Path())


def test_a_dimension_beyond_the_vocabulary_has_no_floor() -> None:
    assert assemble(one(dimension=4)).perform(Path())["floor"] > 0
    assert assemble(one(dimension=5)).perform(Path())["floor"] == 0
