"""Names for what the kernels hand to each other."""

from __future__ import annotations

from typing import Any, NamedTuple


class Map(NamedTuple):
    """Compile-time: which mapping."""

    family: str  # pointwise, threshold or projection
    kind: str
    skip: bool  # tiles without support, where no gradient is left either


class Flags(NamedTuple):
    """Compile-time: what happens to scores between q k^T and the mapping."""

    mask: bool
    padding: bool  # one row of the mask serves all queries and heads
    bias: bool
    softcap: bool
    causal: bool
    window: int  # 0 for none
    precision: str  # of products of float32: "tf32x3" (as good as float32) or "tf32"
    lengths: bool
    dropout: bool


class Shape(NamedTuple):
    """Compile-time: the tiles."""

    block_m: int  # queries
    block_n: int  # keys
    dim: int
    block_d: int  # dim padded to a power of two
    short: bool  # one tile holds all keys
    halved: bool  # and half of them at that, the rest being padding


class Sizes(NamedTuple):
    """Lengths of the problem."""

    heads: int
    groups: int  # query heads to a key head
    rows: int
    keys: int
    num_rows: int  # batch x heads x rows


class Pairs(NamedTuple):
    """Mask and bias: pointers, and strides by batch, head, query and key.

    Flat, because Triton 3.6 loses a stride of 1 in a tuple inside a tuple.
    """

    mask: Any
    mask_b: int
    mask_h: int
    mask_m: int
    mask_n: int
    bias: Any
    bias_b: int
    bias_h: int
    bias_m: int
    bias_n: int


class Site(NamedTuple):
    """On the device: a block of queries of one head, and what its scores need beside the keys."""

    q: Any
    rows: Any
    n_rows: Any
    n_keys: Any  # without padding
    all_keys: Any
    scale: Any
    softcap: Any
    mask: Any
    mask_m: Any
    mask_n: Any
    bias: Any
    bias_m: Any
    bias_n: Any


class Matrix(NamedTuple):
    """On the device: a (length, dim) matrix."""

    pointer: Any
    stride: Any


class Block(NamedTuple):
    """On the device: the scores of a block of queries, tile by tile."""

    site: Any
    keys: Any  # Matrix
    kept: Any  # the only tile, where the shape is short
    first: Any
    last: Any
    alive: Any  # one mark for each tile: may it hold support?


class Statistics(NamedTuple):
    """On the device: what describes a row; see maps.py."""

    a: Any
    b: Any
    c: Any
    d: Any
    e: Any
    low: Any
    high: Any


class Drop(NamedTuple):
    """On the device: what the choice of dropped weights hangs on."""

    seed: Any
    head: Any
    rate: Any


class Tile(NamedTuple):
    """On the device: what the backward pass knows of a tile."""

    k: Any
    columns: Any
    s: Any
    chain: Any  # ds / d(q k^T)
    p: Any
    used: Any  # p after dropout
    g: Any  # dL / dp
    u: Any
    by_theta: Any


class Gradient(NamedTuple):
    """On the device: what the gradient of a row hangs on beside its tile."""

    gamma: Any
    extra: Any  # pull of a threshold row, kappa of a projection
