"""Fail at once if the Hugging Face hub cannot be reached, not after half a minute."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

SECONDS = 3


def is_hub_id(model: str) -> bool:
    """Whether a model name is a hub id, not a folder or package path."""
    return "://" not in model and not model.startswith(("/", ".", "~")) and not Path(model).exists()


def load_from_hub(name: str, *part: str | None, what: str, instead: str, **options: Any) -> Any:
    """Return `datasets.load_dataset(name, *part, **options)`.

    Raises:
        ConnectionError: it cannot be loaded; names `what`, and what to do `instead`.
    """
    from datasets import load_dataset

    try:
        return load_dataset(name, *part, **options)
    except Exception as error:  # the hub's HTTP library, and so its errors, change by release
        raise ConnectionError(
            f"could not get {what} from the data set {name} ({type(error).__name__}: "
            f"{error}); without a network, {instead}"
        ) from error


def go_offline_if_unreachable(config: Any) -> None:
    """Set HF_HUB_OFFLINE if a config needs the hub and it does not answer.

    The hub's libraries then use their caches, and fail at once for anything else. They read the
    variable when they are imported, so call this before.

    Args:
        config: config of a run or a sweep; `uses_hub` tells whether it may need the hub.
    """
    if not getattr(config, "uses_hub", False) or "HF_HUB_OFFLINE" in os.environ or getproxies():
        return
    endpoint = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co"))
    port = endpoint.port or (80 if endpoint.scheme == "http" else 443)
    try:
        socket.create_connection((str(endpoint.hostname), port), SECONDS).close()
    except OSError:
        os.environ["HF_HUB_OFFLINE"] = "1"
