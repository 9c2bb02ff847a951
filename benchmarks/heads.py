"""Time and peak memory of output layers with loss: ours, PyTorch's, Liger's and Apple's."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks import timing
from benchmarks.table import Benchmark, Case, Pace
from benchmarks.timing import MIB, Race, Row, Task, rounded
from sparse_attn import Mapping
from sparse_attn.heads import LinearHead, MixtureHead

PLAIN, OURS = "plain", "ours"
# Penn Treebank, WikiText-2, Llama 3
VOCABULARIES = {"10k": 10_000, "33k": 33_278, "128k": 128_256}
GROUPS = {  # in order of importance
    "softmax": "p = softmax(W h + b)",
    "softmax-no-bias": "p = softmax(W h), which is all that Apple's kernel takes",
    "sigsoftmax": "p = sigsoftmax(W h + b)",
    "taylor-softmax": "p = taylor-softmax(W h + b)",
    "spherical-softmax": "p = spherical-softmax(W h + b)",
    "normalized-sigmoid": "p = normalized-sigmoid(W h + b)",
    "mixture": "a mixture of 15 softmaxes",
    "plif": "p = softmax(PLIF(W h + b)) with 100,000 knots",
}
# number of vocabularies; a call at 128k takes seconds on a CPU
ON_GPU = dict.fromkeys(GROUPS, 3) | {"mixture": 1}
ON_CPU = dict.fromkeys(GROUPS, 1) | {"softmax": 3, "softmax-no-bias": 2, "plif": 2}
TOKENS = {"cpu": 2048, "cuda": 4096}
SPREAD = 3.0  # standard deviation of the scores


MEANING = f"""\
An output layer with its loss: from hidden states and targets to the mean of -log p and its
gradients to hidden states, weight and bias; float32 on a CPU, bfloat16 on a GPU. `{PLAIN}` makes
all scores: for softmax `F.cross_entropy(F.linear(h, W, b).float(), t)`, otherwise our own
`log_prob`. `{OURS}` is `nll`, `{OURS}, unreduced` its reduction "none". `PyTorch, chunked` is
`F.linear_cross_entropy` with its default options. `Apple` is cut-cross-entropy, which on a CPU runs
the plain form compiled.

Times are medians in milliseconds with quartiles, by the wall clock. A ratio is the median over
rounds of the time divided by that of `{PLAIN}` in the same round: below 1 is faster. `peak` is what
PyTorch allocates at most during the call, beyond its inputs; `beyond` leaves out the gradients of
W, b and other parameters, which everyone has to return. Scratch space outside PyTorch's allocator
is not seen on a CPU. `difference` is how far the gradient of W is from that of `{PLAIN}`, as a
fraction of its norm."""


@dataclass(frozen=True)
class HeadCase(Case):
    """A head of GROUPS with a vocabulary of VOCABULARIES."""

    tokens: int
    hidden: int

    @property
    def vocab(self) -> int:
        return VOCABULARIES[self.name]

    @property
    def title(self) -> str:
        size = f"{self.tokens:,} tokens, d = {self.hidden}, V = {self.vocab:,}"
        return f"{size} ({GROUPS[self.group]})"

    @property
    def base(self) -> str:
        return PLAIN


@dataclass(frozen=True)
class Contestant(timing.Contestant):
    loss: Callable[[Problem], Tensor]


def cases(device: str, quick: bool) -> list[HeadCase]:
    """Return the cases; a mixture gets fewer tokens, because it has K scores per word."""
    tokens, hidden = (128, 64) if quick else (TOKENS[device], 512)
    counts = ON_GPU if device == "cuda" else ON_CPU
    return [
        HeadCase(group, name, tokens // 8 if group == "mixture" else tokens, hidden)
        for group, count in counts.items()
        for name in list(VOCABULARIES)[: 1 if quick else count]
    ]


def contestants(case: HeadCase, device: torch.device) -> list[Contestant]:
    """Return the plain form, ours and, for softmax, the peers."""
    softmax = case.group in ("softmax", "softmax-no-bias")
    found = [
        Contestant(PLAIN, PLAIN, False, cross_entropy if softmax else dense),
        Contestant(OURS, case.group, True, nll),
    ]
    if case.group == "softmax":
        found.append(Contestant(f"{OURS}, unreduced", case.group, False, unreduced))
    if softmax:
        found.append(Contestant("PyTorch, chunked", case.group, False, pytorch))
        found.append(Contestant("Liger", case.group, False, liger))
    if case.group == "softmax-no-bias":
        found.append(Contestant("Apple", case.group, False, apple))
    return found


def measure(case: HeadCase, race: Race[Contestant]) -> list[Row]:
    """Return the rows of a case."""
    return race.rows(Problem(case, race.device).task, "forward+backward")


class Problem:
    """A head, hidden states [N, d] and their targets [N]; bfloat16 on the GPU, else float32.

    The scores are spread to make the probabilities as skewed as a trained model's, because Apple's
    kernel skips gradients of small probabilities.
    """

    def __init__(self, case: HeadCase, device: torch.device) -> None:
        torch.manual_seed(0)
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.head = head_of(case)
        nn.init.normal_(self.head.weight, std=SPREAD * case.hidden**-0.5)
        if self.head.bias is not None:
            nn.init.normal_(self.head.bias)
        self.head.to(device, dtype)
        hidden = torch.randn(case.tokens, case.hidden).to(device, dtype)
        self.hidden = hidden.requires_grad_()
        self.targets = torch.randint(self.head.vocab, (case.tokens,)).to(device)
        self.reference: Tensor | None = None

    def clear(self) -> None:
        """Free all gradients, so that the next call allocates new ones."""
        self.hidden.grad = None
        self.head.zero_grad(set_to_none=True)

    def task(self, contestant: Contestant) -> Task:
        """Return a task: the mean loss and its gradients to hidden states and parameters."""
        return Task(
            lambda: contestant.loss(self).backward(),
            self.clear,
            note=functools.partial(self.note, contestant.name),
        )

    def note(self, name: str, mib: float) -> dict[str, float]:
        """Return the memory beyond the parameters' gradients, and the error of W's gradient.

        The error is relative to PLAIN, which runs first.
        """
        gradients = [p.grad for p in self.head.parameters() if p.grad is not None]
        beyond = mib - sum(gradient.nbytes for gradient in gradients) / MIB
        found = {"memory_mib": rounded(mib), "beyond_gradients_mib": rounded(beyond)}
        assert self.head.weight.grad is not None
        gradient = self.head.weight.grad.float()
        if name == PLAIN:
            self.reference = gradient
        if self.reference is not None:
            error = (gradient - self.reference).norm() / self.reference.norm()
            found["gradient_difference"] = rounded(error.item())
        return found


def head_of(case: HeadCase) -> LinearHead | MixtureHead:
    """Return the head of a case."""
    if case.group == "mixture":
        return MixtureHead(case.hidden, case.vocab, components=15)
    if case.group == "softmax-no-bias":
        return LinearHead(case.hidden, case.vocab, bias=False)
    options: dict[str, Any] = {"knots": 100_000} if case.group == "plif" else {}
    return LinearHead(case.hidden, case.vocab, Mapping(case.group, **options))


def nll(problem: Problem) -> Tensor:
    return problem.head.nll(problem.hidden, problem.targets)


def unreduced(problem: Problem) -> Tensor:
    return problem.head.nll(problem.hidden, problem.targets, reduction="none").mean()


def cross_entropy(problem: Problem) -> Tensor:
    """Return cross-entropy as in Transformers: from all scores, in float32."""
    scores = F.linear(problem.hidden, problem.head.weight, problem.head.bias)
    return F.cross_entropy(scores.float(), problem.targets)


def dense(problem: Problem) -> Tensor:
    """Return the loss from all of log p, of which it takes the targets' entries."""
    log_p = problem.head.log_prob(problem.hidden)
    return -log_p.gather(-1, problem.targets.unsqueeze(-1)).mean()


def pytorch(problem: Problem) -> Tensor:
    """Return PyTorch's chunked loss, which torch 2.13 added."""
    head = problem.head
    return F.linear_cross_entropy(
        problem.hidden,
        head.weight,
        problem.targets,
        linear_bias=head.bias,
        options=nn.LinearCrossEntropyOptions(),
    )


def liger(problem: Problem) -> Tensor:
    if problem.hidden.device.type != "cuda":
        raise NotImplementedError("Liger needs a GPU")
    function = importlib.import_module("liger_kernel.ops").LigerFusedLinearCrossEntropyFunction
    head = problem.head
    # the loss, and unused outputs
    return function.apply(problem.hidden, head.weight, problem.targets, head.bias)[0]


def apple(problem: Problem) -> Tensor:
    """Return Apple's cut cross-entropy; on a CPU the package compiles PyTorch's loss."""
    module = importlib.import_module("cut_cross_entropy")
    kernel = "cce" if problem.hidden.device.type == "cuda" else "torch_compile"
    return module.linear_cross_entropy(
        problem.hidden, problem.head.weight, problem.targets, impl=kernel
    )


BENCHMARK = Benchmark(
    "heads",
    "Output layers",
    MEANING,
    {
        "memory_mib": "peak, MiB",
        "beyond_gradients_mib": "beyond, MiB",
        "gradient_difference": "difference",
    },
    {"cpu": Pace(5, 5, 340), "cuda": Pace(5, 5, 300), "quick": Pace(1, 3, 60)},
    cases,
    contestants,
    measure,
)
