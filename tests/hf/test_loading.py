"""However Transformers loads a saved folder, or a part of it: the model is patched, or it raises.

test_saving.py has the mappings and files, test_head_save.py the heads.
"""

import copy
import json
import pickle
import re
import shutil

import pytest
import torch
import transformers
from peft import AutoPeftModelForSequenceClassification, LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, T5Model

from sparse_attn import (
    SparsitySchedule,
    SparsityScheduleCallback,
    patch_lm_head,
    patch_model,
    patch_multilabel_head,
    unpatch_model,
)
from sparse_attn.hf.attention import NAME
from sparse_attn.hf.patching import is_patched
from tests.commands import python

from . import heads
from .families import BY_NAME, LLAMA, VISION
from .helpers import learned, learning, mappings_of, peft_warns

BERT, T5, CLIP = BY_NAME["bert"], BY_NAME["t5"], BY_NAME["clip"]
TASK = AutoModelForSequenceClassification
PATH = "pretrained_model_name_or_path"
VALUES = re.compile(rf"\.({NAME}|mapping)\.")


def classifier():
    return BERT.build("BertForSequenceClassification")


def attention():
    """One number a head in the first layer, a learned value in the second."""
    first = patch_model(classifier(), "r-softmax", r=[0.1, 0.2, 0.3, 0.4], per="head", layers=[0])
    return learning(first, layers=[1])


PATCHED = {
    "attention": attention,
    "LM head": lambda: patch_lm_head(BERT.build("BertForMaskedLM"), "sigsoftmax", bias=0.5),
    "multi-label head": lambda: patch_multilabel_head(classifier(), "r-softmax"),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A model of each kind and its folder, which no test changes."""
    made = {kind: (build(), tmp_path_factory.mktemp("saved")) for kind, build in PATCHED.items()}
    for model, folder in made.values():
        model.save_pretrained(folder)
    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b"])}
    transformers.BertTokenizer(vocab=vocabulary).save_pretrained(made["attention"][1])
    return made


@pytest.fixture(params=PATCHED)
def saved(request, folders):
    return folders[request.param]


def logits(model):
    with torch.no_grad():
        return model(**BERT.example).logits


def auto(model):
    return transformers.AutoModelForMaskedLM if hasattr(model, "cls") else TASK


def plain_config(folder):
    """The folder's config as one of a model that was never patched."""
    config = json.loads((folder / "config.json").read_text())
    kept = {k: v for k, v in config.items() if NAME not in f"{k} {v}" and k != "problem_type"}
    return transformers.BertConfig(**kept)


# Situations

OPTIONS = {
    "nothing": lambda _: {},
    "eager": lambda folder: {"attn_implementation": "eager"},
    "a dict": lambda folder: {"attn_implementation": {"": "eager"}},
    "device_map": lambda folder: {"device_map": "cpu", "revision": "main"},
    "subfolder": lambda folder: {PATH: folder.parent, "subfolder": folder.name},
    "its config": lambda folder: {"config": AutoConfig.from_pretrained(folder)},
    "state_dict": lambda folder: {
        PATH: None, "config": AutoConfig.from_pretrained(folder),
        "state_dict": load_file(folder / "model.safetensors"),
    },
}  # fmt: skip


@pytest.mark.parametrize("option", OPTIONS)
def test_whatever_is_asked_for_at_load(option, saved, tmp_path):
    """The implementation is that which `unpatch_model` returns to, or that beside a head."""
    model, folder = copy.deepcopy(saved[0]), saved[1]
    options = OPTIONS[option](folder)
    asked = "eager" if "attn_implementation" in options else "sdpa"
    for cls in {type(model), type(model) if option == "state_dict" else auto(model)}:
        loaded = cls.from_pretrained(**{PATH: folder, **options})
        if not is_patched(model):
            model.set_attn_implementation(asked)
        assert torch.equal(logits(loaded), logits(model))
        loaded.save_pretrained(tmp_path)
        written = json.loads((tmp_path / "config.json").read_text())
        assert written["attn_implementation"] == NAME  # where sparse_attn is not imported
        if is_patched(model):
            assert unpatch_model(loaded).config._attn_implementation == asked


@pytest.mark.parametrize("twin", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_of_a_loaded_model_is_changed_saved_and_loaded(twin, folders, tmp_path):
    model = TASK.from_pretrained(folders["attention"][1])
    first, second = mappings_of(other := twin(model))
    first.set_value("r", [0.4, 0.3, 0.2, 0.1])
    with torch.no_grad():
        second.raw_t.add_(1.0)
    other.save_pretrained(tmp_path)
    loaded = TASK.from_pretrained(tmp_path)
    assert torch.equal(logits(loaded), logits(other))
    assert loaded.config.sparse_attn == other.config.sparse_attn != model.config.sparse_attn
    assert torch.equal(logits(model), logits(folders["attention"][0]))


@peft_warns
def test_adapters_on_a_loaded_base(folders, tmp_path):
    base = TASK.from_pretrained(folders["attention"][1])
    adapter = LoraConfig(task_type="SEQ_CLS", target_modules=["query"], init_lora_weights=False)
    expected = logits(adapted := get_peft_model(base, adapter).eval())
    adapted.save_pretrained(tmp_path)
    for loaded in (
        PeftModel.from_pretrained(TASK.from_pretrained(folders["attention"][1]), tmp_path),
        AutoPeftModelForSequenceClassification.from_pretrained(tmp_path),
        TASK.from_pretrained(tmp_path),
    ):
        assert torch.equal(logits(loaded.eval()), expected)


@pytest.mark.parametrize("options", [{}, {"model_kwargs": {"attn_implementation": "eager"}}])
def test_a_pipeline_of_a_folder(options, folders):
    model, folder = folders["attention"]
    run = transformers.pipeline("text-classification", str(folder), device="cpu", **options)
    expected = model(**run.tokenizer("a b a", return_tensors="pt")).logits.softmax(-1).max()
    assert run("a b a")[0]["score"] == pytest.approx(expected.item(), rel=1e-6)


def test_trainer_resumes_with_a_schedule_and_ends_with_its_best_model(tmp_path):
    schedule = SparsityScheduleCallback(SparsitySchedule(final=0.4))
    rows = heads.Rows({**BERT.example, "labels": torch.tensor([0, 1, 0])})
    options = {"max_steps": 4, "save_steps": 2, "save_strategy": "steps", "eval_steps": 2,
               "eval_strategy": "steps", "load_best_model_at_end": True}  # fmt: skip
    states = []
    for checkpoint in (None, tmp_path / "run/checkpoint-2"):
        model = learning(patch_model(classifier(), "r-softmax", layers=[0]), layers=[1])
        run = heads.trainer(model, rows, tmp_path / "run", [schedule], **options)
        run.eval_dataset = rows
        run.train(resume_from_checkpoint=checkpoint)
        states.append(run.model.state_dict())
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())
    best = TASK.from_pretrained(run.state.best_model_checkpoint)
    assert torch.equal(logits(best), logits(run.model.eval()))
    step = int(run.state.best_model_checkpoint.rpartition("-")[2])
    assert next(mappings_of(best)).value("r") == pytest.approx(step / 10)


# Parts


def both_sides():
    first, second = BERT.make_config(), BERT.make_config(is_decoder=True, add_cross_attention=True)
    encoder, decoder = transformers.BertModel(first), transformers.BertLMHeadModel(second)
    return transformers.EncoderDecoderModel(encoder=encoder, decoder=decoder).eval()


def llava():
    image, text = transformers.CLIPVisionConfig(**VISION), transformers.LlamaConfig(**LLAMA)
    config = transformers.LlavaConfig(vision_config=image, text_config=text, image_token_index=39)
    return transformers.LlavaForConditionalGeneration(config).eval()


def seen(model):
    """What a model or a part computes."""
    given = {"input_ids": BERT.example["input_ids"]}
    if model.config.is_encoder_decoder and hasattr(model, "decoder"):
        given["decoder_input_ids"] = given["input_ids"][:, :5]
    with torch.no_grad():
        output = model(**CLIP.example) if hasattr(model, "logit_scale") else model(**given)
    names = ("logits", "logits_per_text", "last_hidden_state")
    return next(output[name] for name in names if name in output)


# the patched part, and a class that loads it out of the folder of the whole
WHOLES = {
    "clip": (CLIP.build, "text_model", "CLIPTextModel"),
    "encoder": (both_sides, "encoder", None),
    "decoder": (both_sides, "decoder", None),
    "llava": (llava, "model.language_model", None),
    "t5": (T5.build, "encoder", "T5EncoderModel"),
}


@pytest.mark.parametrize("name", WHOLES)
def test_a_whole_and_its_part_alone(name, tmp_path):
    build, place, out = WHOLES[name]
    model = learning(build(), per="head")
    model.save_pretrained(tmp_path / "whole")
    loaded = type(model).from_pretrained(tmp_path / "whole")
    assert torch.equal(seen(loaded), seen(model))
    for part in (model.get_submodule(place), loaded.get_submodule(place)):
        part.save_pretrained(tmp_path / "part")
        assert torch.equal(seen(type(part).from_pretrained(tmp_path / "part")), seen(part))
    if out is not None:
        cut = getattr(transformers, out).from_pretrained(tmp_path / "whole")
        assert torch.equal(seen(cut), seen(part))


@pytest.mark.parametrize("name", WHOLES)
def test_a_whole_of_which_a_part_is_patched(name, tmp_path):
    build, place, _ = WHOLES[name]
    plain = seen(model := build())
    learning(model.get_submodule(place))
    assert not torch.equal(seen(model), plain)
    model.save_pretrained(tmp_path)
    if name == "t5":  # whose encoder has a config of its own, which the whole does not save
        with pytest.raises(ValueError, match="the config describes no mapping"):
            T5Model.from_pretrained(tmp_path)
        return
    type(model).from_pretrained(tmp_path).save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    assert torch.equal(seen(loaded), seen(model))
    assert learned(loaded).keys() == learned(model).keys()
    unpatch_model(loaded.get_submodule(place))
    assert torch.equal(seen(loaded), plain)


# Never silent


@pytest.mark.parametrize("may_lack", [None, [".*"]])
def test_values_that_the_file_lacks(may_lack, saved, tmp_path, monkeypatch):
    """Also where a class lets it lack whole parts, as SeamlessM4T does.

    It lacks all if it was written where sparse_attn was not imported; the error has the remedy.
    """
    model, folder = saved
    monkeypatch.setattr(type(model), "_keys_to_ignore_on_load_missing", may_lack)
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    tensors = load_file(folder / "model.safetensors")
    values = [name for name in tensors if VALUES.search(name)]
    for lost in (*([name] for name in values), values):
        kept = {name: tensor for name, tensor in tensors.items() if name not in lost}
        save_file(kept, tmp_path / "model.safetensors", {"format": "pt"})
        with pytest.raises(RuntimeError, match=f"weights lack .*{lost[0]}.* delete sparse_attn"):
            auto(model).from_pretrained(tmp_path)
    plain_config(folder).save_pretrained(tmp_path)
    assert not is_patched(auto(model).from_pretrained(tmp_path))


def test_the_config_of_a_plain_model(saved, tmp_path):
    model, folder = saved
    plain_config(folder).save_pretrained(tmp_path)
    for config in (plain_config(folder), tmp_path):
        with pytest.raises(ValueError, match="the config describes no mapping"):
            type(model).from_pretrained(folder, config=config)


@pytest.mark.parametrize("classes", [(TASK, AutoModel), (AutoModel, TASK)], ids=["base", "task"])
def test_the_config_of_a_plain_model_for_its_base_and_the_reverse(classes, folders, tmp_path):
    _, folder = folders["attention"]
    first, second = classes
    first.from_pretrained(folder).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="the config describes no mapping"):
        second.from_pretrained(tmp_path, config=plain_config(folder))


@pytest.mark.parametrize("value", [torch.tensor(7.0), torch.tensor(torch.nan), torch.ones(3)])
def test_values_in_the_file_that_cannot_be(value, tmp_path):
    patch_model(BERT.build(), "entmax", alpha=1.5).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors[next(name for name in tensors if VALUES.search(name))] = value
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises((ValueError, RuntimeError), match="alpha"):
        AutoModel.from_pretrained(tmp_path, ignore_mismatched_sizes=True)


def test_a_whole_of_version_1_of_which_a_part_is_patched(tmp_path):
    model = both_sides()
    learning(model.encoder)
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    tables = config["encoder"][NAME]["mappings"].values()
    counted = [{**table, "modules": [place]} for place, table in enumerate(tables)]
    config["encoder"][NAME] = {"version": 1, "mappings": counted}
    config["attn_implementation"] = NAME
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert torch.equal(seen(type(model).from_pretrained(tmp_path)), seen(model))


def test_switching_a_loaded_model_raises_at_the_next_call(folders):
    loaded = TASK.from_pretrained(folders["attention"][1])
    loaded.set_attn_implementation("sdpa")
    with pytest.raises(RuntimeError, match="attention implementation was changed to"):
        logits(loaded)


@pytest.mark.parametrize("stack", ["num_layers", "num_decoder_layers"])
def test_fewer_layers_keep_their_mappings_and_more_raise(stack, tmp_path):
    (model := learning(T5.build())).save_pretrained(tmp_path)
    with pytest.raises(RuntimeError, match=r"it describes mappings of .* but T5Model has the att"):
        T5Model.from_pretrained(tmp_path, **{stack: 3})
    shorter = T5Model.from_pretrained(tmp_path, **{stack: 1})
    del (model.encoder if stack == "num_layers" else model.decoder).block[1]
    assert torch.equal(T5.hidden(shorter), T5.hidden(model))


# A process without the import

ELSEWHERE = """
import json, sys, transformers
from transformers import AutoConfig, AutoModel, BertConfig
folder, copy, whole = sys.argv[1:]
raw = json.load(open(folder + "/config.json")).items()
plain = BertConfig(**{k: v for k, v in raw if "sparse_attn" not in f"{k} {v}"})
AutoConfig.from_pretrained(folder).save_pretrained(copy)
ways = {
    "plain": lambda: AutoModel.from_pretrained(folder),
    "from_config": lambda: AutoModel.from_config(AutoConfig.from_pretrained(folder)),
    "a whole with a patched part": lambda: transformers.CLIPModel.from_pretrained(whole),
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
def test_where_sparse_attn_is_not_imported_these_are_silent(folders, tmp_path):
    """The list of docs/guide/saving.md."""
    shutil.copytree(folder := folders["attention"][1], tmp_path / "copy")
    patch_model((clip := CLIP.build()).text_model, "sparsemax")
    clip.save_pretrained(tmp_path / "whole")
    silent = python("-c", ELSEWHERE, folder, tmp_path / "copy", tmp_path / "whole")
    assert silent.strip().split(",") == [
        "a whole with a patched part", "attn_implementation", "a dict", "config", "copied config",
    ]  # fmt: skip
