"""TRL: supervised fine-tuning with learned parameters, padded and packed."""

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

from sparse_attn import load_pretrained, patch_model
from tests.letters import letter_tokenizer

trl = pytest.importorskip("trl", reason="needs trl")

TEXTS = ["abc def", "hello", "you me", "x y z", "aaa b c d e f g"] * 4
# of TRL's own options under Transformers 5.23
pytestmark = pytest.mark.filterwarnings("ignore:`gradient_checkpointing` is deprecated")


@pytest.fixture(scope="module")
def tokenizer():
    letters = letter_tokenizer().backend_tokenizer
    letters.post_processor = TemplateProcessing(single="$A", pair="$A $B", special_tokens=[])
    return PreTrainedTokenizerFast(tokenizer_object=letters, eos_token="[SEP]", pad_token="[PAD]")


def train(tokenizer, folder, **options):
    """A tiny Llama after three steps, and its losses."""
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
    model = patch_model(LlamaForCausalLM(config), "entmax", alpha=1.5, learn="alpha", per="head")
    settings = {
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
    trainer = trl.SFTTrainer(
        model=model,
        args=trl.SFTConfig(**settings),
        train_dataset=Dataset.from_dict({"text": TEXTS}),
        processing_class=tokenizer,
    )
    trainer.train()
    trainer.save_model(folder / "saved")
    return model, [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def test_it_trains_learned_parameters_and_saves_them(tokenizer, tmp_path):
    model, losses = train(tokenizer, tmp_path)
    assert losses[-1] < losses[0]
    values = model.model.layers[0].self_attn.sparse_attn.parameter_values()["alpha"]
    assert all(abs(value - 1.5) > 1e-4 for value in values)
    loaded = load_pretrained(AutoModelForCausalLM, tmp_path / "saved")
    ids = torch.tensor([tokenizer("hello you")["input_ids"]])
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, model.eval()(ids).logits)


def test_packed_texts_stay_apart(tokenizer, tmp_path):
    _, padded = train(tokenizer, tmp_path / "padded")
    _, packed = train(tokenizer, tmp_path / "packed", padding_free=True)
    assert packed == pytest.approx(padded, rel=1e-5)
