"""A self-contained HTML page to read a long text with a model's attention."""

from __future__ import annotations

import base64
import gzip
import html
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from sparse_attn.inspection.long_text.summing import AttentionSum, Rows
from sparse_attn.inspection.record import AttentionRecord
from sparse_attn.inspection.self_contained import ELEMENTS, AttentionPage, assemble, escaped_json

PARTS = Path(__file__).parent
STYLE = PARTS.parent / "page" / "page.css"
MOST_TOKENS = 8192
MOST_SUMMED = 1_600_000  # weights of the sum
MOST_EXACT = 2_600_000  # weights of the chosen heads, all together
MOST_SELECTIVE = 16  # heads that a page shows unless others are chosen
# codes of a weight in 16 bits, by the logarithm, with the same names in text.js
LARGEST = 65535
STEP = 149 * math.log(2) / LARGEST  # from 2^-149, the smallest float32, to 1


def text_page(
    attention: AttentionSum,
    tokens: Sequence[str],
    *,
    title: str = "Attention",
    mapping: str = "",
    generated: int = 0,
    threshold: float = 0.0,
) -> AttentionPage:
    """Build an HTML page of a long text: click a token to see which tokens it attends to.

    The page opens on the heads that `attention` holds exactly, all together, and colours a token
    by the number of them that read it. It also shows each head, and the sum over all layers and
    heads. Of the sum it has the largest weights of each token, and names the share of the mass that
    it leaves out. Weights are stored to 0.08 % of their value, compressed, and decoded in the
    browser when first looked at. It needs no network and no other file.

    Args:
        attention: the result of `sum_attention`.
        tokens: the N tokens as text, in order.
        title: heading of the page.
        mapping: name of the mapping, to show.
        generated: how many tokens at the end the model has written.
        threshold: as given to `sum_attention`.

    Returns:
        The page, a str, at most 20 MB.

    Raises:
        ValueError: another number of tokens than were summed, more than 8,192, or heads with more
            than 2.6 million weights.
    """
    count = len(tokens)
    if count != len(attention.total):
        raise ValueError(f"tokens: expected {len(attention.total)}, as were summed, got {count}")
    if count > MOST_TOKENS:
        raise ValueError(f"tokens: {count} tokens; a page shows at most {MOST_TOKENS}")
    exact = sum(len(rows.weights) for rows in attention.heads.values())
    if exact > MOST_EXACT:
        raise ValueError(
            f"heads: the {len(attention.heads)} chosen heads have {exact / 1e6:.1f} million "
            f"weights; a page holds at most {MOST_EXACT / 1e6:.1f} million, so choose fewer heads, "
            "a shorter text or a mapping with more zeros"
        )
    if not attention.total.isfinite().all():
        raise ValueError("the attention is NaN or infinite; check the model's weights")
    record = attention.record
    summed, left_out = _largest(attention)
    views, parts = ["All layers and heads, summed"], [summed]
    for (layer, head), rows in attention.heads.items():
        views.append(f"Layer {layer}, head {head}")
        parts.append(rows)
    name, rule = _choice(attention)
    views += [name] if len(attention.heads) > 1 else []
    others = attention.total.clone().fill_diagonal_(0)
    data: dict[str, Any] = {
        "tokens": list(tokens),
        "views": views,
        "heads": list(attention.heads),
        "causal": not attention.total.triu(1).any(),
        "most": [float(rows.weights.max()) if len(rows.weights) else 1.0 for rows in parts],
        "step": STEP,
        "mapping": mapping,
        "queries": attention.queries,
        "generated": generated,
        "threshold": threshold,
        "zeros": None if math.isnan(record.mean) else record.mean,
        "leftOut": left_out,
        "received": _base64(others.sum(0).numpy().astype("<f4").tobytes()),
    }
    blobs = [
        f'<script type="text/plain" id="view-{place}">{_packed(rows, most, count)}</script>'
        for place, (rows, most) in enumerate(zip(parts, data["most"], strict=True))
    ]
    return assemble(
        PARTS / "text.html",
        [STYLE, PARTS / "text.css"],
        [ELEMENTS, PARTS / "text.js"],
        title,
        lead=html.escape(_lead(attention, mapping, generated)),
        rule=rule,
        data=escaped_json(data),
        blobs="\n".join(blobs),
    )


def _lead(attention: AttentionSum, mapping: str, generated: int) -> str:
    count = len(attention.total)
    written = f", of which the model wrote {generated:,}" if generated else ""
    layers = len(attention.record.layers)
    return f"{count:,} tokens{written}; {mapping or 'attention'} in {layers} layers."


def most_selective(record: AttentionRecord, tokens: int) -> list[tuple[int, int]]:
    """Return the (layer, head) pairs with the highest share of exact zeros in a text.

    At most 16, and fewer if a page cannot hold their weights.
    """
    zeros, pairs = record.zero_counts.counts.flatten(1)
    # a module that runs as several layers has too many pairs, and its heads have no numbers
    known = (pairs > 0) & (pairs <= tokens**2)
    order = (zeros / pairs).nan_to_num().argsort(descending=True, stable=True)
    order = order[known[order]][:MOST_SELECTIVE]
    fits = (pairs - zeros)[order].cumsum(0) <= MOST_EXACT
    heads = record.zeros.shape[1]
    return sorted(divmod(index, heads) for index in order[fits].tolist())


def _choice(attention: AttentionSum) -> tuple[str, str]:
    """Return a name for all heads of the page together, and the rule that chose them."""
    record, chosen = attention.record, list(attention.heads)
    count = len(chosen)
    if not chosen or chosen != most_selective(record, len(attention.total)):
        return f"The {count} chosen heads", ""
    shares = [float(record.zeros[head]) for head in chosen]
    seen = int((record.zero_counts.counts[1] > 0).sum())
    return f"The {count} heads with the most zeros", (
        f"The page opens on the {count} of {seen} heads with the highest share of exact zeros in "
        f"this text: {100 * min(shares):.1f} % to {100 * max(shares):.1f} %."
    )


def _largest(attention: AttentionSum) -> tuple[Rows, float]:
    """Return the largest weights of each row of the sum, and the share of the mass left out."""
    total = attention.total
    width = min(len(total), max(1, MOST_SUMMED // max(1, len(total))))
    values, columns = total.topk(width, dim=1)
    columns, order = columns.sort(dim=1)
    values = values.gather(1, order)
    kept = values > 0
    starts = torch.cat([torch.zeros(1, dtype=torch.long), kept.sum(1).cumsum(0)])
    record = attention.record
    # mean mass of a row times the rows, over layers and heads
    mass = float((record.mass.nan_to_num() * attention.queries).sum())
    left_out = 1 - float(values.double().sum()) / mass if mass > 0 else 0.0
    return Rows(starts, columns[kept], values[kept]), min(1.0, max(0.0, left_out))


def _packed(rows: Rows, most: float, count: int) -> str:
    """Pack lengths of `count` rows, columns as differences, and codes of weights, in 16 bits."""
    differences = rows.columns.clone()
    differences[1:] -= rows.columns[:-1]
    first = rows.starts[:-1][rows.starts.diff() > 0]
    differences[first] = rows.columns[first]
    relative = (rows.weights / most).log() / STEP
    codes = (LARGEST + relative.round()).clamp(1, LARGEST)
    lengths = rows.starts.diff()
    lengths = F.pad(lengths, (0, count - len(lengths)))  # a token written last has not attended
    content = b"".join(
        tensor.numpy().astype("<u2").tobytes() for tensor in (lengths, differences, codes)
    )
    return _base64(gzip.compress(content, 6, mtime=0))


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")
