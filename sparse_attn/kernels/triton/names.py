"""Named tuples passed between the kernels.

Functions of the compiler (`triton.constexpr_function`) take single fields: Triton 3.6 hands them a
named tuple as one without names, where they call each other or the interpreter calls them.
"""

from __future__ import annotations

from collections import namedtuple
from typing import Any, NamedTuple


class Map(NamedTuple):
    """Compile-time: which mapping."""

    family: str  # as in mappings.base.Kernel
    kind: str
    skip: bool  # skip tiles without support, which have no gradient either
    grad: bool  # save what the backward pass needs,
    moments: bool  # which computes sums over rows itself, or takes them from a second output


class Flags(NamedTuple):
    """Compile-time: operations on the scores between q k^T and the mapping."""

    plain: bool  # s = scale q k^T, scale > 0: kernels then compute with q k^T
    ragged: bool  # any tile may have masked scores
    mask: bool
    padding: bool  # one row of the mask serves all queries and heads
    bias: bool
    softcap: bool
    causal: bool
    window: int  # 0 for none
    precision: str  # of float32 products: "tf32x3" (float32 accuracy) or "tf32"
    lengths: bool
    packed: bool  # sequences one after another
    dropout: bool
    sink: bool  # one more score in each row, of value 0


class Shape(NamedTuple):
    """Compile-time: the tiles."""

    block_m: int  # queries
    block_n: int  # keys
    dim: int
    block_d: int  # dim padded to a power of two
    short: bool  # one tile holds all keys,
    full: bool  # and all its scores are valid
    stored: bool = False  # scores are read, not computed


class Sizes(NamedTuple):
    """Lengths of the problem."""

    heads: int
    groups: int  # query heads to a key head
    rows: int
    keys: int
    boundaries: int  # of packed sequences, in place of lengths


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

# a block of queries of one head, and the inputs of its scores; n_keys excludes padding, and the
# first `prefix` keys are all valid; sink: the score of the virtual key; unit: what x, the number
# that the kernels compute with, is multiplied by to give the score s; begin, end: of the packed
# sequence of each row [BM, 1], or of each key [1, BN]
Site = namedtuple(
    "Site",
    "q rows n_rows n_keys prefix all_keys scale unit softcap mask mask_m mask_n bias bias_m bias_n "
    "sink begin end",
)
# a (length, dim) matrix
Matrix = namedtuple("Matrix", "pointer stride")
# tiles that a block may attend to, first <= inner <= outer <= last; all scores of those from inner
# to outer are valid
Span = namedtuple("Span", "first inner outer last")
# the scores of a block of queries; kept: the only tile, where the shape is short; tiles: the number
# of inner tiles with support, and these; marks: one for each tile, a Matrix
Block = namedtuple("Block", "site keys kept span tiles marks")
# what a pass over a row finds; candidates: at each place of a tile the largest score of all tiles
Survey = namedtuple("Survey", "candidates top bottom total squares n")
# statistics of a row; see maps.py
Statistics = namedtuple("Statistics", "a b c d e low high f")
# y of a projection as a line in x: y = (x - top) factor / e, of rows [BM, 1]
Line = namedtuple("Line", "top factor tau slack chill")
# statistics for the forward pass, c and d for the backward one, and x of the keys low and high
Solved = namedtuple("Solved", "stats c d low high")
# determines which weights are dropped: those of less random bits than `cut`; scale: of the others
Drop = namedtuple("Drop", "seed head cut scale")
# what else a block of queries needs in the backward pass
Part = namedtuple("Part", "value do stats theta drop")
# values of a tile in the backward pass; chain = ds / d(unit x), used = p after dropout
Tile = namedtuple("Tile", "columns x chain p used u by_theta")
# row sums for the gradient; extra: pull of a threshold row, kappa of a projection, the share of
# softpick's maximum
Gradient = namedtuple("Gradient", "gamma extra")
