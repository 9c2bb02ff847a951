"""Fail at once, not after half a minute, where the Hugging Face hub cannot be reached."""

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
    """`datasets.load_dataset(name, *part, **options)`.

    Raises:
        ConnectionError: it cannot be had; names `what` was wanted, and what to do `instead`.
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
    """Set HF_HUB_OFFLINE where a config needs the hub and nothing answers there.

    What the hub's libraries have kept is used then, and what they have not is an error at once.
    They read the variable when they are imported, so this comes before.

    Args:
        config: of a run or a sweep; one that may need the hub says so by `uses_hub`.
    """
    if not getattr(config, "uses_hub", False) or "HF_HUB_OFFLINE" in os.environ or getproxies():
        return
    endpoint = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co"))
    port = endpoint.port or (80 if endpoint.scheme == "http" else 443)
    try:
        socket.create_connection((str(endpoint.hostname), port), SECONDS).close()
    except OSError:
        os.environ["HF_HUB_OFFLINE"] = "1"
