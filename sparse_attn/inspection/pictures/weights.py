"""The attention of one head over one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, ListedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from torch import Tensor

from sparse_attn.inspection import plot_style
from sparse_attn.inspection.record import AttentionRecord, largest_weight

MOST_TOKENS = 60
_TOKEN_LENGTH = 14
_TICKS = (0.01, 0.1, 0.25, 0.5, 1)
# even the lightest is a colour, because white is for exact zeros
_SHADES = LinearSegmentedColormap.from_list("kept", ["#C3DDF1", "#0072B2", "#00203A"])


def draw_attention(
    record: AttentionRecord,
    tokens: Sequence[str],
    *,
    layer: int,
    head: int,
    example: int = 0,
    key_tokens: Sequence[str] | None = None,
) -> Figure:
    """Draw p of one head in the last recorded call, queries down, keys across, as `draw_weights`.

    Weights above 1, possible with relu, have the colour of 1.

    Args:
        record: from `record_attention(model, weights=True)`.
        tokens: the Q tokens of the example, padding too, such as
            `tokenizer.convert_ids_to_tokens(batch["input_ids"][example])`.
        layer, head, example: counted from 0; layer in the order of `record.layers`.
        key_tokens: the K tokens attended to, if not `tokens`: cross-attention, a cache.

    Raises:
        ValueError: no weights recorded; layer, head or example out of range; and as `draw_weights`.
        TypeError: as `draw_weights`.
    """
    _check_index("layer", layer, len(record.layers))
    weights = record.weights[layer]
    if weights is None:
        raise ValueError(
            f"record: has no weights of {record.layers[layer]}; record them with "
            "`with record_attention(model, weights=True) as record:` and call the model inside"
        )
    _check_index("example", example, weights.shape[0])
    _check_index("head", head, weights.shape[1])
    valid = record.valid[layer]
    if largest_weight(record.mappings[layer]) > 1:
        weights = weights.clamp(max=1)
    return draw_weights(
        weights[example, head],
        tokens,
        key_tokens=key_tokens,
        valid=None if valid is None else valid.expand(weights.shape)[example, head],
        title=f"{record.mappings[layer]}, layer {layer}, head {head}",
    )


def draw_weights(
    weights: Tensor,
    tokens: Sequence[str],
    *,
    key_tokens: Sequence[str] | None = None,
    valid: Tensor | None = None,
    title: str = "attention",
) -> Figure:
    """Draw p (Q, K) of one head: a row per query, a column per key, exact zeros blank.

    Every p > 0 has a colour, however small, on a scale of sqrt(p) from 0 to 1, the same in all
    pictures. Masked cells are grey and hatched; without `key_tokens`, so is the row of a query
    whose own key is masked for all (padding). The title gives the share of zeros in the rest.

    Args:
        weights: (Q, K), of any dtype; such as `outputs.attentions[layer][example, head]`.
        tokens: Q strings, drawn as they are, special characters too; long ones are cut.
        key_tokens: K strings; None if queries and keys are the same tokens.
        valid: (Q, K) bool, which keys each query may attend to; None for all.
        title: shown above the picture.

    Raises:
        ValueError: weights empty, not 2-D, outside [0, 1] or NaN; tokens or valid of the wrong
            size; more than 60 tokens.
        TypeError: tokens are not strings.
    """
    if weights.dim() != 2 or weights.numel() == 0:
        raise ValueError(
            f"weights: expected one head of one example, shape (Q, K), got {tuple(weights.shape)}; "
            "use weights[example, head]"
        )
    keys = tokens if key_tokens is None else key_tokens
    _check_tokens("tokens", tokens, weights.shape[0], "queries")
    _check_tokens("key_tokens (by default tokens)", keys, weights.shape[1], "keys")
    p = weights.detach().double().cpu()
    if not ((p >= 0) & (p <= 1.01)).all():  # tolerance for 1 in bfloat16
        raise ValueError("weights: expected probabilities, got numbers outside [0, 1] or NaN")
    pairs = _valid_pairs(weights, valid, own=key_tokens is None)
    zeros = ((p == 0) & pairs).sum().item() / max(pairs.sum().item(), 1)

    cell = np.clip(4.6 / max(len(keys), len(tokens)), 0.16, 0.4)
    size = (max(plot_style.WIDTH, cell * len(keys) + 1.8), cell * len(tokens) + 2.4)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.add_subplot()
    figure.suptitle(f"{title}: {100 * zeros:.0f} % exact zeros", fontsize=12, parse_math=False)
    _label(axes, tokens, keys)
    marks = [Patch(facecolor="white", edgecolor="black", lw=0.6, label="exactly 0")]
    if not pairs.all():
        marks.append(_hatch(axes, ~pairs.numpy()))
    shown = np.ma.array(p.numpy(), mask=~((p > 0) & pairs).numpy())
    image = axes.imshow(shown, cmap=_SHADES, norm=PowerNorm(0.5, 0, 1), zorder=2)
    bar = figure.colorbar(image, ax=axes, location="bottom", aspect=40, shrink=0.7, pad=0.02)
    bar.set_ticks([0, *_TICKS], labels=["> 0", *map(str, _TICKS)])
    bar.set_label("attention weight $p$", fontsize=10)
    figure.legend(handles=marks, loc="outside lower center", ncols=2, fontsize=9.5, frameon=False)
    return figure


def _valid_pairs(weights: Tensor, valid: Tensor | None, own: bool) -> Tensor:
    """Return the pairs (Q, K) that count, on the CPU; own: queries and keys are the same tokens."""
    if valid is None:
        return torch.ones(weights.shape, dtype=torch.bool)
    if valid.dtype != torch.bool or valid.shape != weights.shape:
        raise ValueError(
            f"valid: expected a boolean tensor of shape {tuple(weights.shape)}, got {valid.dtype} "
            f"of shape {tuple(valid.shape)}"
        )
    valid = valid.cpu()
    return valid & valid.any(0).unsqueeze(1) if own else valid


def _hatch(axes: Axes, cells: np.ndarray) -> Patch:
    """Hatch these cells (Q, K) and return a patch for the legend."""
    edges = [np.arange(n + 1) - 0.5 for n in reversed(cells.shape)]
    chosen = np.ma.array(np.zeros(cells.shape), mask=~cells)
    axes.pcolor(
        *edges, chosen, cmap=ListedColormap([plot_style.HATCHED["facecolor"]]), **plot_style.HATCHED
    )
    return Patch(**plot_style.HATCHED, label="masked")


def _label(axes: Axes, tokens: Sequence[str], keys: Sequence[str]) -> None:
    """Label both axes with tokens."""
    size = 9.5 if max(len(keys), len(tokens)) <= 24 else 8
    plain: dict[str, Any] = {"fontsize": size, "parse_math": False}
    axes.set_xticks(range(len(keys)), [_printable(t) for t in keys], rotation=90, **plain)
    axes.set_yticks(range(len(tokens)), [_printable(t) for t in tokens], **plain)
    axes.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False, length=2)
    axes.set_xlabel("key", fontsize=11)
    axes.xaxis.set_label_position("top")
    axes.set_ylabel("query", fontsize=11)
    # guides the eye along a row of blanks
    axes.set_xticks(np.arange(1, len(keys)) - 0.5, minor=True)
    axes.set_yticks(np.arange(1, len(tokens)) - 0.5, minor=True)
    axes.grid(which="minor", color="#E4E4E4", linewidth=0.5)
    axes.tick_params(which="minor", length=0)


def _printable(token: str) -> str:
    """Put a token on one line; escape unprintable characters as Python does."""
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in token)
    return shown if len(shown) <= _TOKEN_LENGTH else shown[: _TOKEN_LENGTH - 1] + "…"


def _check_index(name: str, value: int, size: int) -> None:
    if not 0 <= value < size:
        raise ValueError(f"{name}={value}: expected 0 to {size - 1}")


def _check_tokens(name: str, tokens: Sequence[str], size: int, what: str) -> None:
    if isinstance(tokens, str) or not all(isinstance(token, str) for token in tokens):
        raise TypeError(
            f"{name}: expected a list of strings, such as tokenizer.convert_ids_to_tokens(ids)"
        )
    if len(tokens) != size:
        raise ValueError(
            f"{name}: expected one for each of the {size} {what}, special tokens and padding too, "
            f"got {len(tokens)}"
        )
    if size > MOST_TOKENS:
        raise ValueError(
            f"{name}: expected at most {MOST_TOKENS} {what}, for which a picture has room, got "
            f"{size}; draw a part with draw_weights(weights[a:b, c:d], ...), or make a page with "
            "`sparse-attn inspect`"
        )
