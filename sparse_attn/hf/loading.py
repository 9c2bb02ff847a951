"""Load a model that was saved with mappings, or raise."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from sparse_attn.hf.config import KEYS, models_in
from sparse_attn.hf.entries import AS_WRITTEN
from sparse_attn.system.hub import is_hub_id


def load_pretrained(cls: Any, path: str | Path, **kwargs: Any) -> Any:
    """Return `cls.from_pretrained(path, **kwargs)`, and raise if nothing in it is patched.

    Args:
        cls: a model class or Auto class of Transformers.
        path: folder or hub id written by `save_pretrained`.
        **kwargs: passed to `cls.from_pretrained`; `unpatch_model` restores the given
            `attn_implementation`.

    Raises:
        ValueError: there is no such folder, the model was not patched when saved, or the entries
            in its config are malformed.
        TypeError: `cls` is not a model class, or `path` is not a path.
        RuntimeError: the checkpoint does not match its config, or lacks a value.
    """
    if not hasattr(cls, "from_pretrained"):
        raise TypeError(f"cls={cls!r}: expected a model class, such as AutoModel, before the path")
    check_path(path)
    loaded = cls.from_pretrained(path, **kwargs)
    model = loaded[0] if isinstance(loaded, tuple) else loaded  # output_loading_info=True
    if not any(key in vars(part.config) for _, part in models_in(model) for key in KEYS):
        raise ValueError(
            f"path={str(path)!r}: its config, or the one given as config, has neither "
            f"{' nor '.join(map(repr, KEYS))}. If nothing was patched when it was saved, use "
            "from_pretrained, then patch_model, patch_multilabel_head or patch_lm_head"
        )
    return loaded


def check_path(path: str | Path, option: str = "path") -> None:
    """Raise TypeError for what is no path, and ValueError for a folder that does not exist."""
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"{option}={path!r}: expected a folder or a hub id")
    if Path(path).is_file():
        raise ValueError(f"{option}={str(path)!r}: is a file; name the folder that holds it")
    if not is_hub_id(str(path)) and not Path(path).is_dir():
        hint = "; only commands read pkg://" * str(path).startswith("pkg:")
        raise ValueError(f"{option}={str(path)!r}: there is no such folder{hint}")


def read_config(path: str | Path, **kwargs: Any) -> Any:
    """Return the config in a folder or on the hub.

    Raises:
        ValueError: it is nested too deeply.
        OSError: there is none.
    """
    try:
        return AutoConfig.from_pretrained(path, **kwargs)
    except RecursionError:
        raise ValueError(f"{path}: its config.json is nested too deeply; {AS_WRITTEN}") from None
    except OSError as error:
        where = "" if Path(path).exists() else "; there is no folder of that name either"
        raise OSError(f"{error}{where}") from error
