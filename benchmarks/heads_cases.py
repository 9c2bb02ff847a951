"""Heads over large vocabularies, and whose loss of them is measured."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.heads_tables import OURS, PLAIN
from benchmarks.timing import MIB
from sparse_attn import Mapping
from sparse_attn.heads import LinearHead, MixtureHead

# Penn Treebank, WikiText-2, Llama 3
VOCABULARIES = {"10k": 10_000, "33k": 33_278, "128k": 128_256}
GROUPS = {
    "softmax": "p = softmax(W h + b)",
    "softmax-no-bias": "p = softmax(W h), which is all that Apple's kernel takes",
    "sigsoftmax": "p = sigsoftmax(W h + b)",
    "plif": "p = softmax(PLIF(W h + b)) with 100,000 knots",
    "taylor-softmax": "p = taylor-softmax(W h + b)",
    "spherical-softmax": "p = spherical-softmax(W h + b)",
    "normalized-sigmoid": "p = normalized-sigmoid(W h + b)",
    "mixture": "a mixture of 15 softmaxes",
}
PARAMETERS: dict[str, dict[str, Any]] = {"plif": {"knots": 100_000}}
COMPONENTS = 15
# what matters most first; a call at 128k takes seconds on a CPU
ON_CPU = {
    "softmax": ("10k", "33k", "128k"),
    "softmax-no-bias": ("10k", "33k"),
    "sigsoftmax": ("10k",),
    "taylor-softmax": ("10k",),
    "spherical-softmax": ("10k",),
    "normalized-sigmoid": ("10k",),
    "mixture": ("10k",),
    "plif": ("10k", "33k"),
}
ON_GPU = dict.fromkeys(GROUPS, ("10k", "33k", "128k")) | {"mixture": ("10k",)}
TOKENS = {"cpu": 2048, "cuda": 4096}
SPREAD = 3.0  # standard deviation of the scores


@dataclass(frozen=True)
class Case:
    """One table: a head of GROUPS over a vocabulary of VOCABULARIES."""

    group: str
    vocabulary: str
    tokens: int
    hidden: int

    @property
    def name(self) -> str:
        """Both words that --only takes."""
        return f"{self.group} {self.vocabulary}"


def cases(device: str, quick: bool) -> list[Case]:
    """What is measured, in that order; fewer tokens for a mixture, which has K scores for one."""
    tokens, hidden = (128, 64) if quick else (TOKENS[device], 512)
    names = ON_GPU if device == "cuda" else ON_CPU
    return [
        Case(group, name, tokens // 8 if group == "mixture" else tokens, hidden)
        for group, vocabularies in names.items()
        for name in (vocabularies[:1] if quick else vocabularies)
    ]


class Problem:
    """A head, hidden states [N, d] and their targets [N]; bfloat16 on the GPU, else float32.

    The scores are spread so far that the probabilities are about as unequal as a trained model's:
    Apple's kernel leaves out gradients of small ones.
    """

    def __init__(self, case: Case, device: torch.device) -> None:
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

    def clear(self) -> None:
        """Free all gradients, so that a call allocates its own."""
        self.hidden.grad = None
        self.head.zero_grad(set_to_none=True)

    def step(self, loss: Callable[[Problem], Tensor]) -> None:
        """What is timed: the mean loss, and its gradients to hidden states and parameters."""
        loss(self).backward()

    def gradient_mib(self) -> float:
        """The gradients of the parameters, which every contestant must hold."""
        gradients = (p.grad for p in self.head.parameters() if p.grad is not None)
        return sum(gradient.nbytes for gradient in gradients) / MIB


def head_of(case: Case) -> LinearHead | MixtureHead:
    """The head of a case."""
    vocab = VOCABULARIES[case.vocabulary]
    if case.group == "mixture":
        return MixtureHead(case.hidden, vocab, components=COMPONENTS)
    if case.group == "softmax-no-bias":
        return LinearHead(case.hidden, vocab, bias=False)
    mapping = Mapping(case.group, **PARAMETERS.get(case.group, {}))
    return LinearHead(case.hidden, vocab, mapping)


# Contestants


def nll(problem: Problem) -> Tensor:
    return problem.head.nll(problem.hidden, problem.targets)


def unreduced(problem: Problem) -> Tensor:
    return problem.head.nll(problem.hidden, problem.targets, reduction="none").mean()


def cross_entropy(problem: Problem) -> Tensor:
    """As Transformers writes it: all scores, in float32."""
    scores = F.linear(problem.hidden, problem.head.weight, problem.head.bias)
    return F.cross_entropy(scores.float(), problem.targets)


def dense(problem: Problem) -> Tensor:
    """The whole of log p, then the targets' part of it."""
    log_p = problem.head.log_prob(problem.hidden)
    return -log_p.gather(-1, problem.targets.unsqueeze(-1)).mean()


def liger(problem: Problem) -> Tensor:
    if problem.hidden.device.type != "cuda":
        raise NotImplementedError("Liger needs a GPU")
    function = importlib.import_module("liger_kernel.ops").LigerFusedLinearCrossEntropyFunction
    head = problem.head
    # the loss, and what is not asked for
    return function.apply(problem.hidden, head.weight, problem.targets, head.bias)[0]


def apple(problem: Problem) -> Tensor:
    """Cut cross-entropy; without a GPU what that package runs then, PyTorch's own compiled."""
    module = importlib.import_module("cut_cross_entropy")
    kernel = "cce" if problem.hidden.device.type == "cuda" else "torch_compile"
    return module.linear_cross_entropy(
        problem.hidden, problem.head.weight, problem.targets, impl=kernel
    )


def contestants(group: str) -> dict[str, Callable[[Problem], Tensor]]:
    """The plain form, ours, and for softmax the peers."""
    if group == "softmax":
        return {PLAIN: cross_entropy, OURS: nll, f"{OURS}, unreduced": unreduced, "Liger": liger}
    if group == "softmax-no-bias":
        return {PLAIN: cross_entropy, OURS: nll, "Liger": liger, "Apple": apple}
    return {PLAIN: dense, OURS: nll}
