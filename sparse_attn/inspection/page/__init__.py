"""A self-contained HTML page that shows what each head keeps and drops."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

from sparse_attn.inspection.page.data import page_data
from sparse_attn.inspection.record import AttentionRecord
from sparse_attn.system.files import atomic_write

PARTS = Path(__file__).parent


class AttentionPage(str):
    """The page as text, which a notebook shows in a frame."""

    def _repr_html_(self) -> str:
        return f'<iframe srcdoc="{html.escape(self)}" width="100%" height="720"></iframe>'


def attention_page(
    sides: Mapping[str, AttentionRecord],
    tokens: Sequence[str],
    *,
    title: str = "Attention",
    special_mask: Sequence[int] | None = None,
    example: int = 0,
) -> AttentionPage:
    """Build an HTML page of the attention over one text, by token, layer and head.

    The page needs no network and no other file, runs only its own script and escapes all text.
    Exact zeros and masked keys are distinct from small p, which is stored to 0.08 % of its value
    (below 2^-149 as 2^-149). Layers that did not run are omitted.

        with record_attention(model, weights=True) as softmax:
            model(**batch)
        with patched(model, "r-softmax", r=0.3), record_attention(model, weights=True) as sparse:
            model(**batch)
        page = attention_page({"softmax": softmax, "r-softmax": sparse}, tokens)

    Args:
        sides: one record, or two to show side by side, by the name to show above each; made by
            `record_attention(model, weights=True)` from the same model and text.
        tokens: the N tokens to show, padding included.
        title: heading of the page.
        special_mask: N numbers, 1 at special tokens, as `tokenizer.get_special_tokens_mask`
            returns; without it the page does not show the mass on them.
        example: index of the text in the batch, from 0.

    Returns:
        The page, a str that a notebook shows in a frame, about 2.8 bytes per weight: 3.4 MB for two
        sides of 12 layers, 12 heads and 64 tokens.

    Raises:
        ValueError: not one or two sides; a record without weights, not of self-attention over
            `tokens`, with different layers on the two sides, or with values that are not
            probabilities; or more than 8 million weights in all.
        TypeError: sides are not records by name.
    """
    data = page_data(sides, tokens, special_mask, example)
    style, script = _part("page.css"), _part("values.js") + _part("page.js")
    return AttentionPage(
        Template(_part("page.html")).substitute(
            title=html.escape(title),
            policy=html.escape(_policy(style, script)),
            style=style,
            script=script,
            data=_json(data),
        )
    )


def write_page(path: str | Path, page: str, *, overwrite: bool = False) -> Path:
    """Write a page atomically.

    Args:
        path: the file.
        page: the result of `attention_page`.
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


def _part(name: str) -> str:
    return (PARTS / name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """Content security policy: no network, and only these styles and scripts."""
    allowed = {"script-src": script, "style-src": style}
    hashes = {
        source: base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for source, text in allowed.items()
    }
    own = "; ".join(f"{source} 'sha256-{digest}'" for source, digest in hashes.items())
    return f"default-src 'none'; {own}; img-src data:; base-uri 'none'; form-action 'none'"


def _json(data: dict[str, Any]) -> str:
    """JSON that is safe inside HTML; json.dumps already escapes non-ASCII characters."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")
