"""Heads written out in full: every score of every word at once, formulas of the papers, float64.

Nothing here is shared with the library but the parameters, so that gradients can be compared.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sparse_attn import Mapping, functional
from sparse_attn.heads import AdaptiveHead, Head, LinearHead, MixtureHead

VOCAB, HIDDEN, BOUND, COMPONENTS = 11, 5, 8.0, 3
WORDS, CUTOFFS = 17, (4, 9, 12)  # of adaptive heads
IGNORED = -100

# Rounding of float64 (2e-16) times the few hundred terms of these sums.
FLOAT64 = {"rtol": 1e-10, "atol": 1e-12}

# gradcheck: central differences with step 1e-6 are good to about 1e-9. It asks for every gradient
# twice, and the second time a mean is divided before it is summed.
CHECK = {"atol": 1e-6, "rtol": 1e-4, "nondet_tol": 1e-12}

WORD_WEIGHTS = tuple(0.25 * (1 + word % 5) for word in range(VOCAB))


@dataclass(frozen=True)
class Case:
    """A mapping, and its log g(z), or log p, given the module's raw parameters."""

    name: str
    log_g: Callable[[Tensor, Mapping], Tensor]
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        shown = [*self.options.get("learn", []), *([1.2] if "alpha" in self.options else [])]
        return "-".join([self.name, *(f"{value}" for value in shown)])

    @property
    def mapping(self) -> Mapping:
        """A new one, with the parameters it starts from."""
        return Mapping(self.name, **self.options)

    @property
    def alpha(self) -> float:
        """Of the loss of a sparse mapping."""
        return 2.0 if self.name == "sparsemax" else self.options.get("alpha", 1.5)

    def log_prob(self, scores: Tensor, mapping: Mapping) -> Tensor:
        """log g - log sum g, [..., V]."""
        log_g = self.log_g(scores, mapping)
        return log_g - log_g.logsumexp(-1, keepdim=True)


def log_sigmoid(z: Tensor) -> Tensor:
    return -torch.log1p(torch.exp(-z))


def plif_curve(z: Tensor, mapping: Mapping) -> Tensor:
    """f(z) - f(-T) = sum_j s_j |part of [-T, z] in bin j|, the end bins open to infinity."""
    slopes = F.softplus(mapping.raw_slopes)  # [K]
    count = len(slopes)
    bound = mapping.value("bound")
    left = torch.linspace(-bound, bound, count + 1, dtype=z.dtype)[:-1]
    width = 2 * bound / count
    inside = (z.unsqueeze(-1) - left).clamp(0, width)  # [..., K]
    below = slopes[0] * (z + bound).clamp(max=0)
    above = slopes[-1] * (z - bound).clamp(min=0)
    return (inside * slopes).sum(-1) + below + above


def monotone_curve(z: Tensor, mapping: Mapping) -> Tensor:
    """f(z) = sum_k v_k sigma(u_k z + b_k)."""
    gain, slope = F.softplus(mapping.raw_gain), F.softplus(mapping.raw_slope)
    return sum(
        v * torch.sigmoid(u * z + b) for v, u, b in zip(gain, slope, mapping.offset, strict=True)
    )


CASES = [
    Case("softmax", lambda z, m: z),
    Case("sigsoftmax", lambda z, m: z + log_sigmoid(z)),
    Case("sigsoftmax", lambda z, m: z + log_sigmoid(z + m.raw_bias), {"learn": ["bias"]}),
    Case("taylor-softmax", lambda z, m: (1 + z + z**2 / 2).log()),
    Case("spherical-softmax", lambda z, m: (z**2 + 0.0198).log()),
    Case(
        "spherical-softmax",
        lambda z, m: ((z - m.raw_center) ** 2 + F.softplus(m.raw_eps)).log(),
        {"center": 0.75, "learn": ["eps", "center"]},
    ),
    Case("softmax-abs", lambda z, m: z.abs()),
    Case("normalized-sigmoid", lambda z, m: log_sigmoid(z)),
    Case("temperature-softmax", lambda z, m: z / 0.7, {"temperature": 0.7}),
    Case(
        "temperature-softmax",
        lambda z, m: z / (1e-3 + F.softplus(m.raw_temperature)),
        {"learn": ["temperature"]},
    ),
    Case(
        "weighted-softmax",
        lambda z, m: z + torch.tensor(WORD_WEIGHTS, dtype=z.dtype).log(),
        {"weights": WORD_WEIGHTS},
    ),
    Case("plif", plif_curve, {"knots": 9, "bound": BOUND}),
    Case("monotone", monotone_curve, {"units": 3}),
]
SPARSE = [
    Case("sparsemax", lambda z, m: functional.sparsemax(z, log=True)),
    Case("entmax", lambda z, m: functional.entmax(z, 1.5, log=True)),
    Case("entmax", lambda z, m: functional.entmax(z, 1.2, log=True), {"alpha": 1.2}),
]
BY_NAME = {str(case): case for case in CASES}
LEARNED = [case for case in CASES if list(case.mapping.parameters())]


def randomise(module: nn.Module, scale: float = 0.5) -> None:
    """Normal values for every parameter, zero biases and equal slopes included."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=scale)


def linear_head(case: Case, **options: Any) -> LinearHead:
    """A float64 LinearHead with random parameters."""
    head = LinearHead(HIDDEN, VOCAB, case.mapping, **options).double()
    randomise(head)
    return head


def mixture_head(case: Case, components: int = COMPONENTS, **options: Any) -> MixtureHead:
    """A float64 MixtureHead with random parameters."""
    head = MixtureHead(HIDDEN, VOCAB, case.mapping, components, **options).double()
    randomise(head)
    return head


def adaptive_head(case: Case, hidden: int = HIDDEN, **options: Any) -> AdaptiveHead:
    """A float64 AdaptiveHead with random parameters."""
    options = {"cutoffs": CUTOFFS, "div_value": 1.5, **options}
    head = AdaptiveHead(hidden, WORDS, mapping=case.mapping, **options).double()
    randomise(head)
    return head


@dataclass(frozen=True)
class Problem:
    """A kind of head with a mapping."""

    make: Callable[..., Head]
    case: Case

    def __str__(self) -> str:
        return f"{self.make.__name__}-{self.case}"

    def head(self, **options: Any) -> Any:
        """A new one."""
        return self.make(self.case, **options)

    def log_prob(self, head: Head, hidden: Tensor) -> Tensor:
        """Its log p written out."""
        return dense_log_prob(self.case, head, hidden)

    def losses(self, head: Any, hidden: Tensor, targets: Tensor) -> Tensor:
        """What it is trained by, written out for targets that all count."""
        if self.case in SPARSE:
            return dense_entmax_loss(head.scores(hidden), targets, self.case.alpha)
        log_p = self.log_prob(head, hidden)
        return -(F.one_hot(targets, head.vocab).to(log_p) * log_p).sum(-1)

    def loss(self, head: Head, hidden: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
        """Its losses where the targets are not ignored, reduced."""
        kept = targets != IGNORED
        losses = self.losses(head, hidden, targets.where(kept, 0)) * kept
        if reduction == "none":
            return losses
        return losses.sum() if reduction == "sum" else losses.sum() / kept.sum()


PROBLEMS = [
    Problem(make, case)
    for make in (linear_head, mixture_head, adaptive_head)
    for case in CASES
    if make is not adaptive_head or case.name != "weighted-softmax"
]
SPARSE_PROBLEMS = [Problem(linear_head, case) for case in SPARSE]
FEW_PROBLEMS = [
    Problem(linear_head, BY_NAME["softmax"]),
    Problem(linear_head, BY_NAME["plif"]),
    Problem(mixture_head, BY_NAME["sigsoftmax"]),
    Problem(mixture_head, BY_NAME["plif"]),
    Problem(adaptive_head, BY_NAME["sigsoftmax-bias"]),
]


def random_hidden(*shape: int, grad: bool = True) -> Tensor:
    """[*shape, hidden] float64."""
    return torch.randn(*shape, HIDDEN, dtype=torch.float64).requires_grad_(grad)


def random_targets(*shape: int, ignored: bool = True, words: int = VOCAB) -> Tensor:
    """Words of the vocabulary, about a quarter of them replaced by the ignored index."""
    targets = torch.randint(words, shape)
    return torch.where(torch.rand(shape) < 0.25, IGNORED, targets) if ignored else targets


def dense_scores(head: LinearHead | MixtureHead, hidden: Tensor) -> Tensor:
    """W h + b as a sum over the hidden units."""
    scores = (hidden.unsqueeze(-2) * head.weight).sum(-1)
    return scores if head.bias is None else scores + head.bias


def dense_log_prob(case: Case, head: Any, hidden: Tensor, prior: str | None = None) -> Tensor:
    """log p, [..., V]: of a mixture with this prior, of an adaptive head word by word."""
    if isinstance(head, LinearHead):
        return case.log_prob(dense_scores(head, hidden), head.mapping)
    if isinstance(head, MixtureHead):
        prior = prior or ("sigsoftmax" if case.name == "sigsoftmax" else "softmax")
        p = case.log_prob(dense_scores(head, dense_latents(head, hidden)), head.mapping).exp()
        share = dense_log_prior(head, hidden, prior).exp().unsqueeze(-1)
        return (share * p).sum(-2).log()
    log_q = dense_log_prob(case, head.shortlist, hidden)
    parts = [log_q[..., : head.cutoffs[0]]]
    for number, cluster in enumerate(head.clusters, head.cutoffs[0]):
        projected = hidden @ cluster.projection.weight.T
        parts.append(log_q[..., number, None] + dense_log_prob(case, cluster.head, projected))
    return torch.cat(parts, -1)


def dense_log_prior(head: MixtureHead, hidden: Tensor, prior: str) -> Tensor:
    """log pi, [..., components]; no bias."""
    scores = (hidden.unsqueeze(-2) * head.prior.weight).sum(-1)
    log_g = {"softmax": scores, "sigsoftmax": scores + log_sigmoid(scores)}[prior]
    return log_g - log_g.logsumexp(-1, keepdim=True)


def dense_latents(head: MixtureHead, hidden: Tensor) -> Tensor:
    """tanh(U_k h + c_k), [..., components, latent]."""
    count, size = head.components, head.weight.shape[1]
    rows = (hidden.unsqueeze(-2) * head.latent.weight).sum(-1) + head.latent.bias
    return torch.tanh(rows.unflatten(-1, (count, size)))


def dense_entmax_loss(scores: Tensor, targets: Tensor, alpha: float) -> Tensor:
    """(p - e_c) . z + H(p), with Tsallis' H = sum (p - p^alpha) / (alpha (alpha - 1)).

    Blondel, Martins and Niculae 2019; a p that is held constant does not change the gradient.
    """
    p = functional.entmax(scores.detach(), alpha)
    entropy = (p - p**alpha).sum(-1) / (alpha * (alpha - 1))
    one_hot = F.one_hot(targets, scores.shape[-1])
    return ((p - one_hot) * scores).sum(-1) + entropy


def weighted_sum(losses: Tensor) -> Tensor:
    """A scalar whose gradient differs from token to token where losses are one a token."""
    weights = torch.arange(1.0, 1 + losses.numel(), dtype=losses.dtype).reshape(losses.shape)
    return (losses * weights).sum()


def gradients(loss: Tensor, *tensors: Tensor) -> list[Tensor]:
    """d loss / d tensor, zeros where the loss does not depend on it."""
    return list(
        torch.autograd.grad(loss, tensors, retain_graph=True, materialize_grads=True)
        if tensors
        else ()
    )


def assert_same(found: Any, expected: Any, **tolerance: float) -> None:
    """Equal values and dtypes, of a tensor or of a sequence of them."""
    torch.testing.assert_close(found, expected, **(tolerance or FLOAT64))
