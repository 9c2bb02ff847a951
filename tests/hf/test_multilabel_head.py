"""patch_multilabel_head: logits become log p, and labels go to the head's loss alone."""

import copy

import pytest
import torch
from torch.nn import functional as F
from transformers import BertTokenizer, pipeline

from sparse_attn import functional, losses, patch_multilabel_head

from .heads import run, unlabelled
from .helpers import assert_near
from .multilabel_models import BERT, LABELS, MODELS, RESNET_MODEL

REFERENCES = {
    "softmax": lambda z, y: losses.mapping_nll(z[:2], y[:2], "softmax", reduction="sum") / 3,
    "sparsemax": losses.sparsemax_loss,
    "entmax": losses.entmax_loss,
    "r-softmax": lambda z, y: losses.r_softmax_multilabel_loss(z, y, 0.15),
}


@pytest.fixture(autouse=True)
def no_cross_entropy(monkeypatch):
    """No model may compute its own loss."""

    def refuse(*args, **kwargs):
        raise AssertionError("the model's own loss saw the labels")

    monkeypatch.setattr(F, "binary_cross_entropy_with_logits", refuse)


@pytest.mark.parametrize("mapping", REFERENCES)
@pytest.mark.parametrize("model", MODELS, ids=str)
def test_logits_are_log_p_and_the_loss_is_the_heads(model, mapping):
    """The scores are the logits of a plain twin, which picks the token of a sequence itself."""
    inputs, plain = model.inputs(), model.build()
    twin = copy.deepcopy(plain)
    output = patch_multilabel_head(plain, mapping)(**inputs)
    scores = twin(**unlabelled(inputs)).logits
    function = getattr(functional, mapping.replace("-", "_"))
    values = {"entmax": [1.5], "r-softmax": [0.15]}.get(mapping, [])
    assert output.logits.shape == (3, LABELS)
    assert_near(output.logits.exp(), function(scores, *values))
    assert torch.equal(run(plain, unlabelled(inputs)).logits, output.logits)
    loss = REFERENCES[mapping](scores, inputs["labels"])
    assert_near(output.loss, loss)
    output.loss.backward()
    loss.backward()
    for actual, wanted in zip(plain.parameters(), twin.parameters(), strict=True):
        assert_near(actual.grad, wanted.grad, 1e-5)


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_the_rest_of_the_output_stays_and_can_be_a_tuple(model):
    inputs, patched = {**model.inputs(), "output_hidden_states": True}, model.build()
    plain = run(patched, unlabelled(inputs))
    expected = run(patch_multilabel_head(patched, "softmax"), inputs)
    assert type(expected) is type(plain)
    assert list(expected) == ["loss", *plain]
    assert all(map(torch.equal, expected.hidden_states, plain.hidden_states))
    loss, logits, *_ = run(patched, {**inputs, "return_dict": False})
    assert torch.equal(loss, expected.loss)
    assert torch.equal(logits, expected.logits)
    assert torch.equal(run(patched, {**unlabelled(inputs), "return_dict": False})[0], logits)
    if model in (BERT, RESNET_MODEL):  # others of Transformers do not run with it
        patched.config.return_dict = False
        assert torch.equal(run(patched, inputs)[0], expected.loss)


def test_labels_by_position_and_of_any_dtype():
    inputs = BERT.inputs()
    patched = patch_multilabel_head(BERT.build(), "r-softmax", sparsity="predicted")
    ids, mask, labels = (inputs[name] for name in ("input_ids", "attention_mask", "labels"))
    expected = run(patched, inputs).loss
    for dtype in (torch.bool, torch.int64, torch.uint8, torch.float64):
        with torch.no_grad():
            given = patched(ids, mask, None, None, None, labels.to(dtype))
        assert given.loss == expected
    assert patched(ids, mask, None, None, None, None).get("loss") is None
    with pytest.raises(TypeError, match="labels"):
        patched(ids, mask, None, None, None, labels, labels=labels)


def test_labels_end_with_the_call_whatever_happens():
    inputs, patched = BERT.inputs(), patch_multilabel_head(BERT.build(), "sparsemax")
    for name, value, error, message in (
        ("input_ids", torch.full_like(inputs["input_ids"], 99), IndexError, "out of range"),
        ("labels", inputs["labels"] * 2, ValueError, "target: expected 0 or 1 .*, got 2"),
        ("labels", torch.tensor([1, 0, 3]), ValueError, r"expected shape \(3, 5\).*got \(3,\)"),
    ):
        with pytest.raises(error, match=message):
            patched(**{**inputs, name: value})
        assert patched.classifier(torch.zeros(2, 16)).shape == (2, LABELS)
    assert run(patched, inputs).loss.isfinite()


def test_a_pipeline_gives_p(tmp_path):
    """And not a sigmoid of log p, which it takes for many labels; also of a saved folder."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "red", "green"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    tokenizer = BertTokenizer(str(tmp_path / "vocab.txt"))
    model = patch_multilabel_head(BERT.build(), "sparsemax").eval()
    for saved in (model, tokenizer):
        saved.save_pretrained(tmp_path)
    p = run(model, tokenizer("red", return_tensors="pt")).logits.exp().squeeze(0)
    for given in (model, str(tmp_path)):
        ask = pipeline("text-classification", model=given, tokenizer=tokenizer, top_k=None)
        scores = {entry["label"]: entry["score"] for entry in ask(["red"])[0]}
        found = [scores[label] for label in model.config.id2label.values()]
        assert found == pytest.approx(p.tolist())
