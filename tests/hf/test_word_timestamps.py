"""Word timestamps of Whisper, for which its `generate` sets the model to eager attention."""

import pytest
import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration

from sparse_attn import patch_model
from sparse_attn.inspection import record_attention

from .families import SEQ2SEQ

WORDS = {
    "return_token_timestamps": True,
    "return_timestamps": True,
    "max_new_tokens": 5,
    "return_dict_in_generate": True,
}


def build():
    torch.manual_seed(0)
    config = WhisperConfig(
        **{**SEQ2SEQ, "vocab_size": 100},
        num_mel_bins=8,
        max_source_positions=20,
        max_target_positions=60,
        init_std=0.4,
        median_filter_width=3,
        begin_suppress_tokens=None,
        suppress_tokens=None,
    )
    model = WhisperForConditionalGeneration(config).eval()
    new = {
        "alignment_heads": [[0, 1], [1, 2]],
        "no_timestamps_token_id": 60,
        "eos_token_id": None,
        "lang_to_id": {"<|en|>": 61},
        "task_to_id": {"transcribe": 62},
        "is_multilingual": False,
        "max_initial_timestamp_index": 10,
    }
    for key, value in new.items():
        setattr(model.generation_config, key, value)
    return model


@pytest.fixture
def features():
    return torch.randn(2, 8, 40)


def plain(model, features):
    return model.generate(features, max_new_tokens=5)


@pytest.mark.parametrize("mapping", ["softmax", "sparsemax"])
def test_timestamps_come_from_the_weights_of_the_mapping(mapping, features):
    expected = build().generate(features, **WORDS)["token_timestamps"]
    model = patch_model(build(), mapping)
    before = plain(model, features)
    stamps = model.generate(features, **WORDS)["token_timestamps"]
    same = stamps.shape == expected.shape and torch.allclose(stamps, expected)
    assert same == (mapping == "softmax")
    assert torch.equal(plain(model, features), before)


def test_a_generate_that_fails_leaves_the_model_as_it_was(features):
    model = patch_model(build(), "sparsemax")
    before = plain(model, features)

    def fail(*_):
        raise ZeroDivisionError

    handle = model.get_decoder().register_forward_pre_hook(fail)
    with pytest.raises(ZeroDivisionError):
        model.generate(features, **WORDS)
    handle.remove()
    assert torch.equal(plain(model, features), before)


def test_an_unpatched_model_is_recorded(features):
    model = build()
    with record_attention(model) as record:
        model.generate(features, **WORDS)
    assert record.support.isfinite().any()
    assert model.config._attn_implementation != "sparse_attn"


def test_a_switch_by_the_user_still_raises(features):
    model = patch_model(build(), "sparsemax")
    model.set_attn_implementation("eager")
    with pytest.raises(RuntimeError, match="implementation was changed to 'eager'"):
        plain(model, features)
