"""Every way on a tiny BERT: what it trains, keeps and chooses, with the budget of all others."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch import Tensor
from transformers import AutoModel, AutoTokenizer, BertModel, Trainer

from experiments.conversion import ways
from experiments.conversion.run import assemble
from experiments.conversion.ways import (
    CONTINUED,
    FROZEN,
    RANDOM,
    WAYS,
    Contrastive,
    contrastive_loss,
    learn_per_head,
    one_by_one,
)
from sparse_attn import patch_model
from sparse_attn.conversion import healing
from sparse_attn.conversion.healing import Recipe
from sparse_attn.conversion.plan import LayerPlan, Plan
from sparse_attn.hf.layers import attention_layers
from tests.experiments.conversion.tiny import BUDGET, one, write

TRAINED = [name for name, way in WAYS.items() if way.healer is not None]
UNTRAINED = [name for name, way in WAYS.items() if way.healer is None]


def perform(folder: Path | None = None, **given: Any) -> SimpleNamespace:
    """A run, with its results, its weights after it, and the batches that it was trained on."""
    batches: list[list[list[int]]] = []
    step = Trainer.training_step

    def recorded(self: Trainer, model: Any, inputs: Any, *more: Any, **named: Any) -> Any:
        batches.append(inputs["input_ids"].tolist())
        return step(self, model, inputs, *more, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sparse_attn.reports.bootstrap.RESAMPLES", 99)
        patch.setattr(Trainer, "training_step", recorded)
        run = assemble(one(**given))
        results = run.perform(folder)
    weights = {name: w.detach().clone() for name, w in run.reader.model.named_parameters()}
    return SimpleNamespace(results=results, weights=weights, batches=batches)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return write(tmp_path_factory.mktemp("conversion"))


@pytest.fixture(scope="module")
def runs(files: dict[str, str]) -> dict[str, SimpleNamespace]:
    """One of every way."""
    return {way: perform(**files, way=way) for way in WAYS}


@pytest.fixture
def softmax(files: dict[str, str]) -> BertModel:
    """The model as it is on disk."""
    return AutoModel.from_pretrained(files["model"]).eval()


def parameters(runs: dict[str, SimpleNamespace], way: str) -> list[float]:
    return [layer["alpha"] for layer in runs[way].results["parameters"]]


@torch.no_grad()
def embedded(model: BertModel, files: dict[str, str], texts: list[str]) -> Tensor:
    """Mean-pooled, a text at a time."""
    tokenizer = AutoTokenizer.from_pretrained(files["model"])
    inputs = [tokenizer(text, return_tensors="pt") for text in texts]
    return torch.stack([model(**one).last_hidden_state[0].mean(0) for one in inputs])


@pytest.mark.slow
def test_the_baseline_is_the_model_itself(
    runs: dict[str, SimpleNamespace], files: dict[str, str], softmax: BertModel
) -> None:
    rows = [line.split("\t") for line in Path(files["pairs"]).read_text().splitlines()[1:]]
    first, second = (embedded(softmax, files, [row[side] for row in rows]) for side in (0, 1))
    cosines = torch.cosine_similarity(first, second)
    expected = 100 * spearmanr([float(row[2]) for row in rows], cosines).statistic
    for run in runs.values():
        found = run.results
        assert found["softmax"] == pytest.approx(expected, abs=1e-9)
        low, high = found["difference"]["interval"]
        difference = found["score"] - found["softmax"]
        assert found["difference"]["value"] == pytest.approx(difference, abs=1e-9)
        assert low <= high
        assert (found["texts"], found["rows"]) == (64, len(rows))


@pytest.mark.slow
def test_zeros_of_every_way(runs: dict[str, SimpleNamespace]) -> None:
    for way, run in runs.items():
        before = np.mean(run.results["sample"]["before"])
        expected = 0.0 if way == CONTINUED else BUDGET["target_zeros"]
        assert before == pytest.approx(expected, abs=0.01), way
        assert run.results["zeros"] == pytest.approx(np.mean(run.results["layers"]), abs=0.02)


@pytest.mark.slow
def test_all_that_train_see_the_same_batches(
    runs: dict[str, SimpleNamespace], files: dict[str, str]
) -> None:
    seen = runs["distilled"].batches
    assert len(seen) == BUDGET["steps"]
    assert {len(batch) for batch in seen} == {BUDGET["batch_size"]}
    assert all(runs[way].batches == seen for way in TRAINED)
    assert all(runs[way].batches == [] for way in UNTRAINED)
    assert perform(**files, seed=1).batches != seen


@pytest.mark.slow
@pytest.mark.parametrize("way", UNTRAINED)
def test_untrained_ways_leave_the_weights(
    runs: dict[str, SimpleNamespace], softmax: BertModel, way: str
) -> None:
    for name, weight in softmax.named_parameters():
        assert torch.equal(runs[way].weights[name], weight), name
    sample = runs[way].results["sample"]
    assert sample["before"] == sample["after"]


@pytest.mark.slow
@pytest.mark.parametrize("way", TRAINED)
def test_which_weights_are_trained(
    runs: dict[str, SimpleNamespace], softmax: BertModel, way: str
) -> None:
    """The pooler has no part in an embedding."""
    kept = {n for n, w in softmax.named_parameters() if torch.equal(runs[way].weights[n], w)}
    pooler = {name for name, _ in softmax.named_parameters() if name.startswith("pooler")}
    scores = {
        f"encoder.layer.{layer}.attention.self.{part}.{kind}"
        for layer in (0, 1)
        for part in ("query", "key")
        for kind in ("weight", "bias")
    }
    assert kept == (pooler | scores if way == FROZEN else pooler)


@pytest.mark.slow
def test_dials_that_stay_and_dials_that_keep_the_zeros(runs: dict[str, SimpleNamespace]) -> None:
    chosen, uniform = (parameters(runs, way) for way in ("untrained", "uniform, untrained"))
    assert parameters(runs, "zeros not kept") == chosen
    assert parameters(runs, "uniform") == uniform
    assert len(set(uniform)) == 1
    assert len(set(chosen)) == 2
    for way in ("distilled", "without ramp", "layer by layer", FROZEN, "continued training"):
        assert parameters(runs, way) != chosen, way
        assert parameters(runs, way) == pytest.approx(chosen, abs=0.02), way
    for layer, start in zip(parameters(runs, "learned per head"), chosen, strict=True):
        assert len(set(layer)) == 2
        assert layer == pytest.approx([start] * 2, abs=0.1)
        assert start not in layer
    drops = {layer["r"] for layer in runs[RANDOM].results["parameters"]}
    assert len(drops) == 1
    assert drops.pop() == pytest.approx(BUDGET["target_zeros"], abs=0.1)


@pytest.mark.slow
def test_the_pairs_decide_nothing(
    runs: dict[str, SimpleNamespace], files: dict[str, str], tmp_path: Path
) -> None:
    other = tmp_path / "other.tsv"
    other.write_text("sentence1\tsentence2\tscore\nabc\tcba\t1\nh\tg\t3\nfed\tdef\t2\n")
    moved = perform(**{**files, "pairs": str(other)})
    distilled = runs["distilled"]
    assert moved.results["parameters"] == distilled.results["parameters"]
    assert moved.results["sample"] == distilled.results["sample"]
    assert all(torch.equal(moved.weights[n], w) for n, w in distilled.weights.items())
    assert moved.results["score"] != distilled.results["score"]


def test_shares_of_layers_that_ramp_one_by_one() -> None:
    expected = {
        0.0: [0, 0, 0],
        0.1: [0.6, 0, 0],
        0.25: [1, 0.5, 0],
        0.4: [1, 1, 0.4],
        0.5: [1, 1, 1],
        1.0: [1, 1, 1],
    }
    for done, shares in expected.items():
        assert one_by_one(done, 3) == pytest.approx(shares)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "shares"),
    [
        ("distilled", [[0, 0], [0.5, 0.5], [1, 1], [1, 1], [1, 1]]),
        ("without ramp", [[1, 1]] * 5),
        ("layer by layer", [[0, 0], [1, 0], [1, 1], [1, 1], [1, 1]]),
    ],
)
def test_ramps_over_four_steps(
    files: dict[str, str], monkeypatch: pytest.MonkeyPatch, way: str, shares: list[list[float]]
) -> None:
    turned: list[list[float]] = []
    set_dials = healing.set_dials

    def recorded(model: Any, plan: Any, found: list[float]) -> None:
        turned.append(found)
        set_dials(model, plan, found)

    monkeypatch.setattr(healing, "set_dials", recorded)
    perform(**files, way=way, steps=4)
    assert turned == shares


def test_contrastive_loss_by_hand() -> None:
    first, second = (torch.randn(5, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    a, b = (side.detach().numpy() for side in (first, second))
    losses = []
    for i in range(5):
        cosines = [a[i] @ b[j] / (np.linalg.norm(a[i]) * np.linalg.norm(b[j])) for j in range(5)]
        total = sum(math.exp(cosine / 0.05) for cosine in cosines)
        losses.append(-math.log(math.exp(cosines[i] / 0.05) / total))
    assert contrastive_loss(first, second).item() == pytest.approx(sum(losses) / 5, rel=1e-12)
    assert torch.autograd.gradcheck(contrastive_loss, (first, second))


def test_continued_training_contrasts_embeddings_under_other_dropout(
    files: dict[str, str], softmax: BertModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Tensor] = []

    def recorded(first: Tensor, second: Tensor) -> Tensor:
        seen.extend([first.detach(), second.detach()])
        return contrastive_loss(first, second)

    monkeypatch.setattr(ways, "contrastive_loss", recorded)
    texts = ["abc", "hgfedcba abc", "fed cab"]
    inputs = AutoTokenizer.from_pretrained(files["model"])(texts, padding=True, return_tensors="pt")
    trainer = object.__new__(Contrastive)
    trainer.compute_loss(softmax, inputs)
    torch.testing.assert_close(seen[0], embedded(softmax, files, texts))
    assert torch.equal(seen[0], seen[1])
    softmax.train()
    loss = trainer.compute_loss(softmax, inputs)
    assert (seen[2] - seen[3]).abs().max() > 1e-3
    assert loss.item() == pytest.approx(contrastive_loss(*seen[2:]).item())
    assert not softmax.training


class Killed(BaseException):
    """Not an exception that anything handles."""


@pytest.mark.soak
@pytest.mark.parametrize("way", ["learned per head", "continued training"])
def test_a_killed_run_ends_at_the_same_weights(
    runs: dict[str, SimpleNamespace], files: dict[str, str], tmp_path: Path, way: str
) -> None:
    healer = WAYS[way].healer
    assert healer is not None
    loss, calls = healer.compute_loss, 0

    def dies(self: Trainer, *args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 2:
            raise Killed
        return loss(self, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(healing, "SAVE_EVERY", 1)
        patch.setattr(healer, "compute_loss", dies)
        with pytest.raises(Killed):
            perform(tmp_path, **files, way=way)
    again = perform(tmp_path, **files, way=way)
    assert len(again.batches) == 1
    whole = runs[way]
    assert again.weights.keys() == whole.weights.keys()
    for name, weight in whole.weights.items():
        assert torch.equal(again.weights[name], weight), name
    assert {**again.results, "seconds": 0} == {**whole.results, "seconds": 0}


def test_learned_parameters_have_a_rate_of_their_own(files: dict[str, str]) -> None:
    model = patch_model(AutoModel.from_pretrained(files["model"]), "softmax")
    layers = [LayerPlan(layer.name, value=1.5) for layer in attention_layers(model)]
    plan, recipe = Plan("entmax", {}, 0.7, layers), Recipe(learning_rate=1e-4)
    optimizer, schedule = learn_per_head(model, plan, recipe)["optimizers"]
    weights, learned = optimizer.param_groups
    assert schedule is None
    assert (weights["lr"], learned["lr"]) == (1e-4, 1e-2)
    assert sum(p.numel() for p in learned["params"]) == 4
    assert len(weights["params"]) + len(learned["params"]) == len(list(model.parameters()))
    assert not plan.keeps_zeros
