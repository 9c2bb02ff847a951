"""Data of a page as JSON values."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sparse_attn.inspection.record import AttentionRecord, largest_weight
from sparse_attn.kernels.statistics import entropy_of

# codes of a weight in 16 bits, with the same names in values.js
NOT_ALLOWED, DROPPED, SMALLEST, LARGEST = 0, 1, 2, 65535
STEP = 149 * math.log(2) / (LARGEST - SMALLEST)  # from 2^-149, the smallest float32, to 1
ROUNDED = 0.005  # a mass within this of 1 is shown as 1.00
MOST_WEIGHTS = 8_000_000


def page_data(
    sides: Mapping[str, AttentionRecord],
    tokens: Sequence[str],
    special_mask: Sequence[int] | None,
    example: int,
) -> dict[str, Any]:
    """Return the data of `attention_page`, with its arguments and errors."""
    layers = _layers(sides)
    _check_shapes(sides, layers, tokens, example)
    special = None
    if special_mask is not None:
        special = torch.as_tensor(special_mask).bool()
        if special.shape != (len(tokens),):
            raise ValueError(
                f"special_mask: expected {len(tokens)} numbers, one for each token, got shape "
                f"{tuple(special.shape)}"
            )
    first = next(iter(sides.values()))
    return {
        "tokens": list(tokens),
        "special": None if special is None else special.int().tolist(),
        "layers": [first.layers[i] for i in layers],
        "step": STEP,
        "sides": [
            {
                "name": name,
                "mappings": [record.mappings[i] for i in layers],
                "layers": [_layer(name, record, i, example, special) for i in layers],
            }
            for name, record in sides.items()
        ],
    }


def _layers(sides: Mapping[str, AttentionRecord]) -> list[int]:
    """Return the layers that ran, the same on all sides."""
    if not isinstance(sides, Mapping):
        raise TypeError(
            f"sides: expected records by name, such as {{'softmax': record}}, got "
            f"{type(sides).__name__}"
        )
    if len(sides) not in (1, 2):
        raise ValueError(f"sides: expected one record or two by name, got {len(sides)}")
    ran = {
        name: [i for i, layer in enumerate(record.layers) if layer in record.weights]
        for name, record in sides.items()
    }
    for name, found in ran.items():
        if not found:
            raise ValueError(
                f"sides[{name!r}]: the record holds no weights; use "
                "record_attention(model, weights=True) and call the model inside the block"
            )
    for name, record in sides.items():
        if crossing := [record.layers[i] for i in ran[name] if record.crosses[i]]:
            raise ValueError(
                f"sides[{name!r}]: {crossing[0]} is cross-attention, but the page shows the "
                "self-attention of one stack; call that alone, such as model.get_encoder()"
            )
    names = [[record.layers[i] for i in ran[name]] for name, record in sides.items()]
    layers = next(iter(ran.values()))
    if names[0] != names[-1] or any(found != layers for found in ran.values()):
        raise ValueError(
            f"sides: expected records of the same layers, got {len(names[0])} and "
            f"{len(names[-1])} layers that ran, {names[0][0]} and {names[-1][0]} first; record "
            "the same model on the same text"
        )
    return layers


def _check_shapes(
    sides: Mapping[str, AttentionRecord],
    layers: list[int],
    tokens: Sequence[str],
    example: int,
) -> None:
    n, total = len(tokens), 0
    first = next(iter(sides.values()))
    for name, record in sides.items():
        for i in layers:
            batch, heads, queries, keys = record.weights[i].shape
            if heads != (expected := first.weights[i].shape[1]):
                raise ValueError(
                    f"sides: expected as many heads on both sides, got {expected} and {heads} in "
                    f"{record.layers[i]}; record the same model"
                )
            if not 0 <= example < batch:
                raise ValueError(
                    f"example={example}: expected 0 to {batch - 1}, the record of {name!r} has "
                    f"{batch} text(s)"
                )
            if (queries, keys) != (n, n):
                raise ValueError(
                    f"tokens: {n} given, but {record.layers[i]} of {name!r} has {queries} queries "
                    f"and {keys} keys; the page shows self-attention over all tokens of a text in "
                    "one call (of an encoder-decoder, call the encoder alone)"
                )
            total += heads * n * n
    if total > MOST_WEIGHTS:
        fitting = int(n * math.sqrt(MOST_WEIGHTS / total))
        raise ValueError(
            f"tokens: {n} tokens make {total / 1e6:.1f} million weights, and a page holds at most "
            f"{MOST_WEIGHTS / 1e6:.0f} million; at most {fitting} tokens fit"
        )


def _layer(
    name: str, record: AttentionRecord, layer: int, example: int, special: Tensor | None
) -> dict[str, Any]:
    """Encode a layer of one side: codes [H, Q, K] of p / most, entropy and special mass [H, Q]."""
    weights, valid = record.weights[layer], record.valid[layer]
    p = weights[example].double().cpu()
    largest = largest_weight(record.mappings[layer])
    if not ((p >= 0) & (p <= largest * (1 + 1e-5))).all():
        raise ValueError(
            f"sides[{name!r}]: {record.layers[layer]} holds values that are not probabilities, "
            "such as NaN; check the model's inputs and weights"
        )
    allowed = torch.ones_like(p, dtype=torch.bool)
    if valid is not None:
        allowed = valid.expand_as(weights)[example].cpu()
    p = p.clamp(max=largest).where(allowed, 0.0)
    most = max(1.0, p.max().item())
    # a token that no query may attend to is padding, whose own row does not count either
    counted = allowed & allowed.any(-2).unsqueeze(-1)
    zeros = ((p == 0) & counted).sum((-2, -1)).double() / counted.sum((-2, -1))
    mass = p.sum(-1)[counted.any(-1)]
    return {
        "codes": _base64(_codes(p / most, allowed), "<u2"),
        "most": most,
        "mass": bool(((mass - 1).abs() > ROUNDED).any()),
        "entropy": _base64(entropy_of(p), "<f4"),
        "special": None if special is None else _base64(p[..., special].sum(-1), "<f4"),
        "zeros": [None if math.isnan(share) else share for share in zeros.tolist()],
    }


def _codes(p: Tensor, allowed: Tensor) -> Tensor:
    codes = LARGEST + (p.log() / STEP).round().clamp(min=SMALLEST - LARGEST)
    return codes.where(p > 0, DROPPED).where(allowed, NOT_ALLOWED)


def _base64(tensor: Tensor, dtype: str) -> str:
    return base64.b64encode(tensor.numpy().astype(dtype).tobytes()).decode("ascii")
