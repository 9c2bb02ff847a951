"""Every way to load a saved folder by Transformers: it computes the mapping, or raises."""

import json
import shutil

import pytest
import torch
import transformers
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, BertConfig

from sparse_attn import load_pretrained, patch_model
from sparse_attn.heads import patch_lm_head, patch_multilabel_head
from sparse_attn.hf.attention import NAME
from tests.commands import python

from .families import BY_NAME
from .helpers import learning, peft_warns
from .multilabel_models import RESNET_MODEL, patched_model

BERT, CLIP = BY_NAME["bert"], BY_NAME["clip"]
TASK = AutoModelForSequenceClassification


def attention(**arguments):
    return learning(BERT.build("BertForSequenceClassification"), **arguments)


PATCHED = {
    "attention": attention,
    "LM head": lambda: patch_lm_head(BERT.build("BertForMaskedLM"), "sigsoftmax", bias=0.5),
    "multi-label head": lambda: patch_multilabel_head(
        BERT.build("BertForSequenceClassification", num_labels=3), "r-softmax"
    ),
}


@pytest.fixture(params=PATCHED)
def saved(request, tmp_path):
    """A patched model and its folder."""
    model = PATCHED[request.param]()
    model.save_pretrained(tmp_path / "saved")
    return model, tmp_path / "saved"


def call(model):
    with torch.no_grad():
        return model(**BERT.example).logits


def assert_refused(load, *args, run=call, **kwargs):
    """It raises when it loads, or in the first call."""
    with pytest.raises((ValueError, RuntimeError), match="load_pretrained"):
        run(load(*args, **kwargs))


def plain_config(folder):
    """The folder's config as one of a model that was never patched."""
    config = json.loads((folder / "config.json").read_text())
    kept = {k: v for k, v in config.items() if NAME not in f"{k} {v}" and k != "problem_type"}
    return BertConfig(**kept)


def patched_config(folder, **changes):
    config = AutoConfig.from_pretrained(folder)
    for name, value in changes.items():
        setattr(config, name, value)
    return config


WAYS = {
    "plain": {},
    "dtype": {"dtype": torch.bfloat16},
    "eager": {"attn_implementation": "eager"},
    "None": {"attn_implementation": None},
    "a dict": {"attn_implementation": {"": "eager"}},
    "device_map": {"device_map": "cpu"},
    "revision": {"revision": "main"},
    "output_loading_info": {"output_loading_info": False},
    "plain config": lambda folder: {"config": plain_config(folder)},
    "its config": lambda folder: {"config": AutoConfig.from_pretrained(folder)},
    "its config for eager": lambda folder: {
        "config": patched_config(folder, _attn_implementation="eager")
    },
    "gguf": lambda folder: {"gguf_file": "model.gguf"},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("auto", [True, False])
def test_a_plain_load_never_computes_softmax(way, auto, saved):
    model, folder = saved
    arguments = WAYS[way](folder) if callable(WAYS[way]) else WAYS[way]
    cls = type(model)
    if auto:
        cls = transformers.AutoModelForMaskedLM if hasattr(model, "cls") else TASK
    if way == "gguf":
        shutil.copy(folder / "model.safetensors", folder / "model.gguf")
        if auto:  # AutoConfig reads the GGUF file itself
            return
    assert_refused(cls.from_pretrained, folder, **arguments)


def test_a_config_in_another_folder_never_computes_softmax(saved, tmp_path):
    model, folder = saved
    plain_config(folder).save_pretrained(tmp_path / "plain")
    assert_refused(type(model).from_pretrained, folder, config=tmp_path / "plain")


@pytest.mark.parametrize("arguments", [{"subfolder": "inside"}, {"variant": "ema"}])
def test_a_part_of_a_folder_never_computes_softmax(arguments, tmp_path):
    folder = tmp_path / arguments.get("subfolder", "")
    model = attention()
    model.save_pretrained(folder, variant=arguments.get("variant"))
    load = type(model).from_pretrained
    assert_refused(load, tmp_path, **arguments)
    assert_refused(load, tmp_path, config=plain_config(folder), **arguments)
    for implementation in ("eager", {"": "sdpa"}):
        assert_refused(load, tmp_path, attn_implementation=implementation, **arguments)


def test_shards_and_state_dicts_never_compute_softmax(saved, tmp_path):
    model, folder = saved
    model.save_pretrained(tmp_path / "shards", max_shard_size="4KB")
    cls, config = type(model), AutoConfig.from_pretrained(folder)
    assert_refused(cls.from_pretrained, tmp_path / "shards")
    state = {n: t for n, t in model.state_dict().items() if "raw" not in n}
    assert_refused(cls.from_pretrained, None, config=config, state_dict=state)


def test_a_model_made_of_the_config_never_computes_softmax(saved):
    model, folder = saved
    config = AutoConfig.from_pretrained(folder)
    assert_refused(AutoModel.from_config, config)
    assert_refused(type(model), config)
    for implementation in ("eager", {"": "eager"}):
        assert_refused(AutoModel.from_config, config, attn_implementation=implementation)
    eager = AutoConfig.from_pretrained(folder, attn_implementation="eager")
    assert_refused(type(model), eager)


@pytest.mark.parametrize("options", [{}, {"model_kwargs": {"attn_implementation": "eager"}}])
def test_a_pipeline_never_computes_softmax(options, tmp_path):
    attention().save_pretrained(tmp_path)
    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a"])}
    transformers.BertTokenizer(vocab=vocabulary).save_pretrained(tmp_path)
    with pytest.raises((ValueError, RuntimeError), match="load_pretrained"):
        transformers.pipeline("text-classification", str(tmp_path), device="cpu", **options)("a")


@peft_warns
def test_an_adapter_beside_a_saved_base_never_computes_softmax(tmp_path):
    """Transformers loads the base that an adapter names."""
    attention().save_pretrained(tmp_path / "base")
    base = load_pretrained(TASK, tmp_path / "base")
    adapted = get_peft_model(base, LoraConfig(target_modules=["query"]))
    adapted.save_pretrained(tmp_path / "adapter")
    for options in (
        {},
        {"attn_implementation": "eager"},
        {"config": plain_config(tmp_path / "base")},
    ):
        for cls in (TASK, type(base)):
            assert_refused(cls.from_pretrained, tmp_path / "adapter", **options)


def test_the_guard_survives_being_loaded_and_saved_by_transformers(saved, tmp_path):
    model, folder = saved
    cls = type(model)
    cls.from_pretrained(folder).to(torch.bfloat16).save_pretrained(tmp_path / "model")
    AutoConfig.from_pretrained(folder).save_pretrained(tmp_path / "config")
    shutil.copy(folder / "model.safetensors", tmp_path / "config")
    for copy in ("model", "config"):
        written = json.loads((tmp_path / copy / "config.json").read_text())
        assert written["attn_implementation"] == NAME
        assert_refused(cls.from_pretrained, tmp_path / copy)
    assert torch.equal(call(load_pretrained(cls, tmp_path / "config")), call(model))


def test_the_guard_of_a_head_without_attention_survives(tmp_path):
    patched_model(RESNET_MODEL, "softmax").save_pretrained(tmp_path / "saved")
    shutil.copytree(tmp_path / "saved", tmp_path / "again")
    AutoConfig.from_pretrained(tmp_path / "saved").save_pretrained(tmp_path / "again")
    auto = transformers.AutoModelForImageClassification
    for folder in ("saved", "again"):
        for options in ({}, {"attn_implementation": "eager"}):
            with pytest.raises(ValueError, match="load_pretrained"):
                auto.from_pretrained(tmp_path / folder, **options)


def test_a_whole_of_which_a_part_was_patched_raises(tmp_path):
    model = CLIP.build()
    learning(model.text_model)
    model.save_pretrained(tmp_path / "saved")
    plain = transformers.CLIPModel.from_pretrained(tmp_path / "saved")
    plain.save_pretrained(tmp_path / "again")
    options = ({}, {"attn_implementation": "eager"}, {"attn_implementation": {"": "eager"}})
    for folder in ("saved", "again"):
        for arguments in options:
            load = transformers.CLIPModel.from_pretrained
            assert_refused(load, tmp_path / folder, run=CLIP.hidden, **arguments)
    loaded = load_pretrained(transformers.CLIPModel, tmp_path / "saved")
    assert torch.equal(CLIP.hidden(loaded), CLIP.hidden(model))


def test_a_config_whose_entry_was_deleted_is_that_of_a_plain_model(saved):
    """The remedy of the errors."""
    model, folder = saved
    path = folder / "config.json"
    config = json.loads(path.read_text())
    kept = {k: v for k, v in config.items() if NAME not in f"{k} {v}"}
    path.write_text(json.dumps(kept))
    assert call(type(model).from_pretrained(folder)).isfinite().all()
    path.write_text(json.dumps(config))
    opened = AutoConfig.from_pretrained(folder, attn_implementation="eager")
    for key in [key for key in vars(opened) if key.startswith(NAME)]:
        delattr(opened, key)
    assert call(type(model).from_pretrained(folder, config=opened)).isfinite().all()


ELSEWHERE = """
import json, sys, transformers
from transformers import AutoConfig, AutoModel, BertConfig
folder, copy, whole = sys.argv[1:]
raw = json.load(open(folder + "/config.json"))
plain = BertConfig(**{k: v for k, v in raw.items() if "sparse_attn" not in f"{k} {v}"})
AutoConfig.from_pretrained(folder).save_pretrained(copy)
config = AutoConfig.from_pretrained(folder)
ways = {
    "plain": lambda: AutoModel.from_pretrained(folder),
    "dtype": lambda: AutoModel.from_pretrained(folder, dtype="bfloat16"),
    "device_map": lambda: AutoModel.from_pretrained(folder, device_map="cpu"),
    "its config": lambda: AutoModel.from_pretrained(folder, config=config),
    "from_config": lambda: AutoModel.from_config(config),
    "a whole with a patched part": lambda: transformers.CLIPModel.from_pretrained(whole),
    "pipeline": lambda: transformers.pipeline("feature-extraction", folder),
    "attn_implementation": lambda: AutoModel.from_pretrained(folder, attn_implementation="eager"),
    "a dict": lambda: AutoModel.from_pretrained(folder, attn_implementation={"": "eager"}),
    "config": lambda: AutoModel.from_pretrained(folder, config=plain),
    "copied config": lambda: AutoModel.from_pretrained(copy),
}
silent = []
for name, load in ways.items():
    try:
        load()
        silent.append(name)
    except ValueError as error:
        assert "sparse_attn" in str(error), error
assert "sparse_attn" not in sys.modules
print(*silent, sep=",")
"""


@pytest.mark.slow
def test_where_sparse_attn_is_not_imported_these_are_silent(tmp_path):
    """The list of docs/guide/saving.md."""
    patch_model(BERT.build(), "sparsemax").save_pretrained(tmp_path / "saved")
    shutil.copytree(tmp_path / "saved", tmp_path / "copy")
    clip = CLIP.build()
    patch_model(clip.text_model, "sparsemax")
    clip.save_pretrained(tmp_path / "whole")
    folders = [tmp_path / name for name in ("saved", "copy", "whole")]
    silent = python("-c", ELSEWHERE, *folders).strip().split(",")
    assert silent == ["attn_implementation", "a dict", "config", "copied config"]


def test_plain_models_are_loaded_and_described_as_without_us(tmp_path):
    plain = BERT.build()
    plain.save_pretrained(tmp_path)
    loaded = type(plain).from_pretrained(pretrained_model_name_or_path=tmp_path)
    assert torch.equal(BERT.hidden(loaded), BERT.hidden(plain))
    # remote code prints configs before it has built them
    unbuilt = transformers.PreTrainedConfig.__new__(transformers.PreTrainedConfig)
    assert "model_type" in unbuilt.to_dict()
