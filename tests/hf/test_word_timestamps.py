"""Word timestamps of Whisper, for which its `generate` sets the model to eager attention."""

import pytest
import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration

from sparse_attn import patch_model, unpatch_model

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


def test_they_are_refused_and_never_those_of_softmax():
    features = torch.randn(2, 8, 40)
    model = patch_model(build(), "sparsemax")
    before = model.generate(features, max_new_tokens=5)
    for options in (WORDS, {"max_new_tokens": 5}):  # the switch lasts
        with pytest.raises(RuntimeError, match=r"'eager'; .*set_attn.*stamps.*unpatch"):
            model.generate(features, **options)
    model.set_attn_implementation("sparse_attn")
    assert torch.equal(model.generate(features, max_new_tokens=5), before)
    stamps = unpatch_model(model).generate(features, **WORDS)["token_timestamps"]
    assert torch.equal(stamps, build().generate(features, **WORDS)["token_timestamps"])
