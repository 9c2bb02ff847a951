"""Training with a patched head: the model's loss, losses of sparse mappings, Trainer, PEFT."""

import copy
import math
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.nn import functional as F

from sparse_attn import load_pretrained
from sparse_attn.heads import patch_lm_head, unpatch_lm_head
from sparse_attn.hf.heads.guard import last_call
from sparse_attn.losses import entmax_loss, sparsemax_loss
from tests.marks import first

from .heads import Rows, trainer
from .helpers import assert_near, peft_warns
from .lm_heads import BY_MODEL, MODELS, run, scored, scores_and_hidden

DISPATCHING = [model for model in MODELS if model.dispatches]
OWN = {"sparsemax": sparsemax_loss, "entmax": entmax_loss}


@pytest.mark.parametrize("mapping", OWN)
@pytest.mark.parametrize("model", DISPATCHING, ids=str)
def test_sparse_heads_train_by_their_own_loss(model, mapping):
    inputs = model.inputs()
    plain = model.build()
    twin = copy.deepcopy(plain)
    rows, labels = scored(scores_and_hidden(plain, inputs)[0], inputs["labels"], model.shift)
    expected = OWN[mapping](rows.double(), labels).mean()
    output = patch_lm_head(plain, mapping)(**inputs)
    assert_near(output.loss, expected.float())
    assert output.logits.isinf().any()

    seen = []
    twin.get_output_embeddings().register_forward_hook(lambda m, args, out: seen.append(out))
    twin(**{n: t for n, t in inputs.items() if n != "labels"})
    rows, labels = scored(seen[0], inputs["labels"], model.shift)
    OWN[mapping](rows, labels).mean().backward()
    output.loss.backward()
    for actual, wanted in zip(plain.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(actual.grad, wanted.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["llama", "modernbert"])
def test_arguments_of_the_loss(name):
    model = BY_MODEL[name]
    inputs = model.inputs()
    patched = patch_lm_head(model.build(), "sparsemax")
    labels = inputs.pop("labels")
    count = scored(labels, labels, model.shift)[1].numel()
    mean = run(patched, {**inputs, "labels": labels}).loss
    for items in (7, torch.tensor(7)):
        total = run(patched, {**inputs, "labels": labels, "num_items_in_batch": items}).loss
        assert_near(total * 7 / count, mean)
    other = labels.masked_fill(labels == -100, -1)
    assert run(patched, {**inputs, "labels": other, "ignore_index": -1}).loss == mean
    everything_ignored = torch.full_like(labels, -100)
    assert run(patched, {**inputs, "labels": everything_ignored}).loss.isnan()


def test_shift_labels_and_logits_to_keep():
    model = BY_MODEL["llama"]
    inputs = model.inputs()
    patched = patch_lm_head(model.build(), "sparsemax")
    labels = inputs["labels"]
    shifted = F.pad(labels, (0, 1), value=-100)[:, 1:]
    assert run(patched, {**inputs, "shift_labels": shifted}).loss == run(patched, inputs).loss
    kept = run(patched, {**inputs, "labels": labels[:, -4:], "logits_to_keep": 4})
    assert kept.logits.shape[1] == 4
    inputs = {**inputs, "labels": labels.masked_fill(torch.arange(9) < 6, -100)}
    assert_near(kept.loss, run(patched, inputs).loss)


def test_hidden_states_are_let_go_and_a_late_call_says_so():
    model = BY_MODEL["gpt2"]
    patched = patch_lm_head(model.build(), "sparsemax")
    inputs = model.inputs()
    output = patched(**inputs)
    assert last_call() is None
    with pytest.raises(RuntimeError, match=r"a head of sparsemax.*pass labels to the model"):
        patched.loss_function(output.logits, inputs["labels"], vocab_size=40)
    twin = copy.deepcopy(patched)
    unpatch_lm_head(patched)
    assert "_loss_function" not in vars(patched)
    assert run(twin, inputs).loss == output.loss


@pytest.mark.parametrize("name", ["bert", "bert-untied", "roberta", "t5", "bart"])
def test_zeros_are_refused_where_the_model_computes_its_own_cross_entropy(name):
    model = BY_MODEL[name]
    with pytest.raises(
        ValueError, match=rf"'sparsemax': it returns zeros.*{model.cls}.*sigsoftmax"
    ):
        patch_lm_head(model.build(), "sparsemax")


def test_a_loss_set_by_hand_is_not_replaced():
    model = BY_MODEL["gpt2"].build()
    model.loss_function = lambda *args, **kwargs: torch.zeros(())
    with pytest.raises(
        ValueError, match="the loss_function of GPT2LMHeadModel takes labels in an unknown"
    ):
        patch_lm_head(model, "sparsemax")
    patch_lm_head(model, "sigsoftmax")


def test_zeros_without_a_loss_can_be_measured_but_not_trained():
    inputs = BY_MODEL["gpt2"].inputs()
    patched = patch_lm_head(BY_MODEL["gpt2"].build(), "r-softmax", r=0.3)
    assert run(patched, inputs).loss == math.inf
    with pytest.raises(ValueError, match="mapping=r-softmax: it returns exact zeros"):
        patched(**inputs)


@pytest.mark.parametrize("mapping", ["sparsemax", "r-softmax"])
def test_a_loss_over_all_tokens_is_refused_for_zeros(mapping, tmp_path):
    """It is infinite, and Trainer would log 0."""
    model = BY_MODEL["llama"]
    patched = patch_lm_head(model.build(), mapping)
    smoothed = trainer(patched, Rows(model.inputs()), tmp_path, label_smoothing_factor=0.1)
    with pytest.raises(ValueError, match=rf"'{mapping}': a loss takes .*label_smoothing_factor=0"):
        smoothed.train()
    log_p = patched(model.inputs()["input_ids"]).logits
    log_p.max(-1).values.sum().backward()  # the policy gradient of a token that has probability


PLIF = {"mapping": "plif", "knots": 20}
MIXTURE = {"mapping": "sigsoftmax", "learn": "bias", "components": 2}
ENTMAX = {"mapping": "entmax", "learn": "alpha", "alpha": 1.5}


@pytest.mark.parametrize(
    ("name", "arguments"),
    first(("gpt2", PLIF), ("gpt2", MIXTURE), ("gpt2", ENTMAX), ("bert", PLIF), ("t5", MIXTURE)),
    ids=lambda value: value if isinstance(value, str) else value["mapping"],
)
def test_trainer(name, arguments, tmp_path):
    model = BY_MODEL[name]
    patched = patch_lm_head(model.build(), **arguments)
    head = patched.get_output_embeddings()
    before = {n: p.clone() for n, p in head.named_parameters()}
    run_ = trainer(
        patched, Rows(model.inputs()), tmp_path, max_steps=6, learning_rate=1e-2,
        optim="adamw_torch", per_device_train_batch_size=3, save_strategy="steps", save_steps=6,
    )  # fmt: skip
    run_.train()
    losses = [entry["loss"] for entry in run_.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0]
    assert not [n for n, p in head.named_parameters() if torch.equal(p, before[n])]
    assert patched.get_output_embeddings() is head
    assert head.weight is patched.get_input_embeddings().weight

    inputs = model.inputs()
    patched.eval()
    loaded = load_pretrained(type(patched), tmp_path / "checkpoint-6")
    assert torch.equal(run(loaded, inputs).logits, run(patched, inputs).logits)


def test_gradient_checkpointing_gives_the_same_gradients():
    inputs = BY_MODEL["llama"].inputs()
    first = patch_lm_head(BY_MODEL["llama"].build(), "sparsemax").train()
    second = copy.deepcopy(first)
    # renamed in Transformers 5.23
    enable = getattr(
        second, "activation_checkpointing_enable", second.gradient_checkpointing_enable
    )
    enable({"use_reentrant": False})
    for model in (first, second):
        model(**inputs, use_cache=False).loss.backward()
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


@peft_warns
def test_lora_around_a_patched_head():
    inputs = BY_MODEL["llama"].inputs()
    base = BY_MODEL["llama"].build()
    plain = run(base, inputs).logits
    expected = run(patch_lm_head(base, "sparsemax"), inputs)
    model = get_peft_model(base, LoraConfig(r=2, target_modules=["q_proj"]))
    assert run(model, inputs).loss == expected.loss
    model(**inputs).loss.backward()
    trained = {n for n, p in model.named_parameters() if p.grad is not None}
    assert trained
    assert all("lora_" in name for name in trained)
    patch_lm_head(model, "plif", knots=8)
    assert base.lm_head.mapping.name == "plif"
    assert torch.equal(run(unpatch_lm_head(model), inputs).logits, plain)


@peft_warns
def test_modules_to_save_trains_the_mapping_and_a_wrapped_head_is_refused():
    inputs = BY_MODEL["llama"].inputs()
    base = patch_lm_head(BY_MODEL["llama"].build(), "plif", knots=8)
    expected = run(base, inputs)
    options = LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["lm_head"])
    model = get_peft_model(base, options)
    assert_near(run(model, inputs).logits, expected.logits)
    model(**inputs).loss.backward()
    assert any("raw_slopes" in n for n, p in model.named_parameters() if p.grad is not None)
    with pytest.raises(ValueError, match=r"got ModulesToSaveWrapper; use a lang.*before wrapping"):
        patch_lm_head(model, "sigsoftmax")
    merged = model.merge_and_unload()
    assert_near(run(merged, inputs).logits, expected.logits)
    assert type(unpatch_lm_head(merged).lm_head) is torch.nn.Linear


@peft_warns
def test_sparse_head_that_peft_copies_trains_by_its_own_loss():
    inputs = BY_MODEL["llama"].inputs()
    base = patch_lm_head(BY_MODEL["llama"].build(), "entmax", learn="alpha")
    expected = run(base, inputs).loss
    options = LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["lm_head"])
    model = get_peft_model(base, options)
    loss = model(**inputs).loss
    assert_near(loss, expected)
    loss.backward()
    trained = {n for n, p in model.named_parameters() if p.grad is not None and "lm_head" in n}
    copied = "base_model.model.lm_head.modules_to_save.default"
    assert trained == {f"{copied}.weight", f"{copied}.mapping.raw_alpha"}


def test_threads_keep_their_hidden_states_apart():
    """As the replicas of nn.DataParallel, which share the hooks and the loss of one model."""
    model = BY_MODEL["gpt2"]
    patched = patch_lm_head(model.build(), "sparsemax")
    batches = [model.inputs() for _ in range(2)]
    expected = [run(patched, inputs).loss for inputs in batches]
    everyone = threading.Barrier(2, timeout=20)
    handle = patched.lm_head.register_forward_hook(lambda *_: everyone.wait() and None)
    with ThreadPoolExecutor(2) as pool:
        losses = [output.loss for output in pool.map(lambda i: run(patched, i), batches)]
    handle.remove()
    assert losses == expected
    assert expected[0] != expected[1]
