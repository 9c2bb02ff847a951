"""Attention over one sentence: of a head, of several, or of two mappings side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LinearSegmentedColormap, ListedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from torch import Tensor

from sparse_attn.inspection import plot_style
from sparse_attn.inspection.by_layer import layer_number
from sparse_attn.inspection.record import AttentionRecord, largest_weight

MOST_TOKENS = 60
_TOKEN_LENGTH = 14
_TICKS = (0.1, 0.25, 0.5, 1)
# even the lightest is a colour, because white is for exact zeros
_SHADES = LinearSegmentedColormap.from_list("kept", ["#C3DDF1", "#0072B2", "#00203A"])


def draw_attention(
    record: AttentionRecord | Mapping[str, AttentionRecord],
    tokens: Sequence[str],
    *,
    layer: int | str,
    head: int | Sequence[int],
    example: int = 0,
    key_tokens: Sequence[str] | None = None,
    ax: Axes | None = None,
    figsize: tuple[float, float] | None = None,
    cmap: str | Colormap | None = None,
    title: str | None = None,
) -> Figure:
    """Draw p of one or more heads in the last recorded call, as `draw_weights`.

    Several records stand side by side, with their heads below each other. Weights above 1, possible
    with relu, have the colour of 1.

    Args:
        record: from `record_attention(model, weights=True)`; or several, by the name to show above
            each: `{"softmax": record, "entmax": other}`.
        tokens: the Q tokens of the example, padding too, such as
            `tokenizer.convert_ids_to_tokens(batch["input_ids"][example])`.
        layer: name, or number in the order of `record.layers`.
        head, example: counted from 0; a list of heads draws a panel for each.
        key_tokens: the K tokens attended to, if not `tokens`: cross-attention, a cache.
        ax, figsize, cmap, title: as `draw_weights`.

    Raises:
        ValueError: no weights recorded; layer, head or example out of range; and as `draw_weights`.
        TypeError: as `draw_weights`.
    """
    records = record if isinstance(record, Mapping) else {"": record}
    heads = list(head) if isinstance(head, Sequence) else [head]
    panels: dict[str, tuple[Tensor, Tensor]] = {}
    shared = ""
    for number in heads:
        for name, one in records.items():
            if not isinstance(one, AttentionRecord):
                raise TypeError(
                    f"record: expected a record, or a dict of records, got {type(one).__name__}"
                )
            place = layer_number(layer, one.layers)
            parts = [name or one.mappings[place], f"layer {place}", f"head {number}"]
            differs = [len(records) > 1, False, len(heads) > 1]
            own = ", ".join(part for part, d in zip(parts, differs, strict=True) if d)
            shared = ", ".join(part for part, d in zip(parts, differs, strict=True) if not d)
            weights, valid = _of_head(one, place, number, example)
            panels[own or shared] = _checked(weights, valid, key_tokens is None)
    columns = len(records) if len(records) > 1 else _columns(len(heads))
    names = tokens, tokens if key_tokens is None else key_tokens
    return _draw(panels, columns, names, shared, ax=ax, figsize=figsize, cmap=cmap, title=title)


def draw_weights(
    weights: Tensor | Mapping[str, Tensor],
    tokens: Sequence[str],
    *,
    key_tokens: Sequence[str] | None = None,
    valid: Tensor | None = None,
    ax: Axes | None = None,
    figsize: tuple[float, float] | None = None,
    cmap: str | Colormap | None = None,
    title: str | None = None,
) -> Figure:
    """Draw p (Q, K) of one head: a row per query, a column per key, exact zeros white.

    Every p > 0 has a colour, however small, on a scale of sqrt(p) from 0 to 1, the same in all
    pictures. Masked cells are grey and hatched; without `key_tokens`, so is the row of a query
    whose own key is masked for all (padding). The title gives the share of zeros in the rest.
    Several heads are panels of one figure, with one colour bar.

    Args:
        weights: (Q, K), of any dtype; such as `outputs.attentions[layer][example, head]`. Or
            several, by the name to show above each: `{"softmax": weights, "entmax": others}`.
        tokens: Q strings, drawn as they are, special characters too; long ones are cut.
        key_tokens: K strings; None if queries and keys are the same tokens.
        valid: (Q, K) bool, which keys each query may attend to; None for all.
        ax: axes for the picture of one head, in a figure of yours; None for a new figure.
        figsize: width and height of the new figure in inches.
        cmap: colours of p from 0 to 1; white means exactly 0, so do not begin with it.
        title: text above the picture; None for a name and the share of zeros.

    Returns:
        The new figure, or the one of `ax`.

    Raises:
        ValueError: weights empty, not 2-D, outside [0, 1] or NaN; tokens or valid of the wrong
            size; more than 60 tokens; ax for several heads or with figsize.
        TypeError: tokens are not strings.
    """
    given = weights if isinstance(weights, Mapping) else {"attention": weights}
    panels = {name: _checked(each, valid, key_tokens is None) for name, each in given.items()}
    names = tokens, tokens if key_tokens is None else key_tokens
    look: dict[str, Any] = {"ax": ax, "figsize": figsize, "cmap": cmap, "title": title}
    return _draw(panels, _columns(len(panels)), names, "", **look)


def _of_head(
    record: AttentionRecord, layer: int, head: int, example: int
) -> tuple[Tensor, Tensor | None]:
    """Return p (Q, K) of a recorded head, at most 1, and its valid pairs."""
    weights, valid = record.weights[layer], record.valid[layer]
    _check_index("example", example, weights.shape[0])
    _check_index("head", head, weights.shape[1])
    p = weights[example, head]
    if largest_weight(record.mappings[layer]) > 1:
        p = p.clamp(max=1)
    return p, None if valid is None else valid.expand(weights.shape)[example, head]


def _checked(weights: Tensor, valid: Tensor | None, is_self: bool) -> tuple[Tensor, Tensor]:
    """Return p (Q, K) in float64 and the pairs that count, on the CPU.

    is_self: whether queries and keys are the same tokens.
    """
    if weights.dim() != 2 or weights.numel() == 0:
        raise ValueError(
            f"weights: expected one head of one example, shape (Q, K), got {tuple(weights.shape)}; "
            "use weights[example, head], or a dict of several by name"
        )
    p = weights.detach().double().cpu()
    if not ((p >= 0) & (p <= 1.01)).all():  # tolerance for 1 in bfloat16
        raise ValueError("weights: expected probabilities, got numbers outside [0, 1] or NaN")
    if valid is None:
        return p, torch.ones(p.shape, dtype=torch.bool)
    if valid.dtype != torch.bool or valid.shape != p.shape:
        raise ValueError(
            f"valid: expected a boolean tensor of shape {tuple(p.shape)}, got {valid.dtype} "
            f"of shape {tuple(valid.shape)}"
        )
    valid = valid.cpu()
    return p, valid & valid.any(0).unsqueeze(1) if is_self else valid


def _draw(
    panels: Mapping[str, tuple[Tensor, Tensor]],
    columns: int,
    names: tuple[Sequence[str], Sequence[str]],
    shared: str,
    *,
    ax: Axes | None,
    figsize: tuple[float, float] | None,
    cmap: str | Colormap | None,
    title: str | None,
) -> Figure:
    """Draw p and the pairs that count of each panel; `shared` is a title above several."""
    if not panels:
        raise ValueError("expected one head or more to draw, got none")
    if ax is not None and len(panels) > 1:
        raise ValueError(f"ax: expected one head for it, got {len(panels)}; draw each with its ax")
    for p, _ in panels.values():
        _check_tokens("tokens", names[0], p.shape[0], "queries")
        _check_tokens("key_tokens (by default tokens)", names[1], p.shape[1], "keys")
    figure, grid = _grid(len(panels), columns, names, ax, figsize)
    for axes, (name, (p, pairs)) in zip(grid, panels.items(), strict=True):
        image = _draw_panel(axes, p, pairs, cmap)
        _label(axes, *names)
        zeros = ((p == 0) & pairs).sum().item() / max(pairs.sum().item(), 1)
        own = f"{name}: {100 * zeros:.0f} % exact zeros"
        if len(panels) == 1:
            plot_style.write_title(figure, ax, own if title is None else title, parse_math=False)
        else:
            axes.set_title(own, fontsize=11, parse_math=False)
            axes.label_outer()
    if len(panels) > 1 and (above := shared if title is None else title):
        figure.suptitle(above, fontsize=12, parse_math=False)
    bar = figure.colorbar(image, ax=grid, location="bottom", aspect=40, shrink=0.7, pad=0.02)
    bar.set_ticks([0, *_TICKS], labels=["> 0", *map(str, _TICKS)])
    masked = not all(pairs.all() for _, pairs in panels.values())
    bar.set_label(f"attention weight $p$; white: exactly 0{'; hatched: masked' * masked}")
    return figure


def _columns(panels: int) -> int:
    """Return the columns of a grid that is about as wide as high."""
    return math.ceil(math.sqrt(panels))


def _grid(
    panels: int,
    columns: int,
    names: tuple[Sequence[str], Sequence[str]],
    ax: Axes | None,
    figsize: tuple[float, float] | None,
) -> tuple[Figure, list[Axes]]:
    """Return a figure and the axes of its panels; those of `ax` if given."""
    down, across = map(len, names)
    rows = -(-panels // columns)
    cell = np.clip(4.6 / (columns * max(across, down)), 0.16, 0.4)
    width = max(plot_style.WIDTH, columns * cell * across + 1.8)
    height = rows * (cell * down + 0.4) + 2.0
    if rows * columns == 1:
        figure, axes = plot_style.axes_of(ax, figsize, (width, height))
        return figure, [axes]
    figure = plot_style.PaperFigure(figsize=figsize or (width, height), layout="constrained")
    grid = list(figure.subplots(rows, columns, squeeze=False).flat)
    for empty in grid[panels:]:
        empty.remove()
    return figure, grid[:panels]


def _draw_panel(axes: Axes, p: Tensor, pairs: Tensor, cmap: str | Colormap | None) -> AxesImage:
    axes.set_facecolor("white")
    if not pairs.all():
        _hatch(axes, ~pairs.numpy())
    shown = np.ma.array(p.numpy(), mask=~((p > 0) & pairs).numpy())
    return axes.imshow(shown, cmap=cmap or _SHADES, norm=PowerNorm(0.5, 0, 1), zorder=2)


def _hatch(axes: Axes, cells: np.ndarray) -> None:
    """Hatch these cells (Q, K)."""
    edges = [np.arange(n + 1) - 0.5 for n in reversed(cells.shape)]
    chosen = np.ma.array(np.zeros(cells.shape), mask=~cells)
    axes.pcolor(
        *edges, chosen, cmap=ListedColormap([plot_style.HATCHED["facecolor"]]), **plot_style.HATCHED
    )


def _label(axes: Axes, tokens: Sequence[str], keys: Sequence[str]) -> None:
    """Label both axes with tokens."""
    cell = 72 / axes.figure.dpi * min(axes.bbox.width / len(keys), axes.bbox.height / len(tokens))
    size = np.clip(0.8 * cell, 5, 9.5)
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
