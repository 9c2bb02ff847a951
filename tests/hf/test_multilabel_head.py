"""patch_multilabel_head: logits become log p, labels go to the head's loss, and all of it back."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.nn import functional as F

from sparse_attn import Mapping, functional, losses
from sparse_attn.heads import MultiLabelHead, patch_multilabel_head

from .helpers import assert_near
from .lm_heads import run
from .multilabel_models import (
    BERT,
    GPT2,
    KINDS,
    LABELS,
    LLAMA,
    MODELS,
    RESNET_MODEL,
    without_labels,
)

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
    assert patch_multilabel_head(plain, mapping) is plain
    output, scores = plain(**inputs), twin(**without_labels(inputs)).logits
    function = getattr(functional, mapping.replace("-", "_"))
    values = {"entmax": [1.5], "r-softmax": [0.15]}.get(mapping, [])
    expected = function(scores, *values, log=True)
    assert output.logits.shape == (3, LABELS)
    assert_near(output.logits.exp(), expected.exp())
    assert torch.equal(run(plain, without_labels(inputs)).logits, output.logits)
    loss = REFERENCES[mapping](scores, inputs["labels"])
    assert_near(output.loss, loss)
    output.loss.backward()
    loss.backward()
    for actual, wanted in zip(plain.parameters(), twin.parameters(), strict=True):
        assert_near(actual.grad, wanted.grad, 1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model", [BERT, GPT2, RESNET_MODEL], ids=str)
def test_every_kind_of_head(model, kind):
    inputs, patched = model.inputs(), model.build()
    weight, names = model.head(patched).weight, list(patched.state_dict())
    patch_multilabel_head(patched, **copy.deepcopy(KINDS[kind]))
    head = model.head(patched)
    assert isinstance(head, MultiLabelHead)
    assert head.weight is weight
    assert [name for name in patched.state_dict() if name in names] == names
    output = patched(**inputs)
    assert torch.equal(
        head.decide(output.logits), output.logits > torch.tensor(head.threshold).log()
    )
    output.loss.backward()
    learned = [p for n, p in head.named_parameters()]
    assert all(p.grad is not None and p.grad.isfinite().all() for p in learned)


def test_labels_by_position():
    inputs = BERT.inputs()
    patched = patch_multilabel_head(BERT.build(), "sparsemax")
    ids, mask, labels = (inputs[name] for name in ("input_ids", "attention_mask", "labels"))
    expected = run(patched, inputs)
    with torch.no_grad():
        given = patched(ids, mask, None, None, None, labels)
        assert given.loss == expected.loss
        assert patched(ids, mask, None, None, None, None).get("loss") is None
    with pytest.raises(TypeError, match="labels"):
        patched(ids, mask, None, None, None, labels, labels=labels)
    images = RESNET_MODEL.inputs()
    resnet = patch_multilabel_head(RESNET_MODEL.build(), "sparsemax")
    with torch.no_grad():
        assert resnet(*images.values()).loss == run(resnet, images).loss


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_tuples(model):
    inputs = model.inputs()
    patched = patch_multilabel_head(model.build(), "softmax")
    expected = run(patched, inputs)
    loss, logits, *_ = run(patched, {**inputs, "return_dict": False})
    assert torch.equal(loss, expected.loss)
    assert torch.equal(logits, expected.logits)
    assert torch.equal(run(patched, {**without_labels(inputs), "return_dict": False})[0], logits)
    if model in (BERT, RESNET_MODEL):  # others of Transformers do not run with it
        patched.config.return_dict = False
        assert torch.equal(run(patched, inputs)[0], expected.loss)


def test_the_rest_of_the_output_stays():
    inputs = {**BERT.inputs(), "output_hidden_states": True}
    plain = BERT.build()
    before = run(plain, without_labels(inputs))
    after = run(patch_multilabel_head(plain, "softmax"), inputs)
    assert type(after) is type(before)
    assert list(after) == ["loss", "logits", "hidden_states"]
    assert all(map(torch.equal, after.hidden_states, before.hidden_states))


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.uint8, torch.float64])
def test_labels_of_any_dtype(dtype):
    inputs = BERT.inputs()
    patched = patch_multilabel_head(BERT.build(), "r-softmax", sparsity="predicted")
    other = {**inputs, "labels": inputs["labels"].to(dtype)}
    assert run(patched, other).loss == run(patched, inputs).loss


def test_items_of_a_batch_are_the_entries_of_its_labels():
    inputs = LLAMA.inputs()
    patched = patch_multilabel_head(LLAMA.build(), "sparsemax")
    mean = run(patched, inputs).loss
    for items in (30, torch.tensor(30)):  # as in a step of two such batches
        assert_near(run(patched, {**inputs, "num_items_in_batch": items}).loss, mean / 2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    inputs = LLAMA.inputs()
    patched = patch_multilabel_head(LLAMA.build().to(dtype), Mapping("t-softmax", learn="t"))
    assert patched.score.weight.dtype == dtype
    assert patched.score.mapping.raw_t.dtype == torch.float32
    output = run(patched, inputs)
    assert output.logits.dtype == output.loss.dtype == torch.float32
    assert_near(output.logits.logsumexp(-1).exp(), torch.ones(3))


def test_labels_end_with_the_call_whatever_happens():
    inputs = BERT.inputs()
    patched = patch_multilabel_head(BERT.build(), "sparsemax")
    with pytest.raises(IndexError):
        patched(**{**inputs, "input_ids": torch.full_like(inputs["input_ids"], 99)})
    assert patched.classifier(torch.zeros(2, 16)).shape == (2, LABELS)
    wrong = {**inputs, "labels": inputs["labels"] * 2}
    with pytest.raises(ValueError, match="target: expected 0 or 1 for every label, got 2"):
        patched(**wrong)
    with pytest.raises(ValueError, match=r"target: expected shape \(3, 5\).*got \(3,\)"):
        patched(**{**inputs, "labels": torch.tensor([1, 0, 3])})
    assert patched.classifier(torch.zeros(2, 16)).shape == (2, LABELS)
    assert run(patched, inputs).loss.isfinite()


@pytest.mark.parametrize("model", [BERT, GPT2], ids=str)
def test_threads_keep_their_labels_apart(model):
    """As the replicas of nn.DataParallel, which share the hooks of one model."""
    patched = patch_multilabel_head(model.build(), "sparsemax")
    batches = [model.inputs(), without_labels(model.inputs()), model.inputs()]
    batches[2]["labels"] = batches[2]["labels"].flip(0)
    expected = [run(patched, inputs) for inputs in batches]
    everyone = threading.Barrier(3, timeout=20)

    def meet(*args):
        everyone.wait()

    handle = model.head(patched).register_forward_pre_hook(meet)
    with ThreadPoolExecutor(3) as pool:
        outputs = list(pool.map(lambda inputs: run(patched, inputs), batches))
    handle.remove()
    for output, wanted in zip(outputs, expected, strict=True):
        assert output.get("loss") == wanted.get("loss")
        assert torch.equal(output.logits, wanted.logits)


# the compiler looks at the gradient of what it hands on where checks on the CPU break its graph
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_compiled():
    inputs = LLAMA.inputs()
    model = LLAMA.build(num_hidden_layers=1)
    patched = patch_multilabel_head(model, "r-softmax", sparsity="predicted")
    compiled = torch.compile(patched, backend="eager")
    for given in (inputs, without_labels(inputs)):
        expected, output = patched(**given), compiled(**given)
        assert_near(output.logits.exp(), expected.logits.exp())
    output = compiled(**inputs)
    assert_near(output.loss, patched(**inputs).loss)
    output.loss.backward()
    assert patched.score.weight.grad.isfinite().all()


def test_logits_that_are_changed_after_the_head_are_noticed():
    model = patch_multilabel_head(BERT.build(), "softmax")
    model.classifier.register_forward_hook(lambda module, inputs, output: output * 2)
    with pytest.raises(RuntimeError, match="changes its logits after the patched head"):
        run(model, without_labels(BERT.inputs()))


def test_a_pipeline_gives_p(tmp_path):
    """And not a sigmoid of log p, which it takes for many labels."""
    from transformers import BertTokenizer, pipeline

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "red", "green"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    tokenizer = BertTokenizer(str(tmp_path / "vocab.txt"))
    model = patch_multilabel_head(BERT.build(), "sparsemax").eval()
    found = pipeline("text-classification", model=model, tokenizer=tokenizer, top_k=None)(["red"])[
        0
    ]
    with torch.no_grad():
        p = model(**tokenizer("red", return_tensors="pt")).logits.exp().squeeze(0)
    scores = {entry["label"]: entry["score"] for entry in found}
    assert [scores[label] for label in model.config.id2label.values()] == pytest.approx(p.tolist())
