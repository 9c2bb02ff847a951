"""Named tuples passed between the kernels."""

from __future__ import annotations

from collections import namedtuple
from typing import Any, NamedTuple


class Map(NamedTuple):
    """Compile-time: which mapping."""

    family: str  # as in mappings.base.Kernel
    kind: str
    skip: bool  # skip tiles without support, which have no gradient either


class Flags(NamedTuple):
    """Compile-time: operations on the scores between q k^T and the mapping."""

    mask: bool
    padding: bool  # one row of the mask serves all queries and heads
    bias: bool
    softcap: bool
    causal: bool
    window: int  # 0 for none
    precision: str  # of float32 products: "tf32x3" (float32 accuracy) or "tf32"
    lengths: bool
    dropout: bool
    sink: bool  # one more score in each row, of value 0


class Shape(NamedTuple):
    """Compile-time: the tiles."""

    block_m: int  # queries
    block_n: int  # keys
    dim: int
    block_d: int  # dim padded to a power of two
    short: bool  # one tile holds all keys
    halved: bool  # and half of it suffices, the rest being padding


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


# On the device, where all types are Triton's:

# a block of queries of one head, and the inputs of its scores; n_keys excludes padding; sink: the
# score of its virtual key
Site = namedtuple(
    "Site",
    "q rows n_rows n_keys all_keys scale softcap mask mask_m mask_n bias bias_m bias_n sink",
)
# a (length, dim) matrix
Matrix = namedtuple("Matrix", "pointer stride")
# the scores of a block of queries, tile by tile; keys: a Matrix; kept: the only tile, where the
# shape is short; alive: a mark for each tile, whether it may hold support
Block = namedtuple("Block", "site keys kept first last alive")
# statistics of a row; see maps.py
Statistics = namedtuple("Statistics", "a b c d e low high")
# determines which weights are dropped
Drop = namedtuple("Drop", "seed head rate")
# values of a tile in the backward pass; chain = ds / d(q k^T), used = p after dropout, g = dL / dp
Tile = namedtuple("Tile", "k columns s chain p used g u by_theta")
# row sums for the gradient; extra: pull of a threshold row, kappa of a projection, the share of
# softpick's maximum
Gradient = namedtuple("Gradient", "gamma extra")
