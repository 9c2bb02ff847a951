"""Names, configs and mixtures of attention that the common models do not show."""

import copy
from pathlib import Path

import pytest
import torch
from transformers import (
    BertConfig,
    BertModel,
    GitConfig,
    GitModel,
    Wav2Vec2Config,
    Wav2Vec2ForCTC,
)

from sparse_attn import patch_model, patched, unpatch_model
from sparse_attn.patching import attention_layers

SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 8,
}


def bert() -> BertModel:
    return BertModel(BertConfig(vocab_size=99, **SMALL)).eval()


def test_digits_in_a_name_are_no_block_number() -> None:
    config = Wav2Vec2Config(**SMALL, conv_dim=(8,), conv_stride=(5,), conv_kernel=(10,))
    config.num_feat_extract_layers = 1
    model = Wav2Vec2ForCTC(config)
    assert [layer.block for layer in attention_layers(model)] == [0, 1]
    patch_model(model, "sparsemax", layers=[1])
    names = [layer.module.sparse_attn.name for layer in attention_layers(model)]
    assert names == ["softmax", "sparsemax"]


def test_model_that_dispatches_in_part_is_refused() -> None:
    vision = {**SMALL, "image_size": 8, "patch_size": 4}
    model = GitModel(GitConfig(vocab_size=99, **SMALL, vision_config=vision))
    with pytest.raises(ValueError, match=r"GitModel computes softmax in encoder"):
        patch_model(model, "sparsemax")
    assert not any(hasattr(layer.module, "sparse_attn") for layer in attention_layers(model))


def test_plainly_loaded_then_patched_and_unpatched(tmp_path: Path) -> None:
    model, ids = bert(), torch.randint(0, 99, (1, 5))
    expected = model(ids).last_hidden_state
    patch_model(model, "sparsemax").save_pretrained(tmp_path)
    loaded = BertModel.from_pretrained(tmp_path).eval()
    patch_model(loaded, "softmax")
    unpatch_model(loaded)
    torch.testing.assert_close(loaded(ids).last_hidden_state, expected)


def test_block_of_patched_may_unpatch() -> None:
    model = bert()
    with patched(model, "sparsemax"):
        unpatch_model(model)
    assert "sparse_attn" not in model.config.to_dict()


def test_models_with_copied_configs_do_not_mix() -> None:
    first = bert()
    second = copy.deepcopy(first)
    ids = torch.randint(0, 99, (1, 5))
    expected = second(ids).last_hidden_state
    patch_model(first, "r-softmax", r=0.5)
    assert torch.equal(second(ids).last_hidden_state, expected)
