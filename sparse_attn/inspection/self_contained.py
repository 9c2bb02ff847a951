"""HTML pages that need no other file and no network."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
from collections.abc import Sequence
from pathlib import Path
from string import Template
from typing import Any

from sparse_attn.system.files import atomic_write

FRAME = Path(__file__).with_name("frame.html")
ELEMENTS = Path(__file__).with_name("elements.js")  # functions that both scripts call


class AttentionPage(str):
    """The page as text, which a notebook shows in a frame."""

    def _repr_html_(self) -> str:
        return f'<iframe srcdoc="{html.escape(self)}" width="100%" height="720"></iframe>'


def assemble(
    template: Path, styles: Sequence[Path], scripts: Sequence[Path], title: str, **more: str
) -> AttentionPage:
    """Fill a template of a page's body with its title, script and more text, all escaped before."""
    style, script = ("".join(map(_text, paths)) for paths in (styles, scripts))
    title = html.escape(title)
    body = Template(_text(template)).substitute(title=title, script=script, **more)
    policy = html.escape(_policy(style, script))
    frame = Template(_text(FRAME))
    return AttentionPage(frame.substitute(title=title, policy=policy, style=style, body=body))


def escaped_json(data: dict[str, Any]) -> str:
    """JSON that is safe inside HTML; json.dumps already escapes non-ASCII characters."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")


def write_page(path: str | Path, page: str, *, overwrite: bool = False) -> Path:
    """Write a page atomically.

    Args:
        path: the file.
        page: the result of `attention_page` or `text_page`.
        overwrite: whether to replace an existing file.

    Raises:
        FileExistsError: the file exists, and overwrite is False.
        UnwrittenError: it could not be written, for example because its folder is missing; an
            existing file is unchanged.
    """
    path = Path(path)
    if not overwrite and os.path.lexists(path):
        raise FileExistsError(f"path={str(path)!r} exists; pass overwrite=True to replace it")
    with atomic_write(path) as draft:
        draft.write_text(page, encoding="utf-8")
    return path


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """Content security policy: no network, and only these styles and scripts."""
    allowed = {"script-src": script, "style-src": style}
    hashes = {
        source: base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for source, text in allowed.items()
    }
    own = "; ".join(f"{source} 'sha256-{digest}'" for source, digest in hashes.items())
    return f"default-src 'none'; {own}; img-src data:; base-uri 'none'; form-action 'none'"
