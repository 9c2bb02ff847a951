"""Wrong input to heads."""

import math
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from sparse_attn import Mapping
from sparse_attn.heads import (
    AdaptiveHead,
    FactoredSphericalHead,
    LinearHead,
    MixtureHead,
    MultiLabelHead,
    match_prior,
    search_threshold,
)
from tests.bad_input import Wrong

HIDDEN, VOCAB, LABELS = 5, 11, 3
COUNTS = torch.tensor([100, 60, 60, 31, 20, 11, 7, 7, 2, 1, 1])
HEADS: dict[str, Callable[[], Any]] = {
    "linear": lambda: LinearHead(HIDDEN, VOCAB, "sigsoftmax"),
    "mixture": lambda: MixtureHead(HIDDEN, VOCAB, "sigsoftmax", 3),
    "sparse": lambda: LinearHead(HIDDEN, VOCAB, "sparsemax"),
    "adaptive": lambda: AdaptiveHead(HIDDEN, VOCAB, (4, 9), div_value=1.5),
}


def wrong(name: str, call: Callable[[], Any], says: str, error: Any = ValueError) -> Wrong:
    return Wrong(f"heads: {name}", lambda folder: call(), error, says)


def made(kind: Any, says: str, *sizes: Any, error: Any = ValueError, **options: Any) -> Wrong:
    """Making a head, by default of the usual sizes."""
    usual = {MultiLabelHead: (HIDDEN, LABELS), AdaptiveHead: (HIDDEN, 17)}
    sizes = sizes or usual.get(kind, (HIDDEN, VOCAB))
    told = ", ".join(f"{name}={_told(value)}" for name, value in options.items())
    name = f"{kind.__name__} {sizes} {told}"
    return wrong(name, lambda: kind(*sizes, **options), says, error)


def _told(value: Any) -> str:
    """The same in every process."""
    shown = f"tensor {tuple(value.shape)}" if isinstance(value, Tensor) else str(value)
    return getattr(value, "__name__", shown)


def loss(
    name: str, says: str, *arguments: Any, error: Any = ValueError, **options: Any
) -> list[Wrong]:
    """`loss` of every head."""
    return [
        wrong(f"{kind}, {name}", lambda make=make: make().loss(*arguments, **options), says, error)
        for kind, make in HEADS.items()
    ]


def rows(*shape: int) -> Tensor:
    return torch.randn(*shape, HIDDEN)


def target(*numbers: float) -> Tensor:
    return torch.tensor(numbers)


SIZE = r"hidden: expected shape \(\.\.\., 5\), got \(2, 6\)"
CALLS = [
    case
    for cases in (
        *(
            loss(f"target {value} of {reduction}", rf"targets: {value} .*\[0, {VOCAB}\)", rows(4),
                 target(0, -100, value, 10), reduction=reduction, chunk=2)
            for value in (-1, VOCAB, 10**9, -101)
            for reduction in ("mean", "none")
        ),
        loss("an index that is not ignored", "targets: -100", rows(2), target(0, -100),
             ignore_index=-1),
        *(
            # also those that have the right number of elements, or would broadcast
            loss(f"targets of shape {shape}", rf"targets: .*\(2, 3\).*{re.escape(str(shape))}",
                 rows(2, 3), torch.zeros(shape, dtype=torch.long))
            for shape in ((3,), (2, 4), (3, 2), (2, 3, 1), (6,), ())
        ),
        *(
            loss(f"targets of {dtype}", f"targets: expected integers.*{dtype}", rows(3),
                 torch.zeros(3, dtype=dtype), error=TypeError)
            for dtype in (torch.float32, torch.bool)
        ),
        *(
            loss(f"reduction {reduction!r}", "reduction=.*mean, sum, none", rows(2), target(0, 1),
                 reduction=reduction)
            for reduction in ("average", "", None)
        ),
        *(
            loss(f"chunk {chunk}", f"chunk={chunk}: expected at least 1", rows(3), target(0, 1, 2),
                 chunk=chunk)
            for chunk in (0, -1)
        ),
        loss("hidden of another size", SIZE, torch.randn(2, 6), target(0, 1)),
        [
            wrong(f"{kind}, log_prob of hidden of another size",
                  lambda make=make: make().log_prob(torch.randn(2, 6)), SIZE)
            for kind, make in HEADS.items()
        ],
        loss("hidden of another dtype", r"hidden: expected torch.float32.*use hidden\.to",
             rows(2).double(), target(0, 1), error=TypeError),
    )
    for case in cases
]  # fmt: skip

MAKING = [
    *(made(MixtureHead, f"{name}={size}: expected at least 1", **{name: size})
      for name in ("components", "latent") for size in (0, -3)),
    *(made(kind, f"{name}=0: expected at least 1", *sizes)
      for kind in (LinearHead, MixtureHead, FactoredSphericalHead)
      for name, sizes in (("hidden", (0, 5)), ("vocab", (5, 0)))),
    made(MultiLabelHead, "hidden=0: expected at least 1", 0, LABELS),
    made(MultiLabelHead, "labels=0: expected at least 1", HIDDEN, 0),
    *(made(LinearHead, rf"tie: .*\(11, 5\).*\({a}, {b}\)", tie=tie)
      for a, b in ((VOCAB, 6), (12, HIDDEN), (HIDDEN, VOCAB))
      for tie in (nn.Embedding(a, b), nn.Embedding(a, b).weight)),
    made(MixtureHead, "tie: expected shape", tie=nn.Embedding(12, HIDDEN)),
    made(MixtureHead, "tie: expected shape", tie=nn.Embedding(VOCAB, 4), latent=3),
    made(LinearHead, "did you mean sigsoftmax", mapping="sigsofmax"),
    made(MixtureHead, "did you mean sigsoftmax", mapping="sigsofmax"),
    made(MixtureHead, "did you mean sigsoftmax", prior="sigsofmax"),
    made(LinearHead, "mapping: expected a registered name or .*got Softmax", mapping=nn.Softmax(-1),
         error=TypeError),
    made(MultiLabelHead, "mapping: expected a registered name or a .*got builtin",
         mapping=torch.softmax, error=TypeError),
    made(MixtureHead, "prior: .* for each of 3 attention heads",
         prior=Mapping("t-softmax", t=[1.0, 2.0, 3.0], num_heads=3)),
    *(made(MixtureHead, f"mapping={name}: it returns exact zeros", mapping=name)
      for name in ("sparsemax", "entmax", "r-softmax")),
    *(made(kind, rf"{argument}='{name}': its rows may sum to {sums}, and an output layer.*{remedy}",
           **sizes, **{argument: mapping})
      for kind, argument, sizes in ((LinearHead, "mapping", {}), (MixtureHead, "mapping", {}),
                                    (MixtureHead, "prior", {}),
                                    (AdaptiveHead, "mapping", {"cutoffs": (4, 9)}))
      for name, mapping, sums, remedy in (
          ("softmax", Mapping("softmax", sink=0.0), "at most one", "leave `sink` out"),
          ("softpick", "softpick", "at most one", "such as softmax"),
          ("sigmoid", "sigmoid", "anything", "such as softmax"))),
    *(made(AdaptiveHead, r"cutoffs=.*\[1, 16\]", cutoffs=cutoffs)
      for cutoffs in ((), (0, 5), (5, 5), (9, 4), (-1,), (4, 17), (17,), (4, 30))),
    *(made(AdaptiveHead, "cutoffs=.*integers", cutoffs=cutoffs, error=TypeError)
      for cutoffs in ((4.0, 9), ("4",))),
    *(made(AdaptiveHead, f"div_value={value}", cutoffs=(4, 9, 12), div_value=value)
      for value in (0.0, 0.5, -4.0, math.nan, math.inf)),
    # 5 // 4^2 = 0, which torch makes without a word
    made(AdaptiveHead, r"div_value=4.0.*cluster 3", cutoffs=(4, 9, 12)),
    *(made(AdaptiveHead, f"mapping={name}.*pointwise", cutoffs=(4, 9), mapping=name, div_value=1.5)
      for name in ("sparsemax", "entmax", "r-softmax", "normalized-relu", "weighted-softmax")),
]  # fmt: skip

FACTORED = [
    *(made(FactoredSphericalHead, f"eps={eps}: expected a finite number above 0", eps=eps)
      for eps in (0.0, -1.0, math.nan)),
    made(FactoredSphericalHead, "objective='softmax' is unknown; expected one of spher",
         objective="softmax"),
    *(wrong(f"factored, {says}", lambda given=given: FactoredSphericalHead(HIDDEN, VOCAB)(*given),
            says, error)
      for *given, says, error in (
          *((rows(2), target(0, word), f"targets: {word} is outside the vocabulary", ValueError)
            for word in (-1, VOCAB, 10**12)),
          (torch.zeros(2, 6), target(0, 0), "hidden: expected shape", ValueError),
          (rows(2), target(0, 0, 0), "targets: expected shape", ValueError),
          (rows(2), target(0.0, 0.0), "targets: expected integers", TypeError),
      )),
    *(wrong(f"factored, load_weight: {says}",
            lambda bias=bias, given=given: FactoredSphericalHead(
                HIDDEN, VOCAB, bias=bias).load_weight(*given), says)
      for bias, given, says in (
          (True, (torch.ones(VOCAB, HIDDEN),), "bias: expected a tensor"),
          (False, (torch.ones(VOCAB, HIDDEN), torch.ones(VOCAB)), "bias: expected None"),
          (False, (torch.ones(VOCAB, 4),), r"weight: expected shape \(11, 5\), got \(11, 4\)"),
      )),
]  # fmt: skip


def prior(
    says: str, head: Any = None, counts: Tensor = COUNTS, error: Any = ValueError, **options: float
) -> Wrong:
    head = head or LinearHead(HIDDEN, VOCAB)
    return wrong(f"match_prior, {type(head).__name__}: {says}",
                 lambda: match_prior(head, counts, **options), says, error)  # fmt: skip


PRIOR = [
    *(prior(f"expected a LinearHead or a MixtureHead, got {type(head).__name__}", head,
            error=TypeError)
      for head in (AdaptiveHead(9, VOCAB, [4]), FactoredSphericalHead(HIDDEN, VOCAB, bias=True))),
    *(prior(f"mapping={name}", LinearHead(HIDDEN, VOCAB, name))
      for name in ("sparsemax", "r-softmax", "weighted-softmax")),
    *(prior("bias=True", kind(HIDDEN, VOCAB, bias=False)) for kind in (LinearHead, MixtureHead)),
    prior(r"counts.*\(11,\).*\(10,\)", counts=COUNTS[:-1]),
    prior(r"counts.*\(11,\).*\(1, 11\)", counts=COUNTS.unsqueeze(0)),
    prior("counts.*numbers >= 0", counts=COUNTS - 2),
    prior("counts.*finite", counts=COUNTS.double().log().log()),
    *(prior(f"smoothing={value}", smoothing=value) for value in (0.0, -1.0, math.nan, math.inf)),
]  # fmt: skip


def multilabel(says: str, error: Any = ValueError, **options: Any) -> Wrong:
    return made(MultiLabelHead, says, error=error, **options)


def labelled(
    says: str,
    hidden: Tensor,
    targets: Any,
    mapping: str = "r-softmax",
    error: Any = ValueError,
    *,
    sparsity: str = "fixed",
    **options: Any,
) -> Wrong:
    """`loss` of a multi-label head."""
    head = MultiLabelHead(HIDDEN, LABELS, mapping, sparsity=sparsity)
    return wrong(f"{mapping} {sparsity} for {hidden.shape}, {targets}: {says}",
                 lambda: head.loss(hidden, targets, **options), says, error)  # fmt: skip


MULTILABEL = [
    multilabel("mapping='r-sotfmax' is unknown; did you mean r-softmax", mapping="r-sotfmax"),
    multilabel("one value for each of 2", mapping=Mapping("r-softmax", num_heads=2, r=[0.1, 0.2])),
    multilabel("mapping=sparsecone: it returns zeros and has no loss", mapping="sparsecone"),
    multilabel("it returns zeros.*one of t-softmax, r-softmax, spars", mapping="normalized-relu"),
    multilabel("mapping='sigmoid': its rows may sum to anything, .*use it in attention, and here",
               mapping="sigmoid"),
    multilabel("mapping='softpick': its rows may sum to at most one.*such as softmax",
               mapping=Mapping("softpick", sink=0.0)),
    multilabel("mapping='scaled-softmax': its sink is not scaled.*leave `sink`",
               mapping=Mapping("scaled-softmax", sink=0.0)),
    multilabel("expected t-softmax or r-softmax.*without a sink.*got r-softmax with a sink",
               mapping=Mapping("r-softmax", sink=0.0), sparsity="predicted"),
    multilabel("sparsity='learned': expected 'fixed' or 'predicted'", sparsity="learned"),
    *(multilabel(f"expected t-softmax or r-softmax.*got {says}", mapping=mapping,
                 sparsity="predicted")
      for says, mapping in (("softmax", "softmax"), ("entmax", "entmax"),
                            ("t-softmax that learns t", Mapping("t-softmax", learn="t")))),
    multilabel(r"r=0\.3 would have no effect; leave r out", mapping=Mapping("r-softmax", r=0.3),
               sparsity="predicted"),
    multilabel("t=0.0: a learned t must start strictly inside", mapping=Mapping("t-softmax", t=0.0),
               sparsity="predicted"),
    multilabel("loss='bce': r-softmax can be trained by r-softmax", loss="bce"),
    multilabel("loss='nll': r-softmax can be trained by r-softmax", loss="nll"),
    multilabel("trained by sparsemax, sparsegen-hinge", mapping="sparsemax", loss="nll"),
    multilabel("loss='sparsemax': softmax can be .* by nll", mapping="softmax", loss="sparsemax"),
    *(multilabel(rf"threshold={value}: expected a number in \[0, 1\)", threshold=value)
      for value in (1.0, -0.1, math.nan)),
    *(multilabel("threshold=.*expected a number", threshold=value, error=TypeError)
      for value in ("x", [0.1])),
    wrong(
        "decide on probabilities",
        lambda: MultiLabelHead(HIDDEN, LABELS, "sparsemax").decide(torch.full((2, LABELS), 1 / 3)),
        r"log_p: expected logarithms of probabilities, at most 0, got 0\.33",
    ),
    multilabel(r"threshold=0: softmax gives every label p > 0.*in \(0, 1\), which search_threshold",
               mapping="softmax", threshold=0),
    *(labelled(says, torch.zeros(hidden), torch.zeros(targets), mapping, **options)
      for mapping in ("softmax", "sparsemax", "r-softmax")
      for hidden, targets, says, options in (
          ((2, 6), (2, LABELS), SIZE, {}),
          ((), (LABELS,), r"hidden: expected shape \(\.\.\., 5\), got \(\)", {}),
          ((2, HIDDEN), (2, 4), r"target: expected shape \(2, 3\).*got \(2, 4\)", {}),
          ((2, HIDDEN), (2,), r"target: expected shape .* one entry per label, got \(2,", {}),
          ((2, HIDDEN), (LABELS,), r"target: expected shape \(2, 3\).*got \(3,\)", {}),
          ((2, HIDDEN), (2, LABELS), "reduction='max': expected one of", {"reduction": "max"}),
      )),
    *(labelled("target: expected 0 or 1 for every label, got ", rows(2),
               torch.tensor([[0, 1, 0], [1, value, 0]], dtype=dtype), sparsity=sparsity)
      for sparsity in ("fixed", "predicted")
      for value in (2, -1, 0.5, -100, math.nan, math.inf)
      for dtype in (torch.float32, torch.half, torch.double)),
    labelled("target.*got 2; use one_hot for class numbers", rows(1), torch.tensor([[1, 2, 0]])),
    *(labelled("target: expected a real tensor of 0 and 1, got", rows(1), targets, error=TypeError)
      for targets in ([0, 1, 1], torch.zeros(1, LABELS, dtype=torch.complex64))),
    wrong("hidden that is not floating point",
          lambda: MultiLabelHead(HIDDEN, LABELS)(torch.zeros(1, HIDDEN, dtype=torch.int64)),
          r"hidden: expected floating point, got torch\.int64", TypeError),
    *(wrong(f"count_scores {options}",
            lambda options=options: MultiLabelHead(HIDDEN, LABELS, **options).count_scores(rows(2)),
            "does not predict the number of labels; use r-softmax with spars")
      for options in ({}, {"mapping": "t-softmax", "sparsity": "predicted"})),
]  # fmt: skip


def searched(says: str, error: Any = ValueError, **changes: Any) -> Wrong:
    arguments = {"log_p": torch.zeros(2, 3), "target": torch.ones(2, 3), **changes}
    return wrong(f"search_threshold {changes}", lambda: search_threshold(**arguments), says, error)


SEARCH = [
    searched("candidates: expected at least one number", candidates=()),
    searched(r"candidates=1\.0: expected a number in \[0, 1\)", candidates=(0.1, 1.0)),
    searched("candidates=.*expected a number", candidates=("x",), error=TypeError),
    searched("average='weighted': expected one of micro, macro, samples", average="weighted"),
    searched(r"target: expected shape \(2, 3\).*got \(2, 4\)", target=torch.ones(2, 4)),
    searched("target: expected 0 or 1 for every label, got 2", target=torch.full((2, 3), 2)),
    searched("log_p: expected log p of at least one row.*NaN", log_p=torch.full((2, 3), math.nan)),
    searched(r"log_p: expected log p of at least one row.*shape \(0, 3\)", log_p=torch.zeros(0, 3),
             target=torch.zeros(0, 3)),
    *(searched("log_p: expected logarithms of probabilities, at most 0", log_p=log_p)
      for log_p in (torch.full((2, 3), 0.5), torch.full((2, 3), 4.0))),
]  # fmt: skip

ROWS = [*CALLS, *MAKING, *FACTORED, *PRIOR, *MULTILABEL, *SEARCH]
