"""A self-contained HTML page that shows what each head keeps and drops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from sparse_attn.inspection.page.data import page_data
from sparse_attn.inspection.record import AttentionRecord
from sparse_attn.inspection.self_contained import ELEMENTS, AttentionPage, assemble, escaped_json

PARTS = Path(__file__).parent


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
    return assemble(
        PARTS / "page.html",
        [PARTS / "page.css"],
        [ELEMENTS, PARTS / "values.js", PARTS / "page.js", PARTS / "files.js"],
        title,
        data=escaped_json(data),
    )
