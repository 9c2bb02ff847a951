"""Statistics of a row, which its weights depend on besides their score."""

import triton
import triton.language as tl

from sparse_attn.kernels.triton.maps import TINY, adapted, nan_of, reach_of
from sparse_attn.kernels.triton.names import Solved, Statistics
from sparse_attn.kernels.triton.passes import blank, mass_of, project, survey, sweep
from sparse_attn.kernels.triton.projections import COLD, temperature_of, varies
from sparse_attn.kernels.triton.scores import sink_of
from sparse_attn.kernels.triton.search import cut, quantile
from sparse_attn.kernels.triton.unnormalized import free_statistics


@triton.jit
def statistics(block, theta, MAP: tl.constexpr, FLAGS: tl.constexpr, SHAPE: tl.constexpr):
    """Compute the statistics of a row, without the sum of a threshold or truncated row."""
    found = survey(block, MAP, FLAGS, SHAPE)
    unit, top, zero = block.site.unit, found.top, found.n * 0.0
    spoiled = top - top + nan_of(theta)
    if MAP.family == "threshold":
        return threshold_statistics(block, found, spoiled, theta, MAP, FLAGS, SHAPE)
    elif MAP.kind == "adaptive-temperature":
        log_total, entropy = entropy_of(block, found, MAP, FLAGS, SHAPE)
        beta, _ = adapted(entropy)
        edge = zero - float("inf")
        stats = Statistics(top, beta, edge, log_total, entropy, zero, zero, spoiled)
        return Solved(stats, edge, log_total, zero, zero)
    elif MAP.family == "truncated":
        edge = cut(block, theta, found, MAP, FLAGS, SHAPE)
        stats = Statistics(top, zero, edge, zero, zero, zero, zero, spoiled)
        return Solved(stats, edge, zero, zero, zero)
    elif MAP.family == "free":
        a, b, c, d = free_statistics(found.mass, top * unit, found.n, theta, MAP)
        low = tl.where(top > 0.0, top, float("inf"))  # only used for softpick's maximum
        stats = Statistics(a + spoiled, b, c, d, zero, zero, zero, zero)
        return Solved(stats, c, d, low, low)
    else:
        total = found.total * unit
        temperature, by_total, by_theta = temperature_of(total, found.n, theta, MAP)
        slack = zero
        if varies(MAP.kind):
            slack = slack_below(block, top, temperature == 0.0, MAP, FLAGS, SHAPE)
        tau = project(block, found, temperature, slack, theta, MAP, FLAGS, SHAPE)
        by_total = tl.where(temperature == 0.0, slack, by_total)
        stats = Statistics(top, temperature, tau + spoiled, slack, by_theta, zero, zero, zero)
        return Solved(stats, stats.c, by_total, zero, zero)


@triton.jit
def with_moment(state, given, x, columns, EDGE: tl.constexpr, MAP: tl.constexpr):
    """Step of `entropy_of`: the sum of e^(s - max s) (s - max s)."""
    top, unit = given
    moment = mass_of(x, top, unit) * ((x - top) * unit)
    return (state[0] + tl.sum(tl.where(x == float("-inf"), 0.0, moment), 1),)


@triton.jit
def entropy_of(block, found, MAP: tl.constexpr, FLAGS: tl.constexpr, SHAPE: tl.constexpr):
    """Return log sum e^(s - max s) of softmax(s), and its entropy."""
    given = (found.top[:, None], block.site.unit)
    state = (found.top * 0.0,)
    (moment,) = sweep(with_moment, state, given, block, False, MAP, FLAGS, SHAPE)
    if FLAGS.sink:
        x, columns = sink_of(block.site, SHAPE)
        (moment,) = with_moment((moment,), given, x, columns, False, MAP)
    total = tl.where(found.mass > 0.0, found.mass, 1.0)
    return tl.log(total), tl.log(total) - moment / total


@triton.jit
def lower(state, given, x, columns, EDGE: tl.constexpr, MAP: tl.constexpr):
    """Step of `slack_below`: the largest score below the maximum."""
    (largest,) = state
    return (tl.maximum(largest, tl.where(x < given[0], x, float("-inf"))),)


@triton.jit
def slack_below(
    block, top, cold, MAP: tl.constexpr, FLAGS: tl.constexpr, SHAPE: tl.constexpr
):  # fmt: skip
    """Half the distance from the maximum to the next score in `cold` rows, else 0.

    The backward kernels recompute the scores and must find the same maxima: not a nearby score, and
    at least one.
    """
    slack = top * 0.0
    if tl.max(cold.to(tl.int32), 0) > 0:
        given = (top[:, None],)
        (below,) = sweep(
            lower, (blank(float("-inf"), SHAPE),), given, block, False, MAP, FLAGS, SHAPE
        )
        largest = tl.max(below, 1)
        if FLAGS.sink:
            x, columns = sink_of(block.site, SHAPE)
            (below,) = lower((x * 0.0 - float("inf"),), given, x, columns, False, MAP)
            largest = tl.maximum(largest, tl.max(below, 1))
        half = tl.minimum(0.5 * top - 0.5 * largest, COLD)
        slack = tl.where(cold, half, slack)
    return slack


@triton.jit
def threshold_statistics(
    block, found, spoiled, theta, MAP: tl.constexpr, FLAGS: tl.constexpr, SHAPE: tl.constexpr
):  # fmt: skip
    top, unit, zero = found.top, block.site.unit, found.n * 0.0
    if MAP.kind == "r-softmax":
        t, low, above, tied, share, by_r = quantile(block, theta, found, MAP, FLAGS, SHAPE)
        high = tl.where(tied, float("inf"), above)
        edge = above
        between = 0.5 * low + 0.5 * above
    else:
        t, low, high, share, by_r = theta / unit + zero, top, top, zero, zero
        edge = top - reach_of(t)
        between = edge
    # 1 / t overflows below
    cold = t < TINY
    reach = reach_of(t)
    slack = slack_below(block, top, cold, MAP, FLAGS, SHAPE)
    # between adjacent floats there is no number, and the half may round to the lower one
    coldest = tl.where(top - slack > top - 2.0 * slack, top - slack, top)
    edge = tl.where(cold, coldest, edge)
    share = tl.where(cold, 0.0, share)
    stats = Statistics(top, reach, edge, share, by_r * unit, zero, zero, spoiled)
    return Solved(stats, tl.where(cold, coldest, between), share, low, high)
