"""Search for the score that separates small from large scores of a row, by number or mass.

Rows are not sorted. A pass over the keys gives the amounts up to four bounds, guessed from mean and
variance, then interpolated. Once few scores are left above a bound, a last pass collects the three
smallest of them at each place of a tile, and the result is found among these. It is exact if no
smaller score can be missing; else there are more passes, each of which divides what is left.
"""

import triton
import triton.language as tl

from sparse_attn.kernels.triton.bounds import (
    amounts,
    counted,
    crowded,
    guessed,
    inputs_of,
    interpolated,
    narrowed_by_all,
    reaches,
    thirds,
    up_to,
)
from sparse_attn.kernels.triton.names import Bracket, Results
from sparse_attn.kernels.triton.passes import blank, mass_of, sweep
from sparse_attn.kernels.triton.scores import sink_of

GUESSES = tl.constexpr(5)  # passes with guessed bounds; later ones divide by three
LAP = tl.constexpr(3)  # passes before scores are collected even if there are many, as with ties
FEW = tl.constexpr(32)  # most scores up to the result when they are collected
NEAR = tl.constexpr(4)  # most scores up to the result when they are stepped over


@triton.jit
def inserted(state, x):
    """Insert x into the ascending lists of each place."""
    first, second, third = state
    rest = tl.maximum(first, x)
    return tl.minimum(first, x), tl.minimum(second, rest), tl.minimum(
        third, tl.maximum(second, rest)
    )  # fmt: skip


@triton.jit
def collect(state, given, x, columns, EDGE: tl.constexpr, MAP: tl.constexpr):
    """Step of `collected`."""
    return inserted(state, tl.where(x > given[0], x, float("inf")))


@triton.jit
def collected(block, low, MAP: tl.constexpr, FLAGS: tl.constexpr, SHAPE: tl.constexpr):
    """Collect the smallest scores above `low` at each place of a tile, as ascending lists."""
    none = blank(float("inf"), SHAPE)
    lists = sweep(collect, (none, none, none), (low[:, None],), block, False, MAP, FLAGS, SHAPE)
    if FLAGS.sink:
        x, _ = sink_of(block.site, SHAPE)
        place = tl.arange(0, SHAPE.block_n)[None, :] == 0
        lists = inserted(lists, tl.where(place & (x > low[:, None]), x, float("inf")))
    return lists


@triton.jit
def without(lists, hit):
    """Remove the first score of each list where `hit`."""
    first, second, third = lists
    return (
        tl.where(hit, second, first),
        tl.where(hit, third, second),
        tl.where(hit, float("inf"), third),
    )


@triton.jit
def least_above(state, given, x, columns, EDGE: tl.constexpr, MAP: tl.constexpr):
    """Step of `next_kept`: the least score above a bound."""
    return (tl.minimum(state[0], tl.min(tl.where(x > given[0], x, float("inf")), 1)),)


@triton.jit
def alike(state, given, x, columns, EDGE: tl.constexpr, MAP: tl.constexpr):
    """Step of `next_kept`: the number of scores of a value."""
    return (state[0] + tl.sum((x == given[0]).to(tl.float32), 1),)


@triton.jit
def next_kept(block, bound, MAP: tl.constexpr, FLAGS: tl.constexpr, SHAPE: tl.constexpr):
    """Return the least score above a bound of rows that stay on chip, and how many are alike."""
    state = (tl.full([SHAPE.block_m], float("inf"), tl.float32),)
    (least,) = sweep(least_above, state, (bound[:, None],), block, False, MAP, FLAGS, SHAPE)
    if FLAGS.sink:
        x, columns = sink_of(block.site, SHAPE)
        (least,) = least_above((least,), (bound[:, None],), x, columns, False, MAP)
    state = (tl.full([SHAPE.block_m], 0.0, tl.float32),)
    (number,) = sweep(alike, state, (least[:, None],), block, False, MAP, FLAGS, SHAPE)
    if FLAGS.sink:
        x, columns = sink_of(block.site, SHAPE)
        (number,) = alike((number,), (least[:, None],), x, columns, False, MAP)
    return least, number


@triton.jit
def approached(
    bracket, lists, open, need, found, unit, MAP: tl.constexpr, SHAPE: tl.constexpr
):  # fmt: skip
    """Narrow a bracket by collected scores that are complete; return its low end and amount."""
    first, second, third = lists
    top, base, least = found.top, bracket.under_low, tl.min(first, 1)
    low, under_low = bracket.low, base
    high = tl.minimum(bracket.high, tl.min(third, 1))
    step = 0
    go = some(open & crowded(bracket, need, top, unit, NEAR, MAP))
    while go:
        start = tl.maximum(low, least)
        gap = 0.2 * (high - start)
        bounds = (start + gap, start + 2.0 * gap, start + 3.0 * gap, start + 4.0 * gap)
        given = inputs_of(bounds, top, unit)
        none = base * 0.0
        state = counted((none, none, none, none), given, first, 0, False, MAP)
        state = counted(counted(state, given, second, 0, False, MAP), given, third, 0, False, MAP)
        sums = up_to(state, base, 3.0 * SHAPE.block_n, MAP)
        bracket = narrowed_by_all(Bracket(low, high, under_low, base), bounds, sums, need, MAP)
        low, high, under_low, _ = bracket
        step += 1
        go = some(open & crowded(bracket, need, top, unit, NEAR, MAP)) & (step < GUESSES)
    return low, under_low


@triton.jit
def not_constant(top, mass, MAP: tl.constexpr):
    """Return top, as a result of the loop that needs it.

    Otherwise the compiler computes the masses of kept scores before the loop, which takes as many
    registers as the scores.
    """
    return top + mass * 0.0 if MAP.kind == "top-p-softmax" else top


@triton.jit
def some(rows):
    """Whether any row is true."""
    return tl.max(rows.to(tl.int32), 0) > 0


@triton.jit
def stepped(
    results, near, under, lists, ends, bracket, need, top, block,
    MAP: tl.constexpr, FLAGS: tl.constexpr, SHAPE: tl.constexpr,
):  # fmt: skip
    """Step over the kept or collected scores from `near` on, of amount `under`, to the results.

    Rows stop early at `ends`, from where on scores are missing.
    """
    open, fixed, value, amount, beside = results
    before = near
    least = tl.where(fixed, value, near)
    going = open
    go = some(going)
    while go:
        if SHAPE.kept > 0:
            least, count = next_kept(block, least, MAP, FLAGS, SHAPE)
        else:
            least = tl.min(lists[0], 1)
            hit = lists[0] == least[:, None]
            count = tl.sum(hit.to(tl.float32), 1)
            lists = without(lists, hit)
        if MAP.kind == "top-p-softmax":
            count *= mass_of(least, top, block.site.unit)
        more = under + count
        last = least >= bracket.high  # no score is missing in between
        complete = (least < ends) | last | (ends == float("inf"))
        sought = going & (fixed == 0)
        hits = sought & complete & (last | reaches(more, need, MAP))
        passed = sought & complete & (hits == 0)
        before = tl.where((passed | hits) & (least > near), near, before)
        near, under = tl.where(passed, least, near), tl.where(passed, more, under)
        if MAP.kind == "top-p-softmax":
            done = hits
            beside = tl.where(hits, before, beside)
        else:
            again = going & fixed & (least == value) & (value < bracket.high)
            amount = tl.where(again, amount + count, amount)
            beyond = going & fixed & (least > value)
            done = beyond & (least <= ends)
            beside = tl.where(done, least, beside)
            going = going & (beyond == 0)
        value = tl.where(hits, least, value)
        amount = tl.where(hits, tl.where(last, bracket.under_high, more), amount)
        fixed = fixed | hits
        open = open & (done == 0)
        going = going & open & ((sought & (complete == 0)) == 0)
        go = some(going)
    return Results(open, fixed, value, amount, beside), near, under


@triton.jit
def search(block, need, theta, found, MAP: tl.constexpr, FLAGS: tl.constexpr, SHAPE: tl.constexpr):
    """Find the least score of a row whose amount reaches `need`, the maximum if none.

    Also returns the amount up to it, and for r-softmax the next score, infinity if none. For
    top-p-softmax this is a number below the result, but not below the scores less than it.
    """
    unit, top = block.site.unit, found.top
    low, under_low = top * 0.0 - float("inf"), top * 0.0
    amount = found.mass if MAP.kind == "top-p-softmax" else found.n
    bracket = Bracket(low, top, under_low, amount)
    value, beside = top, -low if MAP.kind == "r-softmax" else low
    open = (top < float("inf")) & (found.n > 0.0)
    if MAP.kind == "r-softmax":
        open = open & (need < found.n)
    fixed = open & (top == float("inf"))  # rows whose value is known
    results = Results(open, fixed, value, amount, beside)
    stuck, known, pitch = fixed, low, under_low
    a, b, c, d = guessed(theta, need, found, unit, MAP)
    origin = top
    step = 0
    go = some(open)
    while go:
        few: tl.constexpr = NEAR if SHAPE.kept > 0 else FEW
        wide = crowded(bracket, need, top, unit, few, MAP)
        lap = 0
        sought = results.open & (results.fixed == 0)
        counts = some(sought & (wide | stuck))
        while counts:
            a = tl.where(stuck, known, a)
            e, f, g, h = amounts(block, (a, b, c, d), origin, found.n, MAP, FLAGS, SHAPE)
            origin = not_constant(origin, e, MAP)
            bracket = narrowed_by_all(bracket, (a, b, c, d), (e, f, g, h), need, MAP)
            if step == 0:
                pitch = (d - a) / tl.maximum(h - e, 0.5)
            a, b, c, d = thirds(bracket)
            if step < GUESSES:
                a, b, c, d = interpolated(bracket, need, found, pitch, unit, MAP)
            step += 1
            lap += 1
            wide = crowded(bracket, need, top, unit, few, MAP) & (bracket.high > known)
            counts = some(sought & wide) & (lap < LAP)
        near, under = bracket.low, bracket.under_low
        lists = ()
        ends = tl.full([SHAPE.block_m], float("inf"), tl.float32)  # none is missing below
        if SHAPE.kept == 0:
            lists = collected(block, bracket.low, MAP, FLAGS, SHAPE)
            ends = tl.min(lists[2], 1)
            near, under = approached(bracket, lists, sought, need, found, unit, MAP, SHAPE)
            for _ in tl.static_range(3):
                lists = without(lists, lists[0] <= near[:, None])
        results, near, under = stepped(
            results, near, under, lists, ends, bracket, need, top, block, MAP, FLAGS, SHAPE
        )
        missed = results.open & (results.fixed == 0)
        stuck = missed & (near == bracket.low)
        known = tl.where(missed, ends, known)
        low = tl.where(missed, near, bracket.low)
        low = tl.where(results.open & results.fixed, results.value, low)
        under_low = tl.where(missed, under, bracket.under_low)
        bracket = Bracket(low, bracket.high, under_low, bracket.under_high)
        go = some(results.open)
    return results.value, results.amount, results.beside


@triton.jit
def quantile(block, r, found, MAP: tl.constexpr, FLAGS: tl.constexpr, SHAPE: tl.constexpr):
    """Linear-interpolation quantile of a row's n valid x, as distance from the maximum.

    Returns the distance t, the order statistics below and above, whether they are tied, the share
    of the upper, and -dt / dr.
    """
    n = found.n
    position = r * tl.maximum(n - 1.0, 0.0)
    below = tl.floor(position * 1.00000011920929)  # `whole_below` of the mappings
    share = tl.maximum(position - below, 0.0)
    need = below + 1.0
    value, count, above = search(block, need, r, found, MAP, FLAGS, SHAPE)
    tied = (count > need) | (need >= n)
    gap = tl.where(tied | (n == 0.0), 0.0, above - value)
    t = tl.where(n == 0.0, 0.0, (found.top - value) - share * gap)
    return t, value, above, tied, tl.where(tied, 0.0, share), gap * (n - 1.0)


@triton.jit
def divided(state, given, x, columns, EDGE: tl.constexpr, MAP: tl.constexpr):
    """Step of `cut`: least score from `edge` on, and largest below it."""
    kept, dropped = state
    above = x >= given[0]
    kept = tl.minimum(kept, tl.where(above, x, float("inf")))
    return kept, tl.maximum(dropped, tl.where(above, float("-inf"), x))


@triton.jit
def cut(block, theta, found, MAP: tl.constexpr, FLAGS: tl.constexpr, SHAPE: tl.constexpr):
    """Find the least x that a truncated mapping keeps.

    It is half-way between the least score kept and a smaller number, because recomputed scores may
    differ in the last bits; -inf if none is dropped.
    """
    if MAP.kind == "top-p-softmax":
        need = (1.0 - theta) * found.mass
        kept, _, dropped = search(block, need, theta, found, MAP, FLAGS, SHAPE)
        return 0.5 * kept + 0.5 * dropped
    else:
        # least weight of a kept score, if that of the maximum is 1
        least = theta * found.mass
        if MAP.kind == "max-gap":
            least = tl.where(found.n > 0.0, theta / tl.maximum(found.n, 1.0), 0.0)
        edge = found.top + tl.minimum(tl.log(least), 0.0) / block.site.unit
        state = (blank(float("inf"), SHAPE), blank(float("-inf"), SHAPE))
        state = sweep(divided, state, (edge[:, None],), block, False, MAP, FLAGS, SHAPE)
        kept, dropped = tl.min(state[0], 1), tl.max(state[1], 1)
        if FLAGS.sink:
            x, columns = sink_of(block.site, SHAPE)
            state = (x * 0.0 + float("inf"), x * 0.0 - float("inf"))
            state = divided(state, (edge[:, None],), x, columns, False, MAP)
            kept = tl.minimum(kept, tl.min(state[0], 1))
            dropped = tl.maximum(dropped, tl.max(state[1], 1))
        return 0.5 * kept + 0.5 * dropped
