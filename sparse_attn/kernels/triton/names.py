"""Named tuples passed between the kernels.

Functions of the compiler (`triton.constexpr_function`) take single fields, because Triton 3.6 drops
the names of a named tuple if they call each other or the interpreter calls them.
"""

from __future__ import annotations

from collections import namedtuple
from typing import Any, NamedTuple


class Map(NamedTuple):
    """Compile-time: the mapping."""

    family: str  # as in mappings.specs.Kernel
    kind: str
    skip: bool  # skip tiles without support, which have no gradient either
    grad: bool  # save data for the backward pass
    moments: bool  # the backward pass computes row sums; otherwise a second output gives them


class Flags(NamedTuple):
    """Compile-time: operations on the scores between q k^T and the mapping."""

    plain: bool  # s = scale q k^T, scale > 0, so that kernels compute with q k^T
    ragged: bool  # any tile may have masked scores
    mask: bool
    padding: bool  # one row of the mask serves all queries and heads
    bias: bool
    softcap: bool
    causal: bool
    window: int  # 0 for none
    precision: str  # precision of float32 products: "tf32x3" (float32 accuracy) or "tf32"
    lengths: bool
    packed: bool  # packed sequences
    dropout: bool
    sink: bool  # one more score in each row, of value 0


class Shape(NamedTuple):
    """Compile-time: the tiles."""

    block_m: int  # queries
    block_n: int  # keys
    dim: int
    block_d: int  # dim padded to a power of two
    kept: int  # tiles that hold all keys of a row; 0 if each pass computes the scores again
    full: bool  # all scores of all tiles are valid
    stored: bool = False  # scores are read, not computed


class Sizes(NamedTuple):
    """Lengths of the problem."""

    heads: int
    groups: int  # query heads per key head
    rows: int
    keys: int
    boundaries: int  # number of boundaries of packed sequences, which replace lengths


class Pairs(NamedTuple):
    """Mask and bias: pointers, and strides by batch, head, query and key.

    Flat, because Triton 3.6 loses a stride of 1 in a nested tuple.
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
# first `prefix` keys are all valid; sink: score of the virtual key; unit: factor from x, which the
# kernels compute with, to the score s = unit x; begin, end: ends of the packed sequence of each row
# [BM, 1], or of each key [1, BN]
Site = namedtuple(
    "Site",
    "q rows n_rows n_keys prefix all_keys scale unit softcap mask mask_m mask_n bias bias_m bias_n "
    "sink begin end",
)
# a (length, dim) matrix
Matrix = namedtuple("Matrix", "pointer stride")
# tiles that a block may attend to, first <= inner <= outer <= last; all scores of tiles from inner
# to outer are valid
Span = namedtuple("Span", "first inner outer last")
# scores of a block of queries; kept: x of the tiles that stay on chip; tiles: the number of inner
# tiles with support, and their list; marks: a Matrix with one mark per tile
Block = namedtuple("Block", "site keys kept span tiles marks")
# results of a pass over a row; candidates: largest score of all tiles at each place of a tile
Survey = namedtuple("Survey", "candidates top mass total squares n")
# ends and amounts of a searched row: low < result <= high
Bracket = namedtuple("Bracket", "low high under_low under_high")
# results of a search for each row; open: rows without all of them; fixed: rows that have `value`
Results = namedtuple("Results", "open fixed value amount beside")
# statistics of a row; see maps.py
Statistics = namedtuple("Statistics", "a b c d e low high f")
# y of a projection as a line in x: y = (x - top) factor / e, of rows [BM, 1]
Line = namedtuple("Line", "top factor tau slack chill")
# statistics for the forward pass, c and d for the backward one, and x of the keys low and high
Solved = namedtuple("Solved", "stats c d low high")
# dropout: weights with random bits below `cut` are dropped, the others multiplied by `scale`
Drop = namedtuple("Drop", "seed head cut scale")
# further inputs of a block of queries in the backward pass
Part = namedtuple("Part", "value do stats theta drop")
# values of a tile in the backward pass; chain = ds / d(unit x), used = p after dropout
Tile = namedtuple("Tile", "columns x chain p used u by_theta")
# row sums for the gradient; extra: pull of a threshold row, kappa of a projection, the share of
# softpick's maximum
Gradient = namedtuple("Gradient", "gamma extra")
