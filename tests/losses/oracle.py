"""The losses from their formulas: one row at a time, in Python loops and float64, slow and plain.

`z` is one row of scores, `eta` the target distribution over the same classes and `y` its labels, 0
or 1. The mappings are those of tests/mappings/rows.py and bounds are found by a general minimiser,
so that nothing here is shared with the library, its solutions in closed form least of all.
"""

import math

import numpy
from scipy.optimize import brentq
from scipy.special import logsumexp

from tests.mappings import rows


def each_row(function, scores, target, mask=None, **parameters):
    """`function(z, eta)` of every row of float arrays (..., n), on the classes of its mask."""
    scores, target = numpy.asarray(scores, dtype=float), numpy.asarray(target, dtype=float)
    mask = numpy.broadcast_to(True if mask is None else mask, scores.shape)
    losses = numpy.zeros(scores.shape[:-1])
    for row in numpy.ndindex(losses.shape):
        keep = mask[row]
        if keep.any():
            losses[row] = function(scores[row][keep], target[row][keep], **parameters)
    return losses


def log_probabilities(mapping, z, *values, **parameters):
    """log p of one row, by the reference of that name."""
    function = getattr(rows, mapping.replace("-", "_"))
    return function(numpy.asarray(z, dtype=float), *values, **parameters)


def probabilities(mapping, z, *values):
    return numpy.exp(log_probabilities(mapping, z, *values))


def distribution(weights):
    """Label weights over their sum; zeros where no class has one."""
    total = sum(weights)
    return [w / total if total > 0 else 0.0 for w in weights]


def one_hot(classes, n):
    """(...) class indices as (..., n) label weights; a negative one has none."""
    return (numpy.asarray(classes)[..., None] == numpy.arange(n)).astype(float)


def slope(function, z, h=1e-6):
    """The gradient by central differences, [n], and how far a kink makes either side differ."""
    z = numpy.asarray(z, dtype=float)
    steps = h * numpy.eye(len(z))
    ahead = numpy.array([(function(z + step) - function(z)) / h for step in steps])
    behind = numpy.array([(function(z) - function(z - step)) / h for step in steps])
    return (ahead + behind) / 2, numpy.abs(ahead - behind).max()


# Losses of mappings with zeros; a row without labels has none to learn from


def sparsemax_loss(z, eta):
    """1/2 |z - eta|^2 - 1/2 |z - p|^2: how much farther than the projection the target is."""
    if sum(eta) == 0:
        return 0.0
    eta, top = distribution(eta), max(z)  # the top taken off keeps the digits of the squares
    return sum(
        ((x - top - e) ** 2 - (x - top - p) ** 2) / 2
        for x, e, p in zip(z, eta, probabilities("sparsemax", z), strict=True)
    )


def entmax_loss(z, eta, alpha):
    """<p - eta, z> + H(p) - H(eta)."""
    if sum(eta) == 0:
        return 0.0
    eta, p, top = distribution(eta), probabilities("entmax", z, alpha), max(z)
    gain = sum((a - e) * (x - top) for a, e, x in zip(p, eta, z, strict=True))
    return gain + tsallis_entropy(p, alpha) - tsallis_entropy(eta, alpha)


def tsallis_entropy(p, alpha):
    if alpha == 1:
        return -sum(x * math.log(x) for x in p if x > 0)
    return sum(x - x**alpha for x in p) / (alpha * (alpha - 1))


def hinge(z, eta, a):
    """Pairs of positives keep a distance, and every positive one from every negative."""
    eta, loss = distribution(eta), 0.0
    for i in range(len(z)):
        for j in range(len(z)):
            if i < j and eta[i] > 0 and eta[j] > 0:
                loss += abs((eta[i] - eta[j]) / a - (z[i] - z[j]))
            if eta[i] > 0 and eta[j] == 0:
                loss += max(0.0, eta[i] / a - (z[i] - z[j]))
    return loss


def sparsegen_hinge(z, eta, lam=0.0):
    return hinge([x / (1 - lam) for x in z], eta, 1.0)


def hourglass_scale(z, q):
    return (1 + len(z) * q) / (abs(sum(z)) + len(z) * q)


def sparsehourglass_hinge(z, eta, q):
    return hinge(z, eta, hourglass_scale(z, q))


def matched(z, y, p):
    """|y (p - eta)|^2 + sum over y_i = 1, y_j = 0 of max(0, eta_i - (z_i - z_j))."""
    eta, loss = distribution(y), 0.0
    for i in range(len(z)):
        if y[i] == 1:
            loss += (p[i] - eta[i]) ** 2
            loss += sum(max(0.0, eta[i] - (z[i] - z[j])) for j in range(len(z)) if y[j] == 0)
    return loss


def r_softmax_loss(z, y, r):
    return matched(z, y, probabilities("r-softmax", z, r))


def t_softmax_loss(z, y, t):
    return matched(z, y, probabilities("t-softmax", z, t))


def label_count_loss(count_logits, y):
    """Cross entropy of the class sum y among 0 .. n."""
    return logsumexp(count_logits) - count_logits[round(sum(y))]


# Losses of dense mappings


def nll(z, eta, mapping, **parameters):
    """-sum eta log p."""
    log_p = log_probabilities(mapping, z, **parameters)
    return -sum(e * x for e, x in zip(distribution(eta), log_p, strict=True) if e > 0)


def squared_error(z, eta):
    return sum((x - e) ** 2 for x, e in zip(z, distribution(eta), strict=True)) / 2


# Bouchard's bounds of log-sum-exp


def bouchard(z, alpha, xi):
    """The bound at any alpha and xi, [n] or one for all."""
    bound = alpha
    for x, width in zip(z, numpy.broadcast_to(xi, len(z)), strict=True):
        curve = math.tanh(width / 2) / (4 * width) if abs(width) > 1e-4 else 1 / 8
        bound += (x - alpha - width) / 2 + curve * ((x - alpha) ** 2 - width**2)
        bound += numpy.logaddexp(0, width)
    return bound


def bouchard_loss(z, eta, xi="shared", alpha=None):
    """The bound less <eta, z>; what is not given is the best of its kind."""
    z, eta = numpy.asarray(z, dtype=float), distribution(eta)
    if isinstance(xi, str) and alpha is None:
        bound = BOUCHARD_LEAST[xi](z)
    else:
        alpha = bouchard_alpha(z, xi) if alpha is None else alpha
        bound = bouchard(z, alpha, bouchard_width(z, xi, alpha))
    return bound - sum(e * x for e, x in zip(eta, z, strict=True))


def bouchard_alpha(z, xi):
    """The best alpha at a given xi, a number."""
    curve = math.tanh(xi / 2) / (4 * xi) if abs(xi) > 1e-4 else 1 / 8
    return ((len(z) - 2) / 4 + curve * sum(z)) / (curve * len(z))


def bouchard_width(z, xi, alpha):
    """xi, or the best of its kind at a given alpha."""
    if xi == "shared":
        return math.sqrt(((z - alpha) ** 2).mean())
    return numpy.abs(z - alpha) if xi == "per_class" else xi


def bouchard_least_per_class(z):
    """The least bound with xi_k = |z_k - alpha|: alpha + sum softplus(z_k - alpha)."""
    z = numpy.asarray(z, dtype=float)

    def rise(alpha):  # of the bound, which is convex in alpha
        return 1 - sum(0.5 + 0.5 * math.tanh((x - alpha) / 2) for x in z)

    if len(z) == 1:
        return z[0]  # alpha and the widths go to infinity
    alpha = brentq(rise, z.min() - 1, z.max() + 2 + math.log(len(z)), xtol=1e-13)
    return alpha + numpy.logaddexp(0, z - alpha).sum()


def bouchard_least_shared(z):
    """The least bound with xi^2 = mean of (z_k - alpha)^2."""
    z = numpy.asarray(z, dtype=float)
    n, mean = len(z), z.mean()
    if n == 1:
        return z[0]

    def width(alpha):
        return math.sqrt(((z - alpha) ** 2).mean())

    def rise(alpha):
        xi = width(alpha)
        slope = math.tanh(xi / 2) / (2 * xi) if xi > 0 else 1 / 4
        return 1 - n / 2 + n * slope * (alpha - mean)

    far = (1 + z.std()) * n + 20
    alpha = brentq(rise, mean - far, mean + far, xtol=1e-13)
    xi = width(alpha)
    return alpha + n * ((mean - alpha - xi) / 2 + numpy.logaddexp(0, xi))


BOUCHARD_LEAST = {"shared": bouchard_least_shared, "per_class": bouchard_least_per_class}
