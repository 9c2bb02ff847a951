"""Training with a multi-label head: Trainer and its accumulation, schedules, autocast, PEFT."""

import pytest
import torch
from peft import LoraConfig, get_peft_model

from sparse_attn import (
    Mapping,
    SparsitySchedule,
    SparsityScheduleCallback,
    load_pretrained,
    patch_model,
)
from sparse_attn.heads import patch_multilabel_head, search_threshold, unpatch_multilabel_head
from sparse_attn.hf.config import MULTILABEL

from .heads import Rows, trainer
from .helpers import assert_near, peft_warns
from .lm_heads import run
from .multilabel_models import BERT, LLAMA, ROBERTA, patched_model

ROWS = 12


def sentences(model):
    """Random sentences with labels that their first tokens say."""
    torch.manual_seed(0)
    batches = [model.inputs() for _ in range(ROWS // 3)]
    rows = {n: torch.cat([batch[n] for batch in batches]) for n in batches[0]}
    rows["labels"] = torch.stack([rows["input_ids"][:, 0] > 5 * i for i in range(5)], -1).float()
    return Rows(rows)


@pytest.mark.parametrize(
    ("model", "kind"),
    [(BERT, "softmax"), (BERT, "r-softmax-predicted"), (LLAMA, "t-softmax-learned")],
    ids=str,
)
def test_trainer(model, kind, tmp_path):
    patched, data = patched_model(model, kind), sentences(model)
    head = model.head(patched)
    before = {n: p.clone() for n, p in head.named_parameters()}
    expected = run(patched, data.batch).loss
    run_ = trainer(patched, data, tmp_path, save_strategy="steps", save_steps=2)
    assert run_.evaluate()["eval_loss"] == pytest.approx(expected.item(), rel=1e-5)
    run_.train()
    metrics = run_.evaluate()
    assert not [n for n, p in head.named_parameters() if torch.equal(p, before[n])]
    patched.eval()
    after = run(patched, data.batch)
    assert metrics["eval_zeros"] == pytest.approx(after.logits.isinf().float().mean().item())
    head.threshold = search_threshold(after.logits, data.batch["labels"])
    loaded = load_pretrained(type(patched), tmp_path / "checkpoint-2")
    assert torch.equal(run(loaded, data.batch).logits, after.logits)


@pytest.mark.slow
@pytest.mark.parametrize("attention", [None, "entmax"])
def test_accumulated_batches_are_one_batch(attention, tmp_path):
    """Trainer hands over the number of entries of the labels; others of Transformers ignore it."""
    data, weights = sentences(BERT), []
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
    run_ = trainer(model, sentences(ROBERTA), tmp_path, [callback], max_steps=4)
    run_.train()
    assert used == pytest.approx([0.0, 0.2, 0.4, 0.6])
    assert head.mapping.value("r") == 0.8
    assert model.config.sparse_attn["mappings"][0]["params"]["r"] == 0.3
    logged = [log["sparsity/classifier.out_proj.r"] for log in run_.state.log_history[:4]]
    assert logged == pytest.approx([0.2, 0.4, 0.6, 0.8])
    model.save_pretrained(tmp_path / "model")
    loaded = load_pretrained(type(model), tmp_path / "model")
    assert loaded.classifier.out_proj.mapping.value("r") == 0.8


@pytest.mark.parametrize(
    ("module", "schedule", "message"),
    [
        ("clasifier", SparsitySchedule(), "module='clasifier': expected the name of a MultiLabel"),
        ("bert", SparsitySchedule(), "module='bert': expected the name of a MultiLabelHead in Be"),
        ("classifier", SparsitySchedule("t", 1.0, 2.0), "parameter='t': r-softmax"),
        ("classifier", SparsitySchedule(final=1.5), r"r=1\.5 is out of range"),
    ],
)
def test_a_wrong_schedule_stops_the_run_before_it_starts(module, schedule, message, tmp_path):
    model = patch_multilabel_head(BERT.build(), "r-softmax")
    callback = SparsityScheduleCallback(schedule, module)
    with pytest.raises(ValueError, match=message):
        trainer(model, sentences(BERT), tmp_path, [callback]).train()


def test_autocast_rounds_the_hidden_states_alone():
    inputs = BERT.inputs()
    model = patched_model(BERT, "r-softmax-predicted")
    seen = []
    model.classifier.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = run(model, inputs)
    hidden = seen[0]
    assert hidden.dtype == torch.bfloat16
    assert output.logits.dtype == output.loss.dtype == torch.float32
    assert torch.equal(output.logits, model.classifier(hidden))
    assert torch.equal(output.loss, model.classifier.loss(hidden, inputs["labels"]))


@peft_warns
@pytest.mark.parametrize("kind", ["r-softmax-predicted", "t-softmax-learned"])
def test_peft_trains_a_copy_of_the_head(kind):
    inputs = BERT.inputs()
    base = patched_model(BERT, kind)
    expected = run(base, inputs)
    options = LoraConfig(r=2, target_modules=["query"], modules_to_save=["classifier"])
    model = get_peft_model(base, options)
    output = model(**inputs)
    assert_near(output.loss, expected.loss)
    assert torch.equal(output.logits, expected.logits)
    output.loss.backward()
    trained = {n for n, p in model.named_parameters() if p.grad is not None and "lora_" not in n}
    names = {f"classifier.modules_to_save.default.{n}" for n, _ in base_head(kind)}
    assert trained == {f"base_model.model.{name}" for name in names}
    with pytest.raises(ValueError, match=r"wrapped by PEFT.*unwrap \(merge_and_unload\) before"):
        unpatch_multilabel_head(model)


def base_head(kind):
    return patched_model(BERT, kind).classifier.named_parameters()


@peft_warns
def test_a_head_that_peft_trained_is_saved_with_what_was_set(tmp_path):
    """Sequence classification is what PEFT copies the classifier for by itself."""
    inputs = BERT.inputs()
    base = patched_model(BERT, "r-softmax")
    model = get_peft_model(base, LoraConfig(r=2, target_modules=["query"], task_type="SEQ_CLS"))
    callback = SparsityScheduleCallback(SparsitySchedule(final=0.6), module="classifier")
    trainer(model, sentences(BERT), tmp_path, [callback]).train()
    with pytest.raises(ValueError, match="wrapped by PEFT"):
        patch_multilabel_head(model, "sparsemax")
    merged = model.eval().merge_and_unload()
    expected = run(merged, inputs)
    merged.classifier.threshold = 0.11
    merged.save_pretrained(tmp_path / "merged")
    loaded = load_pretrained(type(merged), tmp_path / "merged")
    assert torch.equal(run(loaded, inputs).logits, expected.logits)
    assert loaded.classifier.threshold == 0.11
    assert getattr(loaded.config, MULTILABEL)["head"]["params"]["r"] == 0.6
