"""Independent references: one row, numpy float64, log-probabilities straight from the formula.

Nothing here is shared with the library: projections and entmax are solved by bracketing their
threshold (scipy's brentq), the quantile is numpy's, PLIF is interpolated between its knots.
A function receives the valid entries of one row only, so it has no notion of a mask.
"""

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit, log_expit, log_softmax, logsumexp


def log(x):
    """log with log(0) = -inf and no warning."""
    with np.errstate(divide="ignore"):
        return np.log(x)


def maxima_share(z):
    top = z == z.max()
    return log(top / top.sum())


def softmax(z):
    return log_softmax(z)


def weighted_softmax(z, weights):
    """p = w e^z / sum w e^z."""
    score = z + log(weights)
    return score - logsumexp(score)


def gated_softmax(z):
    """weighted softmax whose weights are 1 + sigmoid(2z), so that they move with the scores."""
    return weighted_softmax(z, 1 + expit(2 * z))


def t_softmax(z, t):
    """w = relu(z - max + t), p = w e^z / sum; t = 0 and t = inf are the two limits."""
    if t == 0:
        return maxima_share(z)
    if np.isinf(t):
        return softmax(z)
    return weighted_softmax(z, np.maximum(z - z.max() + t, 0))


def r_softmax(z, r):
    """t-softmax with w = relu(z - quantile(z, r)); 0/0 means that the maxima share."""
    ordered = np.sort(z)
    position = r * (len(z) - 1)
    low = min(int(np.floor(position)), len(z) - 1)
    high = min(low + 1, len(z) - 1)
    quantile = ordered[low] + (position - low) * (ordered[high] - ordered[low])
    weights = np.maximum(z - quantile, 0)
    return weighted_softmax(z, weights) if weights.any() else maxima_share(z)


def threshold(excess, low, high):
    """The root of the decreasing function `excess`, to the last bits of float64."""
    return brentq(excess, low, high, xtol=1e-300, rtol=4 * np.finfo(float).eps, maxiter=500)


def sparsemax(z):
    """argmin over the simplex of |p - z|^2: p = relu(z - tau) with sum p = 1."""
    z = z - z.max()
    tau = threshold(lambda tau: np.maximum(z - tau, 0).sum() - 1, -1.0, -1 / len(z) / 2)
    return log(np.maximum(z - tau, 0))


def sparsegen(z, lam):
    """argmin |p - z|^2 - lam |p|^2: the optimality condition is p (1 - lam) = relu(z - tau)."""
    z, slope = z - z.max(), 1 - lam
    tau = threshold(lambda tau: np.maximum(z - tau, 0).sum() - slope, -slope, 0.0)
    return log(np.maximum(z - tau, 0) / slope)


def scaled_sparsemax(z, q, total):
    """sparsemax(a z), a = (1 + n q) / (total + n q); a denominator <= 0 means that maxima share."""
    denominator = total + len(z) * q
    if denominator <= 0:
        return maxima_share(z)
    return sparsemax(z * (1 + len(z) * q) / denominator)


def sparsecone(z, q):
    return scaled_sparsemax(z, q, z.sum())


def sparsehourglass(z, q):
    return scaled_sparsemax(z, q, abs(z.sum()))


def entmax(z, alpha):
    """p = relu((alpha - 1) z - tau)^(1 / (alpha - 1)) with sum p = 1; alpha = 1 is softmax."""
    if alpha == 1:
        return softmax(z)
    slope = alpha - 1
    x = slope * (z - z.max())

    def log_p(tau):
        return log(np.maximum(x - tau, 0)) / slope

    tau = threshold(lambda tau: np.exp(log_p(tau)).sum() - 1, -1.0, 0.0)
    return log_p(tau) - logsumexp(log_p(tau))


def sigsoftmax(z, bias=0.0):
    """g = e^z sigmoid(z + b)."""
    return log_softmax(z + log_expit(z + bias))


def taylor_softmax(z):
    """g = 1 + z + z^2/2."""
    g = 1 + z + z**2 / 2
    return log(g) - log(g.sum())


def spherical_softmax(z, eps=0.0198, center=0.0):
    """g = (z - center)^2 + eps; eps = 0 with z = center is 0/0 and means uniform."""
    g = (z - center) ** 2 + eps
    return log(g) - log(g.sum()) if g.any() else np.full(len(z), -np.log(len(z)))


def softmax_abs(z):
    return log_softmax(np.abs(z))


def normalized_relu(z):
    """g = max(0, z); no positive entry is 0/0 and means uniform."""
    g = np.maximum(z, 0)
    return log(g / g.sum()) if g.any() else np.full(len(z), -np.log(len(z)))


def normalized_sigmoid(z):
    return log_softmax(log_expit(z))


def softplus(x):
    return np.logaddexp(0, x)


def plif_curve(x, raw_slopes, bound):
    """The piecewise linear f with slopes softplus(raw_slopes) between K + 1 knots on +-bound."""
    slopes = softplus(np.asarray(raw_slopes, dtype=float))
    knots = np.linspace(-bound, bound, len(slopes) + 1)
    heights = slopes[0] * knots[0] + np.concatenate([[0], np.cumsum(slopes * np.diff(knots))])
    inside = np.interp(x, knots, heights)
    below = slopes[0] * np.minimum(x + bound, 0)
    above = slopes[-1] * np.maximum(x - bound, 0)
    return inside + below + above


def plif(z, raw_slopes, bound=20.0):
    return log_softmax(plif_curve(z, raw_slopes, bound))


def monotone_curve(x, raw_gain, raw_slope, offset):
    """f(x) = sum_k softplus(gain_k) sigmoid(softplus(slope_k) x + offset_k)."""
    units = zip(raw_gain, raw_slope, offset, strict=True)
    return sum(softplus(gain) * expit(softplus(slope) * x + b) for gain, slope, b in units)


def monotone(z, raw_gain, raw_slope, offset):
    return log_softmax(monotone_curve(z, raw_gain, raw_slope, offset))


def temperature_softmax(z, temperature):
    return log_softmax(z / temperature)


def softmax_of(z, kept):
    """softmax of the kept entries, -inf elsewhere."""
    result = np.full(len(z), -np.inf)
    result[kept] = log_softmax(z[kept])
    return result


def top_k_softmax(z, k):
    """Who is not below the ceil(k)-th largest stays."""
    last = int(np.ceil(min(k, len(z))))
    return softmax_of(z, z >= np.sort(z)[-last])


def top_p_softmax(z, p):
    """The smallest set of largest shares with mass at least p, grown one by one; ties stay."""
    share = np.exp(softmax(z))
    order = np.argsort(-share, kind="stable")
    size = 1
    while size < len(z) and share[order[size:]].sum() > 1 - p:
        size += 1
    return softmax_of(z, share >= share[order[size - 1]])


def threshold_softmax(z, lam):
    share = np.exp(softmax(z))
    return softmax_of(z, (share >= lam) | (z == z.max()))


def max_gap(z, a):
    """Keep shares of at least a / n of the largest one."""
    share = np.exp(softmax(z))
    return softmax_of(z, (share >= a / len(z) * share.max()) | (z == z.max()))


def adaptive_temperature(z):
    log_share = softmax(z)
    entropy = -(np.exp(log_share) * log_share).sum()
    beta = np.polyval([-0.037, 0.481, -2.3, 4.917, -1.791], entropy)
    return softmax(z * max(beta, 1.0) if entropy > 0.5 else z)


def softpick(z):
    """|e^z - 1| as e^(max(z, 0)) (1 - e^-|z|)."""
    size = np.maximum(z, 0) + log(-np.expm1(-np.abs(z)))
    total = logsumexp(np.append(size, np.log(1e-8) + max(z.max(), 0)))
    return np.where(z > 0, size - total, -np.inf)


def clipped_softmax(z, gamma=None, zeta=1.0, alpha=0.25):
    low = -alpha / len(z) if gamma is None else gamma
    return log(np.clip((zeta - low) * np.exp(softmax(z)) + low, 0, 1))


def sigmoid(z, bias=None):
    return log_expit(z + (-np.log(len(z)) if bias is None else bias))


def relu(z):
    return log(np.maximum(z, 0) / len(z))


def murmur(z):
    """fmix32 of MurmurHash3 (Appleby) of the bits of each score as a float32, -0 as 0."""
    h = (z.astype(np.float32) + np.float32(0)).view(np.uint32)
    h = (h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    h = (h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return h ^ (h >> np.uint32(16))


def random_drop_softmax(z, r):
    """The floor(r (n - 1)) + 1 lowest hashes go, all but one at the most; ties stay together."""
    dropped = min(int(np.floor(r * (len(z) - 1))) + 1, len(z) - 1) if r > 0 else 0
    hashes = murmur(z)
    return softmax_of(z, hashes >= np.sort(hashes)[dropped])


def mixed(reference):
    """(1 - mix) softmax + mix p, of the reference for p."""

    def log_p(z, mix, **params):
        return np.logaddexp(log(1 - mix) + softmax(z), log(mix) + reference(z, **params))

    return log_p


def scaled(reference):
    """NAME((delta + beta (log n)^gamma) z)."""

    def log_p(z, *, delta=0.0, beta=0.43, gamma=1.0, **params):
        return reference((delta + beta * np.log(len(z)) ** gamma) * z, **params)

    return log_p


def with_sink(reference):
    """NAME((z, sink)) without its last entry."""

    def log_p(z, *, sink, **params):
        return reference(np.append(z, sink), **params)[:-1]

    return log_p
