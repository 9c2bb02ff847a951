"""Language models in GGUF: a tiny Llama with a tokenizer, written here."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
)

from sparse_attn import patch_model
from sparse_attn.hf.opening import load_model, load_tokenizer, resolve_model
from sparse_attn.inspection import record_attention
from tests.conversion.command.running import converted

gguf = pytest.importorskip("gguf", reason="needs the package gguf")

LETTERS = "abcdefgh"
SIZES = {
    "context_length": 64, "embedding_length": 32, "block_count": 2, "feed_forward_length": 32,
    "head_count": 4, "head_count_kv": 2, "rope_dimension_count": 8, "vocab_size": 16,
    "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
# names in the file of a layer's weights
LAYER = {
    "attn_norm": "input_layernorm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_v": "self_attn.v_proj",
}


def interleaved(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """The order of llama.cpp for rotary positions."""
    half = weight.shape[0] // heads // 2
    return weight.view(heads, 2, half, -1).transpose(1, 2).reshape(weight.shape)


@pytest.fixture(scope="module")
def llama() -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    config = LlamaConfig(**sizes, **heads, vocab_size=16, initializer_range=0.5)
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def folder(llama: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(llama, tmp_path_factory.mktemp("gguf"))


def written(llama: Any, folder: Path, without: str = "") -> Path:
    config, state = llama.config, llama.state_dict()
    writer = gguf.GGUFWriter(str(folder / "tiny.gguf"), "llama")
    for name, value in SIZES.items():
        getattr(writer, f"add_{name}")(value)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_tokenizer_model("gpt2")
    words = ["<end>", *LETTERS, "ab", "cd", *(f"<{i}>" for i in range(5))]
    writer.add_token_list(words)
    writer.add_token_types([3, *[1] * 10, *[3] * 5])
    writer.add_token_merges(["a b", "c d"])
    names = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
    for layer in range(2):
        names |= {f"blk.{layer}.{a}": f"model.layers.{layer}.{b}" for a, b in LAYER.items()}
        for part, count in (("q", 4), ("k", 2)):
            weight = state[f"model.layers.{layer}.self_attn.{part}_proj.weight"]
            if f"blk.{layer}.attn_{part}" == without:
                continue
            writer.add_tensor(f"blk.{layer}.attn_{part}.weight", interleaved(weight, count).numpy())
    for ours, theirs in names.items():
        writer.add_tensor(f"{ours}.weight", state[f"{theirs}.weight"].numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return folder


@pytest.mark.parametrize("place", ["", "tiny.gguf"])
def test_a_file_or_the_folder_that_holds_it(folder: Path, llama: Any, place: str) -> None:
    path = resolve_model(str(folder / place), gguf=True)
    config, tokenizer = load_tokenizer(path)
    assert config.architectures == ["LlamaForCausalLM"]
    ids = torch.tensor([tokenizer("abcab")["input_ids"]])
    model = load_model(path, AutoModelForCausalLM)
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, llama(ids).logits)


def test_it_can_be_patched_saved_and_loaded(folder: Path, tmp_path: Path) -> None:
    path = resolve_model(str(folder), gguf=True)
    model = load_model(path, AutoModelForCausalLM)
    patch_model(model, "sparsemax").save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    ids = torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        assert torch.equal(model(ids).logits, again(ids).logits)


def test_without_a_head(folder: Path, llama: Any) -> None:
    path = resolve_model(str(folder), gguf=True)
    ids = torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        found = load_model(path, AutoModel)(ids).last_hidden_state
        torch.testing.assert_close(found, llama.model(ids).last_hidden_state)


@pytest.mark.parametrize("cls", [AutoModel, AutoModelForCausalLM])
def test_missing_weights(llama: Any, tmp_path: Path, cls: Any) -> None:
    path = resolve_model(str(written(llama, tmp_path, without="blk.1.attn_q")), gguf=True)
    with pytest.raises(ValueError, match=r"lacks .*weights, such as .*q_proj"):
        load_model(path, cls)


def test_what_does_not_read_it(folder: Path) -> None:
    for model in (folder, folder / "tiny.gguf"):
        with pytest.raises(ValueError, match="GGUF file, which only inspect, compare and convert"):
            resolve_model(str(model))
    with pytest.raises(ValueError, match=r"no\.gguf': there is no such file"):
        resolve_model(str(folder / "no.gguf"), gguf=True)
    with pytest.raises(ValueError, match="llm_smollm3' is not installed"):
        resolve_model("pkg://llm_smollm3", gguf=True)


@pytest.mark.slow
def test_convert(folder: Path, tmp_path: Path) -> None:
    """The converted model is saved as safetensors, and loads with its mapping and tokenizer."""
    rng = random.Random(0)
    lines = ["".join(rng.choices(LETTERS, k=rng.randint(5, 20))) for _ in range(100)]
    out = tmp_path / "out"
    record = converted(folder / "tiny.gguf", out, lines=lines)
    assert record["mappings"][0]["zeros"] > 0.2
    healed = load_model(str(out / "model"), AutoModelForCausalLM)
    with torch.no_grad(), record_attention(healed) as found:
        healed(torch.tensor([[1, 2, 3, 4]]))
    assert found.mean > 0
    tokenizer = AutoTokenizer.from_pretrained(out / "model")
    assert tokenizer("ab")["input_ids"] == [9]
