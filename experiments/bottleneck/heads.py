"""The compared heads, named as in the figures."""

from __future__ import annotations

from typing import Any

from sparse_attn import Mapping
from sparse_attn.heads import LinearHead, MixtureHead

HEADS = ("softmax", "sigsoftmax", "mos", "lms", "plif")


def make_head(
    name: str, dimension: int, vocabulary: int, options: dict[str, Any]
) -> LinearHead | MixtureHead:
    """A head over context vectors (..., D), with word vectors [M, D] and no bias.

    softmax, sigsoftmax: log p = log map(W h); lms: log softmax(f(W h)), f the monotone network of
    options `units` and `bound`; plif: the same with f piecewise linear of options `knots` and
    `bound`; mos: p = sum_k pi_k(h) softmax(W tanh(U_k h + c_k)), option `components`.
    Source: Ganea et al. 2019, sections 3 to 5; without a bias the log-matrix of softmax has rank
    D + 1 at most, as their Theorem 1 assumes.

    Raises:
        ValueError: unknown name, or an option out of range.
        TypeError: an option the head does not have.
    """
    if name not in HEADS:
        raise ValueError(f"head={name!r}: unknown; expected one of {', '.join(HEADS)}")
    if name == "mos":
        if unknown := options.keys() - {"components"}:
            raise ValueError(f"options.{min(unknown)}: unknown; mos takes components")
        return MixtureHead(dimension, vocabulary, bias=False, **options)
    mapping = Mapping("monotone" if name == "lms" else name, **options)
    return LinearHead(dimension, vocabulary, mapping, bias=False)
