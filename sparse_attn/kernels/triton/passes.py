"""Passes over the scores of a block of rows, and the statistics they find.

Where a row fits on chip, the scores of its tiles are computed once and kept; otherwise each pass
computes them again, tile by tile. Sums and maxima are kept for each place of a tile, [BM, BN], and
reduced once. Tiles in which all scores are valid are computed without masks and apart from those
at the edges: a branch inside a loop would keep its loads from overlapping with the rest. Tiles that
are kept and that a block may not attend to are -inf, and a search steps over them like over others,
because branches between the steps make the registers spill.
"""

import triton
import triton.language as tl

from sparse_attn.kernels.triton.names import Survey
from sparse_attn.kernels.triton.projections import (
    base_of,
    line_of,
    newton_step,
    powers,
)
from sparse_attn.kernels.triton.scores import (
    edge_at,
    edges_of,
    has_edges,
    load_tile,
    scores_of,
    sink_of,
    stored_tile,
)
from sparse_attn.kernels.triton.unnormalized import softpick_size

STEPS = tl.constexpr(40)  # limit for Newton's method, which takes 2 to 14 steps
SETTLED = tl.constexpr(1e-6)  # stop when tau moves less than this
# in half precision also when sum p was at most this above 1 before the last step: the rounding of
# float16. It only falls, in the last step usually to a rounding of float32
EXCESS = tl.constexpr(2.0**-11)
LOG2E = tl.constexpr(1.4426950408889634)
LEAST = -3.0e38  # below any score


@triton.jit
def larger(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def kept_tiles(site, keys, span, FLAGS: tl.constexpr, SHAPE: tl.constexpr):
    """Compute x [BM, BN] of each tile that stays on chip, -inf where no key may be attended to."""
    found = ()
    for tile in tl.static_range(tl.constexpr(SHAPE.kept)):
        x = blank(float("-inf"), SHAPE)
        if is_reached(tile, span, SHAPE):
            columns = tile * SHAPE.block_n + tl.arange(0, SHAPE.block_n)
            k = load_tile(keys, tile * SHAPE.block_n, site.n_keys, True, SHAPE)
            x, _ = scores_of(k, columns, site, not SHAPE.full, FLAGS)
        found += (x,)  # type: ignore[assignment]
    return found


@triton.jit
def is_reached(tile: tl.constexpr, span, SHAPE: tl.constexpr):
    """Whether a block may attend to a kept tile; a constant for the only tile and without masks."""
    if SHAPE.kept == 1 or SHAPE.full:
        return True
    else:
        return (span.first <= tile) & (span.last > tile)


@triton.jit
def tile_at(tile, block, EDGE: tl.constexpr, FLAGS: tl.constexpr, SHAPE: tl.constexpr):
    """Return x [BM, BN] of a tile, and its keys."""
    start = tile * SHAPE.block_n
    columns = start + tl.arange(0, SHAPE.block_n)
    if SHAPE.kept > 0:
        return block.kept[tile], columns
    elif SHAPE.stored:
        return stored_tile(block.keys, block.site.rows, columns, block.site.n_keys), columns
    else:
        k = load_tile(block.keys, start, block.site.n_keys, EDGE, SHAPE)
        x, _ = scores_of(k, columns, block.site, EDGE, FLAGS)
        return x, columns


@triton.jit
def inner_tile(i, block, LISTED: tl.constexpr):
    """Number of the i-th inner tile; if LISTED, of the i-th with support."""
    return tl.load(block.tiles + 1 + i).to(tl.int32) if LISTED else block.span.inner + i


@triton.jit
def inner_tiles(block, LISTED: tl.constexpr):
    """Count the inner tiles; if LISTED, those with support."""
    return tl.load(block.tiles).to(tl.int32) if LISTED else block.span.outer - block.span.inner


@triton.jit
def sweep(
    step: tl.constexpr, state, given, block, LISTED: tl.constexpr, MAP: tl.constexpr,
    FLAGS: tl.constexpr, SHAPE: tl.constexpr,
):  # fmt: skip
    """state = step(state, given, x, columns, EDGE, MAP) over the tiles of a block of rows."""
    if SHAPE.kept > 0:
        for tile in tl.static_range(tl.constexpr(SHAPE.kept)):
            x, columns = tile_at(tile, block, True, FLAGS, SHAPE)
            state = step(state, given, x, columns, not SHAPE.full, MAP)
    else:
        for i in range(0, inner_tiles(block, LISTED)):
            tile = inner_tile(i, block, LISTED)
            x, columns = tile_at(tile, block, FLAGS.ragged, FLAGS, SHAPE)
            state = step(state, given, x, columns, FLAGS.ragged, MAP)
        if has_edges(FLAGS.ragged, SHAPE.full):
            for i in range(0, edges_of(block.span)):
                x, columns = tile_at(edge_at(i, block.span), block, True, FLAGS, SHAPE)
                state = step(state, given, x, columns, True, MAP)
    return state


@triton.jit
def blank(value: tl.constexpr, SHAPE: tl.constexpr):
    return tl.full([SHAPE.block_m, SHAPE.block_n], value, tl.float32)


@triton.constexpr_function
def reads(what, family, kind):
    """Whether a mapping's statistics need the field `what` of `Survey`."""
    searched = kind in ("r-softmax", "top-p-softmax")
    by_mean = kind in ("sparsecone", "sparsehourglass")
    by_mass = (family == "truncated" and kind != "max-gap") or kind in (
        "softpick",
        "clipped-softmax",
    )
    return {
        "top": kind not in ("sigmoid", "relu"),
        "mass": by_mass,
        "total": by_mean or searched,
        "squares": searched,
        "n": by_mean or searched or family == "free" or kind == "max-gap",
    }[what]


@triton.jit
def mass_of(x, top, unit):
    """e^(s - top)."""
    return tl.exp2((x - top) * (unit * LOG2E))


@triton.jit
def weighed(top, mass, x, unit, MAP: tl.constexpr):
    """Add a score to a sum of e^s, or of softpick's |e^s - 1|, over e^top; the top may rise."""
    if MAP.kind == "softpick":
        new = larger(top, x)
        size = tl.abs(softpick_size(x * unit, new * unit))
        return new, mass * mass_of(top, new, unit) + size
    else:
        small = tl.exp2(-tl.abs(x - top) * (unit * LOG2E))
        mass = tl.where(x > top, mass * small + 1.0, mass + small)
        return larger(top, x), mass


@triton.constexpr_function
def least_top(family, kind):
    """Maximum of a row before its first score: a number if masses are summed."""
    if kind == "softpick":
        return 0.0
    return LEAST if reads("mass", family, kind) else float("-inf")


@triton.jit
def surveyed(state, given, x, columns, EDGE: tl.constexpr, MAP: tl.constexpr):
    """Step of `survey`; sums are reduced here, because all places take too many registers."""
    top, mass, total, squares, n = state
    inside = x != float("-inf")
    if reads("mass", MAP.family, MAP.kind):
        top, mass = weighed(top, mass, x, given[0], MAP)
    elif reads("top", MAP.family, MAP.kind):
        top = larger(top, x)
    if reads("total", MAP.family, MAP.kind):
        total += tl.sum(tl.where(inside, x, 0.0) if EDGE else x, 1)
    if reads("squares", MAP.family, MAP.kind):
        squares += tl.sum(tl.where(inside, x * x, 0.0) if EDGE else x * x, 1)
    if EDGE and reads("n", MAP.family, MAP.kind):
        n += tl.sum(inside.to(tl.float32), 1)
    return top, mass, total, squares, n


@triton.jit
def survey(block, MAP: tl.constexpr, FLAGS: tl.constexpr, SHAPE: tl.constexpr):
    """Compute maximum, sums and number of a row's valid x, and `candidates` [BM, BN].

    NaN counts as the maximum. Fields that `reads` excludes are not computed.
    """
    zero = tl.full([SHAPE.block_m], 0.0, tl.float32)
    unit = block.site.unit
    state = (blank(least_top(MAP.family, MAP.kind), SHAPE), blank(0.0, SHAPE), zero, zero, zero)
    state = sweep(surveyed, state, (unit,), block, False, MAP, FLAGS, SHAPE)
    candidates, masses, total, squares, n = state
    top = tl.reduce(candidates, 1, larger)
    mass = n
    if reads("mass", MAP.family, MAP.kind):
        mass = tl.sum(masses * mass_of(candidates, top[:, None], unit), 1)
    if SHAPE.kept > 0:
        if SHAPE.full:
            n += SHAPE.kept * SHAPE.block_n
    elif not FLAGS.ragged:
        n += ((block.span.outer - block.span.inner) * SHAPE.block_n).to(tl.float32)
    if FLAGS.sink:
        x, _ = sink_of(block.site, SHAPE)
        x = tl.sum(x, 1)
        if reads("mass", MAP.family, MAP.kind):
            top, mass = weighed(top, mass, x, unit, MAP)
        else:
            top = larger(top, x)
        total, squares, n = total + x, squares + x * x, n + 1.0
    empty = top == least_top(MAP.family, MAP.kind)
    return Survey(candidates, tl.where(empty, 0.0, top), mass, total, squares, n)


@triton.jit
def summed(state, given, x, columns, EDGE: tl.constexpr, MAP: tl.constexpr):
    """Step of `project`: sums of p and of its slope."""
    total, slope = state
    line, theta = given
    p, u = powers(base_of(x, line, theta, MAP), theta, MAP)
    return total + p, slope + u


@triton.jit
def either(a, b):
    return a | b


@triton.jit
def with_listed(state, count, tile, inner, x, given, block, MAP: tl.constexpr):
    """Add a tile to the sums, and to the list if it is an inner one with support."""
    line, theta = given
    total, slope = state
    p, u = powers(base_of(x, line, theta, MAP), theta, MAP)
    live = (tl.reduce(u.to(tl.int32, bitcast=True), None, either) != 0) & inner
    tl.store(block.tiles + 1 + count, tile.to(block.tiles.dtype.element_ty))
    return (total + p, slope + u), count + live.to(tl.int32)


@triton.jit
def listed(state, given, block, MAP: tl.constexpr, FLAGS: tl.constexpr, SHAPE: tl.constexpr):
    """Sum like `sweep` with `summed`, and list the inner tiles with support.

    From here tau only rises, so no other tile gains support.
    """
    count = block.span.first * 0
    if SHAPE.kept > 0:
        for tile in tl.static_range(tl.constexpr(SHAPE.kept)):
            x, _ = tile_at(tile, block, True, FLAGS, SHAPE)
            number = block.span.first * 0 + tile
            inner = (block.span.inner <= tile) & (block.span.outer > tile)
            state, count = with_listed(state, count, number, inner, x, given, block, MAP)
    else:
        for i in range(0, inner_tiles(block, False)):
            tile = inner_tile(i, block, False)
            x, _ = tile_at(tile, block, FLAGS.ragged, FLAGS, SHAPE)
            state, count = with_listed(state, count, tile, True, x, given, block, MAP)
        if has_edges(FLAGS.ragged, SHAPE.full):
            for i in range(0, edges_of(block.span)):
                x, columns = tile_at(edge_at(i, block.span), block, True, FLAGS, SHAPE)
                state = summed(state, given, x, columns, True, MAP)
    tl.store(block.tiles, count.to(block.tiles.dtype.element_ty))
    tl.debug_barrier()  # before the list is read
    if MAP.grad:
        mark(block, count)
    return state


@triton.jit
def mark(block, count):
    """Mark the listed tiles and the edge tiles for the lists of the keys."""
    marks, span = block.marks, block.span
    places = tl.arange(0, 128)
    for start in range(0, count, 128):
        inside = start + places < count
        tiles = tl.load(block.tiles + 1 + start + places, mask=inside, other=0).to(tl.int64)
        tl.store(marks.pointer + tiles * marks.stride, inside.to(tl.int8), mask=inside)
    for start in range(0, edges_of(span), 128):
        tiles = edge_at(start + places, span).to(tl.int64)
        inside = start + places < edges_of(span)
        tl.store(marks.pointer + tiles * marks.stride, inside.to(tl.int8), mask=inside)


@triton.jit
def moved(total, slope, given, block, FLAGS: tl.constexpr, MAP: tl.constexpr, SHAPE: tl.constexpr):
    """Newton's step of tau from sums over the keys, plus the sink, and whether more are needed."""
    total, slope = tl.sum(total, 1), tl.sum(slope, 1)
    _, theta = given
    if FLAGS.sink:
        x, columns = sink_of(block.site, SHAPE)
        p, u = summed((x * 0.0, x * 0.0), given, x, columns, False, MAP)
        total += tl.sum(p, 1)
        slope += tl.sum(u, 1)
    move = newton_step(total, slope, theta, MAP)
    far = tl.abs(move) > SETTLED
    if block.keys.pointer.dtype.element_ty != tl.float32:
        far = far & (total > 1.0 + EXCESS)
    return move, tl.max(far.to(tl.int32), 0) > 0


@triton.jit
def project(
    block, found, temperature, slack, theta, MAP: tl.constexpr, FLAGS: tl.constexpr,
    SHAPE: tl.constexpr,
):  # fmt: skip
    """Solve sum p = 1 for tau.

    Newton's method on the convex (sum p)^e: from 0 the iterates rise to the root without passing
    it. The candidates, a subset of the row, have a root below it and near, which comes first.
    """
    unit = block.site.unit
    none = blank(0.0, SHAPE)
    tau = found.top * 0.0
    step = 0
    go = True
    while go:
        line = line_of(found.top, temperature, tau, slack, theta, unit, MAP)
        sums = summed((none, none), (line, theta), found.candidates, none, False, MAP)
        move, far = moved(sums[0], sums[1], (line, theta), block, FLAGS, MAP, SHAPE)
        tau += move
        step += 1
        go = far & (step < STEPS)
    if SHAPE.kept != 1:
        if MAP.skip:
            line = line_of(found.top, temperature, tau, slack, theta, unit, MAP)
            sums = listed((none, none), (line, theta), block, MAP, FLAGS, SHAPE)
            move, far = moved(sums[0], sums[1], (line, theta), block, FLAGS, MAP, SHAPE)
            tau += move
            go = far
        else:
            go = block.span.last - block.span.first > 1
        step = 0
        while go:
            line = line_of(found.top, temperature, tau, slack, theta, unit, MAP)
            sums = sweep(summed, (none, none), (line, theta), block, MAP.skip, MAP, FLAGS, SHAPE)
            move, far = moved(sums[0], sums[1], (line, theta), block, FLAGS, MAP, SHAPE)
            tau += move
            step += 1
            go = far & (step < STEPS)
    return tau
