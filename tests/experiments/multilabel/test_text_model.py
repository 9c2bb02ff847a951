"""Transformers with every method as their output layer: they learn, and come back as they were."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from experiments.multilabel.config import MethodConfig, MultilabelRunConfig, TrainConfig
from experiments.multilabel.data.base import Batch
from experiments.multilabel.data.config import TextConfig
from experiments.multilabel.data.topics import write
from experiments.multilabel.measures import f1_scores
from experiments.multilabel.models import head_of, text_model
from experiments.multilabel.run import assemble, load
from sparse_attn import load_pretrained
from tests.experiments.multilabel.tiny import tiny_bert, train
from tests.marks import first

METHODS = {
    "softmax": MethodConfig(),
    "sparsemax-hinge": MethodConfig("sparsemax", loss="sparsegen-hinge"),
    "r-softmax": MethodConfig("r-softmax", sparsity="predicted"),
    "t-softmax": MethodConfig("t-softmax", params={"t": 0.5}, learn=["t"]),
    "sigmoid": MethodConfig("sigmoid"),
}
LABELS = torch.tensor([[1.0, 0, 1, 0], [0, 0, 0, 1], [1, 1, 1, 0]])


@pytest.fixture(scope="session")
def config(tmp_path_factory: pytest.TempPathFactory) -> TextConfig:
    return TextConfig("glue", str(tiny_bert(tmp_path_factory.mktemp("bert"))), dataset="unused")


@pytest.fixture
def batch(config: TextConfig) -> Batch:
    tokenizer = AutoTokenizer.from_pretrained(config.model)
    return dict(tokenizer(["one", "no two", "three, four"], padding=True, return_tensors="pt"))


@pytest.mark.parametrize("method", first(*METHODS.values()), ids=METHODS)
def test_it_learns_the_labels_of_a_batch(
    config: TextConfig, batch: Batch, method: MethodConfig
) -> None:
    torch.manual_seed(0)
    model = text_model(config, method, 4).train()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(100):
        optimizer.zero_grad()
        loss = model(**batch, labels=LABELS).loss
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        log_p = model.eval()(**batch).logits
    assert torch.equal(head_of(model).decide(log_p), LABELS.bool())


@pytest.mark.parametrize("name", ["r-softmax", "sigmoid"])
def test_a_classifiers_head_is_not_kept(name: str, config: TextConfig, tmp_path: Path) -> None:
    """Its labels may be others, or in another order."""
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(config.model)
    model.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(config.model).save_pretrained(tmp_path)
    made = text_model(replace(config, model=str(tmp_path)), METHODS[name], 2)
    assert not torch.equal(head_of(made).weight, model.classifier.weight)


@pytest.mark.parametrize("name", ["r-softmax", "sigmoid"])
def test_the_loss_is_that_of_the_head(config: TextConfig, batch: Batch, name: str) -> None:
    model = text_model(config, METHODS[name], 4).eval()
    seen: list[Tensor] = []
    head = head_of(model)
    hook = head.register_forward_hook(lambda _, inputs, output: seen.append(inputs[0]))
    output = model(**batch, labels=LABELS)
    hook.remove()
    torch.testing.assert_close(output.loss, head.loss(seen[0], LABELS))
    torch.testing.assert_close(output.logits, head(seen[0]))


def test_the_sigmoid_starts_from_the_same_weights(config: TextConfig, batch: Batch) -> None:
    models = {}
    for name in ("softmax", "sigmoid"):
        torch.manual_seed(2)
        models[name] = text_model(config, METHODS[name], 4).eval()
    torch.testing.assert_close(head_of(models["sigmoid"]).weight, head_of(models["softmax"]).weight)
    with torch.no_grad():
        log_p = models["softmax"](**batch).logits
        p = models["sigmoid"](**batch).logits.exp()
    torch.testing.assert_close(p.logit().softmax(-1), log_p.exp())


@pytest.mark.parametrize("name", ["r-softmax", "sigmoid"])
def test_a_run_keeps_a_model_that_loads_with_the_same_predictions(
    config: TextConfig, name: str, tmp_path: Path
) -> None:
    write(tmp_path / "topics", train=40, validation=12, test=12)
    text = replace(config, source="folder", data_dir=str(tmp_path / "topics"), max_length=64)
    method = replace(METHODS[name], thresholds=[0.1, 0.4] if name == "sigmoid" else [])
    run = MultilabelRunConfig(
        text=text,
        output_dir=str(tmp_path / "run"),
        method=method,
        train=TrainConfig(epochs=2, batch_size=8, learning_rate=1e-3, device="cpu"),
    )
    results = train(run)
    again = assemble(run)  # the same seed, and so the same weights, but never saved
    assert again.perform()["history"] == results["history"]
    loaded = load(run.output_dir)
    expected, target = again.predict(again.data.test)
    again.model = loaded
    found, _ = again.predict(again.data.test)
    assert torch.equal(found, expected)
    assert f1_scores(head_of(loaded).decide(found), target) == results["f1"]
    if name == "r-softmax":  # the folder is one that Transformers and `load_pretrained` know
        folder = tmp_path / "run/model"
        patched = load_pretrained(AutoModelForSequenceClassification, folder).eval()
        assert tuple(patched.config.id2label.values()) == again.data.labels
        batch = AutoTokenizer.from_pretrained(folder)("The choir sang.", return_tensors="pt")
        with torch.no_grad():
            assert torch.equal(patched(**batch).logits, loaded(**batch).logits)
