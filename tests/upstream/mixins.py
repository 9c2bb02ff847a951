"""Transformers' own tests of a model, from its source distribution, over the table of tiny models.

`make upstream` unpacks that distribution. It has the tests that all models share, but neither the
models' own test files nor two mixins that the shared ones import: empty ones stand in for them.
"""

import importlib
import sys
import unittest
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers.models.auto import modeling_auto

from tests.plugin.families import BY_NAME, HEADS, Family

SOURCES = (
    Path(__file__).parents[2] / f"build/upstream/transformers-{transformers.__version__}/tests"
)
PACKAGE = "transformers_tests"
STAND_INS = {
    "exporters.test_export": "ExportTesterMixin",
    "generation.test_utils": "GenerationTesterMixin",
}
NAMES = (
    "bert",
    "roberta",
    "distilbert",
    "albert",
    "electra",
    "modernbert",
    "t5",
    "bart",
    "gpt2",
    "opt",
    "llama",
    "qwen3",
    "gemma2",
    "vit",
    "clip",
    "whisper",
)
# what the tests expect that the table of tiny models does not say
CHANGES: dict[str, dict[str, Any]] = {
    "modernbert": {"num_hidden_layers": 2},
    "vit": {"encoder_stride": 4},
}
# classes that take other inputs than their family's
OTHER_INPUTS = {"CLIPForImageClassification", "T5ForTokenClassification"}
# the classes of a family: its base model, and those that these tables name for its model type
TASKS = (
    "CAUSAL_LM",
    "MASKED_LM",
    "SEQ_TO_SEQ_CAUSAL_LM",
    "SPEECH_SEQ_2_SEQ",
    "SEQUENCE_CLASSIFICATION",
    "TOKEN_CLASSIFICATION",
    "QUESTION_ANSWERING",
    "MULTIPLE_CHOICE",
    "NEXT_SENTENCE_PREDICTION",
    "IMAGE_CLASSIFICATION",
    "MASKED_IMAGE_MODELING",
)
LEFT_OUT = {"test_bc_torch_dtype"}  # prints every tensor: longer than all other tests together
SPREAD = 0.4  # of the initial weights: tiny ones give nearly equal scores, which hide a wrong mapping
REPEATS = 3  # of the table's rows: the tests cut them down to 7


def shared_tests() -> ModuleType:
    """The module with the tests that all models share."""
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
    return importlib.import_module(f"{PACKAGE}.test_modeling_common")


def model_classes(family: Family) -> tuple[Any, ...]:
    base, config = getattr(transformers, family.model), family.make_config()
    # the decoder of a sequence-to-sequence model alone takes other inputs
    tasks = [task for task in TASKS if task != "CAUSAL_LM" or not config.is_encoder_decoder]
    tables = [getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES") for task in tasks]
    names = [table[config.model_type] for table in tables if config.model_type in table]
    names = [name for name in names if name not in OTHER_INPUTS]
    return tuple(dict.fromkeys([base, *(getattr(transformers, name) for name in names)]))


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
        if hasattr(config, "image_size"):
            self.image_size, self.patch_size = config.image_size, config.patch_size
            self.seq_length = (self.image_size // self.patch_size) ** 2 + 1
            self.num_masks, self.mask_length = 1, self.seq_length - 1
        if "input_features" in inputs:
            self.seq_length = inputs["decoder_input_ids"].shape[1]
            self.encoder_seq_length = config.max_source_positions

    def prepare_config_and_inputs_for_common(self) -> tuple[Any, dict[str, Tensor]]:
        config = self.family.make_config(**CHANGES.get(self.family.name, {}))
        for name in ("initializer_range", "init_std"):
            if hasattr(config, name):
                setattr(config, name, 0.1 if self.family.name == "vit" else SPREAD)
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
    common, family = shared_tests(), BY_NAME[name]
    classes = model_classes(family)
    generates = any(cls.can_generate() for cls in classes)
    mixins = [common.GenerationTesterMixin] * generates + [common.ModelTesterMixin]

    def set_up(self: Any) -> None:
        transformers.set_seed(0)
        self.model_tester = ModelTester(family)

    members = {
        "setUp": set_up,
        "all_model_classes": classes,
        "is_encoder_decoder": family.make_config().is_encoder_decoder,
        "test_resize_embeddings": "input_ids" in family.inputs() and not family.parts,
        "additional_model_inputs": ["pixel_values"],
        **dict.fromkeys(LEFT_OUT),
    }
    return type(f"{family.model}Test", (*mixins, unittest.TestCase), members)
