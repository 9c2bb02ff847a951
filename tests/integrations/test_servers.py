"""Modules with the structure of vLLM 0.33.0 and SGLang 0.5.23 refuse patched checkpoints."""

import sys
import tomllib
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    CLIPConfig,
    CLIPModel,
    GPT2Config,
    GPT2LMHeadModel,
)

from sparse_attn import patch_lm_head, patch_model
from tests.commands import ROOT

VLLM = """
from transformers import AutoConfig, PreTrainedConfig

class HFConfigParser:
    def parse(self, model, trust_remote_code, revision=None, code_revision=None, **kwargs):
        config_dict, _ = PreTrainedConfig.get_config_dict(model)
        return config_dict, AutoConfig.from_pretrained(model)

_PARSERS = {"hf": HFConfigParser}

def get_config_parser(config_format):
    return _PARSERS[config_format]()

def get_config(model, trust_remote_code, config_format="hf"):
    config_parser = get_config_parser(config_format)
    config_dict, config = config_parser.parse(model, trust_remote_code=trust_remote_code)
    return config
"""
SGLANG = """
from functools import wraps
from transformers import AutoConfig

class HfModelConfigParser:
    def parse(self, model, trust_remote_code, revision=None, **kwargs):
        return AutoConfig.from_pretrained(model)

_PARSERS = {"hf": HfModelConfigParser}

def get_model_config_parser(name):
    return _PARSERS[name]()

def kept(function):
    @wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)
    return wrapper

@kept
def get_config(model, trust_remote_code, model_config_parser="hf"):
    parser = get_model_config_parser(model_config_parser)
    return parser.parse(model, trust_remote_code=trust_remote_code)
"""
# server: group of entry points, module that reads configs, and what stands in for it
SERVERS = {
    "vllm": ("vllm.general_plugins", "vllm.transformers_utils.config", VLLM),
    "sglang": ("sglang.srt.plugins", "sglang.srt.utils.hf_transformers.config", SGLANG),
}
SIZES: dict[str, Any] = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def register(server: str) -> Callable[[], None]:
    """The plugin, as the server finds it."""
    group, *_ = SERVERS[server]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    ((name, value),) = project["entry-points"][group].items()
    return EntryPoint(name, value, group).load()


def stand_in(server: str, monkeypatch: pytest.MonkeyPatch, *change: str) -> ModuleType:
    """The server's module, with one text of it changed to another."""
    _, path, source = SERVERS[server]
    names = path.split(".")
    for i in range(1, len(names) + 1):
        module = ModuleType(".".join(names[:i]))
        module.__path__ = []
        monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(source.replace(*change) if change else source, module.__dict__)
    return module


def bert() -> Any:
    return BertForMaskedLM(BertConfig(**SIZES, intermediate_size=8, vocab_size=9))


def part_of_clip() -> Any:
    part = {**SIZES, "intermediate_size": 8}
    images = {**part, "image_size": 4, "patch_size": 2}
    clip = CLIPModel(CLIPConfig(text_config={**part, "vocab_size": 9}, vision_config=images))
    patch_model(clip.text_model, "sparsemax")
    return clip


CHECKPOINTS = {
    "sparse_attn": [lambda: patch_model(bert(), "t-softmax", learn="t"), part_of_clip],
    "sparse_attn_head": [lambda: patch_lm_head(bert(), "sigsoftmax")],
}


def test_patched_checkpoints_are_refused_and_plain_ones_read(
    server: str, register: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = stand_in(server, monkeypatch)
    bert().save_pretrained(tmp_path / "plain")
    for make in (make for several in CHECKPOINTS.values() for make in several):
        make().save_pretrained(tmp_path / "patched")
        module.get_config(str(tmp_path / "patched"), False)  # without the plugin
    register()
    register()
    assert module.get_config(str(tmp_path / "plain"), False).model_type == "bert"
    for key, several in CHECKPOINTS.items():
        for make in several:
            make().save_pretrained(tmp_path / "patched")
            with pytest.raises(NotImplementedError, match=rf"{key} in its config.*export_model"):
                module.get_config(str(tmp_path / "patched"), False)


@pytest.mark.parametrize(
    "change",
    [
        ('"hf":', '"huggingface":'),  # another name of the format
        ("def parse", "def read"),
        ("parser = get_", 'parser = _PARSERS["hf"]()  # '),
        ("def get_config(", "def read_config("),
    ],
    ids=lambda change: change[1],
)
def test_a_server_that_reads_configs_in_another_way_is_told(
    server: str, register: Any, change: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(server, monkeypatch, *change)
    with pytest.raises(RuntimeError, match=rf"update sparse-attn.*{server.upper()}_PLUGINS"):
        register()


def test_without_the_server(register: Any, server: str) -> None:
    with pytest.raises(RuntimeError, match="reads configs in another way") as raised:
        register()
    assert isinstance(raised.value.__cause__, ImportError)


def test_continuous_batching_raises() -> None:
    config = GPT2Config(n_embd=8, n_layer=1, n_head=1, vocab_size=9, eos_token_id=1)
    model = patch_model(GPT2LMHeadModel(config).eval(), "sparsemax")
    with pytest.raises(ValueError, match=r"paged.sparse_attn\W+is not|continuous batching"):
        model.generate(torch.tensor([[5, 6]]), max_new_tokens=2, cache_implementation="paged")
