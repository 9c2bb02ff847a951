"""Training with a patched head: its loss, Trainer and its accumulation, schedules, PEFT."""

import copy
import math
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.nn import functional as F

from sparse_attn import (
    Mapping,
    SparsitySchedule,
    SparsityScheduleCallback,
    patch_lm_head,
    patch_model,
    patch_multilabel_head,
)
from sparse_attn.hf.heads.guard import last_call
from sparse_attn.losses import entmax_loss, sparsemax_loss
from tests.marks import first

from .heads import Rows, run, trainer, unlabelled
from .helpers import assert_near, case_id, peft_warns
from .lm_heads import BY_MODEL, DISPATCHING, scored, scores_and_hidden
from .multilabel_models import BERT, LLAMA, ROBERTA

GPT2 = BY_MODEL["gpt2"]
OWN = {"sparsemax": sparsemax_loss, "entmax": entmax_loss}


@pytest.mark.parametrize("mapping", OWN)
@pytest.mark.parametrize("model", DISPATCHING, ids=str)
def test_sparse_heads_train_by_their_own_loss(model, mapping):
    inputs, plain = model.inputs(), model.build()
    twin = copy.deepcopy(plain)
    rows, labels = scored(scores_and_hidden(twin, inputs)[0], inputs["labels"], model.shift)
    expected = OWN[mapping](rows, labels).mean()
    output = patch_lm_head(plain, mapping)(**inputs)
    assert_near(output.loss, expected)
    assert output.logits.isinf().any()
    expected.backward()
    output.loss.backward()
    for actual, wanted in zip(plain.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(actual.grad, wanted.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["llama", "modernbert"])
def test_arguments_of_the_loss(name):
    model = BY_MODEL[name]
    inputs, patched = model.inputs(), patch_lm_head(model.build(), "sparsemax")
    labels = inputs.pop("labels")
    count = scored(labels, labels, model.shift)[1].numel()
    mean = run(patched, {**inputs, "labels": labels}).loss
    for items in (7, torch.tensor(7)):
        total = run(patched, {**inputs, "labels": labels, "num_items_in_batch": items}).loss
        assert_near(total * 7 / count, mean)
    other = labels.masked_fill(labels == -100, -1)
    assert run(patched, {**inputs, "labels": other, "ignore_index": -1}).loss == mean
    assert run(patched, {**inputs, "labels": torch.full_like(labels, -100)}).loss.isnan()
    if name == "llama":
        shifted = F.pad(labels, (0, 1), value=-100)[:, 1:]
        assert run(patched, {**inputs, "labels": labels, "shift_labels": shifted}).loss == mean
        kept = run(patched, {**inputs, "labels": labels[:, -4:], "logits_to_keep": 4})
        late = labels.masked_fill(torch.arange(9) < 6, -100)
        assert_near(kept.loss, run(patched, {**inputs, "labels": late}).loss)


def test_a_late_call_of_the_loss_raises():
    """The hidden states are let go."""
    inputs, patched = GPT2.inputs(), patch_lm_head(GPT2.build(), "sparsemax")
    output = patched(**inputs)
    assert last_call() is None
    with pytest.raises(RuntimeError, match=r"a head of sparsemax.*pass labels to the model"):
        patched.loss_function(output.logits, inputs["labels"], vocab_size=40)


@pytest.mark.parametrize("name", ["bert", "bert-untied", "roberta", "t5", "bart"])
def test_zeros_are_refused_where_the_model_computes_its_own_cross_entropy(name):
    model = BY_MODEL[name]
    with pytest.raises(ValueError, match=rf"'sparsemax': it returns zeros.*{model.cls}.*sigsoftm"):
        patch_lm_head(model.build(), "sparsemax")


def test_a_loss_set_by_hand_is_not_replaced():
    model = GPT2.build()
    model.loss_function = lambda *args, **kwargs: torch.zeros(())
    with pytest.raises(ValueError, match="the loss_function of GPT2LMHeadModel takes labels in an"):
        patch_lm_head(model, "sparsemax")
    patch_lm_head(model, "sigsoftmax")


@pytest.mark.parametrize("mapping", ["sparsemax", "r-softmax"])
def test_losses_that_zeros_do_not_have_are_refused(mapping, tmp_path):
    """One over all tokens is infinite, and Trainer would log 0."""
    inputs, patched = GPT2.inputs(), patch_lm_head(GPT2.build(), mapping)
    if mapping == "r-softmax":
        assert run(patched, inputs).loss == math.inf
        with pytest.raises(ValueError, match="mapping=r-softmax: it returns exact zeros"):
            patched(**inputs)
    smoothed = trainer(patched, Rows(inputs), tmp_path, label_smoothing_factor=0.1)
    with pytest.raises(ValueError, match=rf"'{mapping}': a loss takes .*label_smoothing_factor=0"):
        smoothed.train()
    log_p = patched(inputs["input_ids"]).logits
    log_p.max(-1).values.sum().backward()  # the policy gradient of a token that has probability


def rows_of(model):
    """Twelve rows; of a classifier, with labels that their first tokens say."""
    torch.manual_seed(0)
    batches = [model.inputs() for _ in range(4)]
    rows = {n: torch.cat([batch[n] for batch in batches]) for n in batches[0]}
    if isinstance(model, type(BERT)):
        firsts = rows["input_ids"][:, 0]
        rows["labels"] = torch.stack([firsts > 5 * i for i in range(5)], -1).float()
    return Rows(rows)


@pytest.mark.parametrize(
    ("model", "kind"),
    first(
        (GPT2, "learned"), (GPT2, "mixture"), (GPT2, "zeros"), (BY_MODEL["bert"], "learned"),
        (BY_MODEL["t5"], "mixture"), (BERT, "softmax"), (BERT, "r-softmax-predicted"),
        (LLAMA, "t-softmax-learned"),
    ),
    ids=case_id,
)  # fmt: skip
def test_trainer(model, kind, tmp_path):
    patched, data = model.patched(kind), rows_of(model)
    head = model.head(patched)
    before = {n: p.clone() for n, p in head.named_parameters()}
    run_ = trainer(
        patched, data, tmp_path, max_steps=6, learning_rate=1e-2, optim="adamw_torch",
        per_device_train_batch_size=12, per_device_eval_batch_size=12, save_strategy="steps",
        save_steps=6,
    )  # fmt: skip
    start = run_.evaluate()["eval_loss"]
    if not getattr(model, "shift", False):  # Trainer divides by the count of labels before a shift
        assert start == pytest.approx(run(patched, data.batch).loss.item(), rel=1e-5)
    run_.train()
    assert run_.evaluate()["eval_loss"] < start
    assert not [n for n, p in head.named_parameters() if torch.equal(p, before[n])]
    patched.eval()
    loaded = model.auto.from_pretrained(tmp_path / "checkpoint-6")
    assert torch.equal(run(loaded, data.batch).logits, run(patched, data.batch).logits)


@pytest.mark.slow
@pytest.mark.parametrize("attention", [None, "entmax"])
def test_accumulated_batches_are_one_batch(attention, tmp_path):
    """Trainer hands over the number of entries of the labels; others of Transformers ignore it."""
    data, weights = rows_of(BERT), []
    for size, steps in ((6, 1), (2, 3)):
        model = patch_multilabel_head(BERT.build(), "r-softmax", sparsity="predicted")
        torch.nn.init.zeros_(model.classifier.predictor.weight)
        torch.nn.init.zeros_(model.classifier.predictor.bias)
        if attention is not None:
            patch_model(model, attention)
        trainer(model, data, tmp_path, per_device_train_batch_size=size,
                gradient_accumulation_steps=steps).train()  # fmt: skip
        weights.append([p.detach() for p in model.parameters()])
    for one, other in zip(*weights, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_a_schedule_moves_the_head_and_stands_in_the_log(tmp_path):
    model = patch_multilabel_head(ROBERTA.build(), Mapping("r-softmax", r=0.0))
    patch_model(model, "r-softmax", r=0.3)
    used = []
    head = model.classifier.out_proj
    head.register_forward_pre_hook(lambda *_: used.append(head.mapping.value("r")))
    callback = SparsityScheduleCallback(SparsitySchedule(final=0.8), module="classifier.out_proj")
    state = callback.state()
    assert SparsityScheduleCallback.from_state(state).state() == state
    run_ = trainer(model, rows_of(ROBERTA), tmp_path, [callback], max_steps=4)
    run_.train()
    assert used == pytest.approx([0.0, 0.2, 0.4, 0.6])
    logged = [log["sparsity/classifier.out_proj.r"] for log in run_.state.log_history[:4]]
    assert logged == pytest.approx([0.2, 0.4, 0.6, 0.8])
    model.save_pretrained(tmp_path / "model")
    loaded = ROBERTA.auto.from_pretrained(tmp_path / "model")
    assert loaded.classifier.out_proj.mapping.value("r") == 0.8
    tables = loaded.config.sparse_attn["mappings"].values()
    assert [table["params"]["r"] for table in tables] == [0.3, 0.3]


@peft_warns
@pytest.mark.parametrize(
    ("model", "kind"),
    [
        *((BY_MODEL["llama"], kind) for kind in ("learned", "zeros")),
        *((BERT, kind) for kind in ("r-softmax", "r-softmax-predicted", "t-softmax-learned")),
    ],
    ids=case_id,
)
def test_a_copy_of_the_head_that_peft_trains_is_saved(model, kind, tmp_path):
    """With what was set, after merging."""
    inputs, base = model.inputs(), model.patched(kind)
    expected, names = run(base, inputs), [n for n, _ in model.head(base).named_parameters()]
    layer = "classifier" if model is BERT else "lm_head"
    options = LoraConfig(r=2, target_modules=["query", "q_proj"], modules_to_save=[layer])
    wrapped = get_peft_model(base, options)
    output = wrapped(**inputs)
    assert_near(output.loss, expected.loss)
    assert torch.equal(output.logits, expected.logits)
    output.loss.backward()
    trained = {n for n, p in wrapped.named_parameters() if p.grad is not None and "lora_" not in n}
    assert trained == {f"base_model.model.{layer}.modules_to_save.default.{n}" for n in names}
    with pytest.raises(ValueError, match=r"got ModulesToSaveWrapper|wrapped by PEFT.*patch before"):
        model.patch(wrapped, "sigsoftmax")
    torch.optim.SGD(wrapped.parameters(), lr=0.1).step()
    if kind == "r-softmax":
        schedule = SparsityScheduleCallback(SparsitySchedule(final=0.6), module=layer)
        trainer(wrapped, rows_of(BERT), tmp_path, [schedule]).train()
        base.classifier.modules_to_save["default"].threshold = 0.11
    expected = run(wrapped.eval(), inputs).logits
    merged = wrapped.merge_and_unload()
    merged.save_pretrained(tmp_path / "merged")
    loaded = model.auto.from_pretrained(tmp_path / "merged")
    assert torch.equal(run(loaded, inputs).logits, run(merged, inputs).logits)
    assert_near(run(loaded, inputs).logits.exp(), expected.exp(), 1e-4)
    if kind == "r-softmax":
        assert loaded.classifier.threshold == 0.11
        assert loaded.classifier.mapping.value("r") == 0.6
    assert type(model.head(model.unpatch(merged))) is torch.nn.Linear


@pytest.mark.parametrize("model", [GPT2, BERT, LLAMA], ids=str)
def test_threads_keep_their_hidden_states_and_labels_apart(model):
    """As the replicas of nn.DataParallel, which share the hooks and the loss of one model."""
    patched = model.patch(model.build(), "sparsemax")
    batches = [model.inputs(), unlabelled(model.inputs()), model.inputs()]
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
