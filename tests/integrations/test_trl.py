"""TRL: supervised fine-tuning with learned parameters, padded and packed, and preferences."""

import copy
import math

import pytest
import torch
from datasets import Dataset
from tokenizers.processors import TemplateProcessing
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from sparse_attn import load_pretrained, patch_lm_head, patch_model
from sparse_attn.hf.patching import is_patched
from tests.letters import letter_tokenizer

trl = pytest.importorskip("trl", reason="needs trl")

TEXTS = ["abc def", "hello", "you me", "x y z", "aaa b c d e f g"] * 4
# of TRL's own options under Transformers 5.23
pytestmark = pytest.mark.filterwarnings("ignore:`.*gradient_checkpointing.*deprecated")


# earlier ones call the head, and load a reference of softmax
projects = pytest.mark.skipif(
    not hasattr(trl.trainer.utils, "add_fused_lm_head"), reason="needs TRL 1.16"
)


@pytest.fixture(scope="module")
def tokenizer():
    letters = letter_tokenizer().backend_tokenizer
    letters.post_processor = TemplateProcessing(single="$A", pair="$A $B", special_tokens=[])
    return PreTrainedTokenizerFast(tokenizer_object=letters, eos_token="[SEP]", pad_token="[PAD]")


@pytest.fixture
def llama(tokenizer):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        initializer_range=0.3,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    return LlamaForCausalLM(config)


def settings(folder, **options):
    return {
        "output_dir": str(folder),
        "max_steps": 3,
        "per_device_train_batch_size": 4,
        "learning_rate": 0.01,
        "logging_steps": 1,
        "report_to": [],
        "use_cpu": True,
        "bf16": False,
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        "max_length": None,
        **options,
    }


def losses_of(trainer):
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def tuner(model, tokenizer, folder, **options):
    return trl.SFTTrainer(
        model=model,
        args=trl.SFTConfig(**settings(folder, **options)),
        train_dataset=Dataset.from_dict({"text": TEXTS}),
        processing_class=tokenizer,
    )


def chooser(model, tokenizer, folder, reference=None, **options):
    return trl.DPOTrainer(
        model=model,
        ref_model=reference,
        args=trl.DPOConfig(**settings(folder, **options)),
        train_dataset=Dataset.from_dict(
            {"prompt": TEXTS, "chosen": TEXTS, "rejected": TEXTS[::-1]}
        ),
        processing_class=tokenizer,
    )


def train(model, tokenizer, folder, **options):
    """The losses of three steps with learned parameters."""
    patch_model(model, "entmax", alpha=1.5, learn="alpha", per="head")
    trainer = tuner(model, tokenizer, folder, **options)
    losses = losses_of(trainer)
    trainer.save_model(folder / "saved")
    return losses


def test_it_trains_learned_parameters_and_saves_them(llama, tokenizer, tmp_path):
    losses = train(llama, tokenizer, tmp_path)
    assert losses[-1] < losses[0]
    values = llama.model.layers[0].self_attn.sparse_attn.parameter_values()["alpha"]
    assert all(abs(value - 1.5) > 1e-4 for value in values)
    loaded = load_pretrained(AutoModelForCausalLM, tmp_path / "saved")
    ids = torch.tensor([tokenizer("hello you")["input_ids"]])
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, llama.eval()(ids).logits)


def test_packed_texts_stay_apart(llama, tokenizer, tmp_path):
    padded = train(copy.deepcopy(llama), tokenizer, tmp_path / "padded")
    packed = train(llama, tokenizer, tmp_path / "packed", padding_free=True)
    assert packed == pytest.approx(padded, rel=1e-5)


@projects
@pytest.mark.parametrize("mapping", ["softmax", "sigsoftmax", "sparsemax"])
@pytest.mark.parametrize("trainer", [tuner, chooser])
def test_a_patched_head_is_refused(trainer, mapping, llama, tokenizer, tmp_path):
    """TRL multiplies by the weight of the output layer."""
    llama.save_pretrained(tmp_path / "plain")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "plain")
    patch_lm_head(patch_model(model, "entmax"), mapping)
    given = {"reference": copy.deepcopy(model)} if trainer is chooser else {}
    made = trainer(model, tokenizer, tmp_path, **given)
    with pytest.raises(RuntimeError, match=r"fused_lm_head, which computes softmax .*Trainer of"):
        made.train()


def test_a_copy_is_the_reference_of_preferences(llama, tokenizer, tmp_path):
    model = patch_model(llama, "sparsemax")
    losses = losses_of(chooser(model, tokenizer, tmp_path, copy.deepcopy(model)))
    assert losses[0] == pytest.approx(math.log(2), abs=1e-5)
    assert losses[-1] != pytest.approx(math.log(2), abs=1e-5)


@projects
def test_the_policy_is_the_reference_of_preferences(llama, tokenizer, tmp_path):
    model = patch_model(llama, "sparsemax")
    losses = losses_of(chooser(model, tokenizer, tmp_path, precompute_ref_log_probs=True))
    assert losses[0] == pytest.approx(math.log(2), abs=1e-5)


@projects
def test_a_reference_that_is_loaded_is_refused_or_patched(llama, tokenizer, tmp_path):
    """TRL loads it from where the policy came from."""
    llama.save_pretrained(tmp_path / "plain")
    model = patch_model(AutoModelForCausalLM.from_pretrained(tmp_path / "plain"), "sparsemax")
    with pytest.raises(RuntimeError, match=r"ref_model=copy\.deepcopy\(model\)"):
        chooser(model, tokenizer, tmp_path).train()
    model.save_pretrained(tmp_path / "patched")
    trainer = chooser(
        AutoModelForCausalLM.from_pretrained(tmp_path / "patched"), tokenizer, tmp_path
    )
    trainer.train()
    assert is_patched(trainer.ref_model)
