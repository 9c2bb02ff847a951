"""Transformers' own tests of a model, from its source distribution, over the table of tiny models.

`make upstream` unpacks that distribution. It has the tests that all models share, but neither the
models' own test files nor two mixins that the shared ones import: empty ones stand in for them.
"""

import importlib
import os
import sys
import unittest
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
import transformers
from torch import Tensor
from transformers.models.auto import modeling_auto

from tests.hf.families import BY_NAME, FAMILIES, HEADS, Family

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / f"build/upstream/transformers-{transformers.__version__}/tests"
PACKAGE = "transformers_tests"
STAND_INS = {
    "exporters.test_export": "ExportTesterMixin",
    "generation.test_utils": "GenerationTesterMixin",
}
NAMES = [family.name for family in FAMILIES if family.name != "bert-decoder"]
# the classes of a family: its base model, and those that these tables name for its model type
TASKS = ("CAUSAL_LM", "MASKED_LM", "SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ", "CTC",
         "SEQUENCE_CLASSIFICATION", "TOKEN_CLASSIFICATION", "QUESTION_ANSWERING",
         "MULTIPLE_CHOICE", "NEXT_SENTENCE_PREDICTION", "IMAGE_CLASSIFICATION",
         "MASKED_IMAGE_MODELING", "AUDIO_CLASSIFICATION")  # fmt: skip
# but for those that take other inputs
OTHER_INPUTS = {"BartForCausalLM", "CLIPForImageClassification", "T5ForTokenClassification",
                "WhisperForCausalLM", "WhisperForAudioClassification"}  # fmt: skip
# tiny initial weights give nearly equal scores, which hide a wrong mapping
SPREAD = {"initializer_range": 0.4, "init_std": 0.2}
CHANGES: dict[str, dict[str, Any]] = {
    "gpt-neox": {"pad_token_id": 0},
    "mistral": {"initializer_range": 0.2},  # 0.4: sdpa is not eager in half precision
    "modernbert": {"num_hidden_layers": 2},  # what the tests expect
    "vit": {"encoder_stride": 4, "initializer_range": 0.1},  # 0.4: sdpa is not eager in float16
}
REPEATS = 3  # of the table's rows: the tests cut them down to 7
LEFT_OUT = {"test_bc_torch_dtype"}  # prints every tensor: longer than all other tests together


def shared_tests(module: str) -> ModuleType:
    """A module with tests that all models share."""
    os.environ["TRANSFORMERS_TEST_DEVICE"] = "cpu"
    if PACKAGE not in sys.modules:
        package = ModuleType(PACKAGE)
        package.__path__ = [str(SOURCES)]
        sys.modules[PACKAGE] = package
        for path, mixin in STAND_INS.items():
            folder = f"{PACKAGE}.{path.split('.')[0]}"
            sys.modules[folder] = ModuleType(folder)
            stand_in = ModuleType(f"{PACKAGE}.{path}")
            setattr(stand_in, mixin, type(mixin, (), {}))
            sys.modules[stand_in.__name__] = stand_in
    with patch.object(pytest.mark, "_config", None):  # its marks are none of ours
        return importlib.import_module(f"{PACKAGE}.{module}")


def model_classes(family: Family) -> tuple[Any, ...]:
    model_type = family.make_config().model_type
    tables = [getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES") for task in TASKS]
    names = [family.model, *(table[model_type] for table in tables if model_type in table)]
    return tuple(getattr(transformers, n) for n in dict.fromkeys(names) if n not in OTHER_INPUTS)


class ModelTester(SimpleNamespace):
    """What the tests ask of a model tester."""

    def __init__(self, family: Family) -> None:
        self.family = family
        config, inputs = self.prepare_config_and_inputs_for_common()
        main = next(iter(inputs.values()))
        super().__init__(
            batch_size=len(main),
            seq_length=main.shape[1],
            num_hidden_layers=2,
            num_attention_heads=HEADS,
            hidden_size=16,
            num_choices=2,
            is_training=True,
        )
        if "pixel_values" in inputs and not family.parts:
            self.image_size, self.patch_size = config.image_size, config.patch_size
            self.mask_length = (self.image_size // self.patch_size) ** 2
            self.seq_length, self.num_masks = self.mask_length + 1, 1
        if "input_features" in inputs:
            self.seq_length = inputs["decoder_input_ids"].shape[1]
            self.encoder_seq_length = config.max_source_positions

    def get_config(self) -> Any:
        config = self.family.make_config()
        changes = {name: value for name, value in SPREAD.items() if hasattr(config, name)}
        return self.family.make_config(**{**changes, **CHANGES.get(self.family.name, {})})

    def prepare_config_and_inputs_for_common(self) -> tuple[Any, dict[str, Tensor]]:
        config = self.get_config()
        parts = [self.family.inputs() for _ in range(REPEATS)]
        inputs = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        if config.is_encoder_decoder and "input_ids" in inputs:
            # one length; one end of the sequence in every row, which classifiers read
            inputs["input_ids"][:, 0] = config.eos_token_id
            inputs["decoder_input_ids"] = inputs["input_ids"].clone()
            inputs["decoder_attention_mask"] = inputs["attention_mask"].clone()
        return config, inputs


def make_test_class(name: str) -> type[unittest.TestCase]:
    """The tests of a family, as Transformers runs them on its own models."""
    common, family = shared_tests("test_modeling_common"), BY_NAME[name]
    classes = model_classes(family)
    generating = [cls for cls in classes if cls.can_generate()]
    mixins = [common.ModelTesterMixin]
    if generating:
        mixins.append(common.GenerationTesterMixin)
    if family.causal:
        mixins.append(shared_tests("test_training_mixin").TrainingTesterMixin)

    def set_up(self: Any) -> None:
        transformers.set_seed(0)
        self.model_tester = ModelTester(family)

    members = {
        "setUp": set_up,
        "all_model_classes": classes,
        "is_encoder_decoder": family.make_config().is_encoder_decoder,
        "test_resize_embeddings": "input_ids" in family.inputs() and not family.parts,
        "additional_model_inputs": ["pixel_values"],
        "training_overfit_learning_rate": 1e-2,
        "training_grad_norm_reduction_threshold": 0.5,  # dropout keeps it up
        "training_overfit_seq_length": 19,  # the tokens of its pattern
        "_get_trainable_model_class": lambda self: generating[0],
        **dict.fromkeys(LEFT_OUT),
    }
    return type(mixins[-1])(f"{family.model}Test", (*mixins, unittest.TestCase), members)
