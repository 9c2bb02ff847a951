"""Wrong input to heads: a row for each public argument."""

import math
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
SIZES = {MultiLabelHead: (HIDDEN, LABELS), AdaptiveHead: (HIDDEN, 17)}


def wrong(name: str, call: Callable[[], Any], says: str, error: Any = ValueError) -> Wrong:
    return Wrong(f"heads: {name}", lambda _: call(), error, says)


def made(kind: Any, says: str, error: Any = ValueError, **options: Any) -> Wrong:
    """Making a head."""
    hidden, vocab = SIZES.get(kind, (HIDDEN, VOCAB))
    last = "labels" if kind is MultiLabelHead else "vocab"
    sizes = {"hidden": hidden, last: vocab}
    name = f"{kind.__name__} with {', '.join(options)}: {says}"
    return wrong(name, lambda: kind(**{**sizes, **options}), says, error)


ONE = "expected at least 1"
NOT_ONE = Mapping("softmax", sink=0.0)
MAKING = [
    *(made(kind, f"{name}=0: {ONE}", **{name: 0})
      for kind, names in ((LinearHead, ("hidden", "vocab")), (FactoredSphericalHead, ("vocab",)),
                          (MixtureHead, ("components", "latent")),
                          (MultiLabelHead, ("hidden", "labels")))
      for name in names),
    made(LinearHead, r"tie: .*\(11, 5\).*\(12, 5\)", tie=nn.Embedding(12, HIDDEN)),
    made(LinearHead, r"tie: .*\(11, 5\).*\(5, 11\)", tie=nn.Embedding(HIDDEN, VOCAB).weight),
    made(MixtureHead, "tie: expected shape", tie=nn.Embedding(VOCAB, 4), latent=3),
    made(LinearHead, "did you mean sigsoftmax", mapping="sigsofmax"),
    made(MixtureHead, "did you mean sigsoftmax", prior="sigsofmax"),
    made(LinearHead, "mapping: expected a registered name or .*got Softmax", TypeError,
         mapping=nn.Softmax(-1)),
    made(MixtureHead, "prior: .* for each of 3 attention heads",
         prior=Mapping("t-softmax", t=[1.0, 2.0, 3.0], num_heads=3)),
    made(MixtureHead, "mapping=sparsemax: it returns exact zeros", mapping="sparsemax"),
    *(made(kind, rf"{name}='softmax': its rows may sum to at most one, .*leave `sink` out",
           **{name: NOT_ONE, **options})
      for kind, name, options in ((LinearHead, "mapping", {}), (MixtureHead, "prior", {}),
                                  (AdaptiveHead, "mapping", {"cutoffs": (4, 9)}))),
    made(LinearHead, "'sigmoid': its rows may sum to anything, .*such as softmax",
         mapping="sigmoid"),
    *(made(AdaptiveHead, rf"cutoffs=\[{', '.join(map(str, cutoffs))}\].*\[1, 16\]", cutoffs=cutoffs)
      for cutoffs in ((), (0, 5), (5, 5), (4, 17))),
    made(AdaptiveHead, "cutoffs=.*integers", TypeError, cutoffs=(4.0, 9)),
    *(made(AdaptiveHead, f"div_value={value}", cutoffs=(4, 9, 12), div_value=value)
      for value in (0.5, math.nan)),
    # 5 // 4^2 = 0, which torch makes without a word
    made(AdaptiveHead, r"div_value=4.0.*cluster 3", cutoffs=(4, 9, 12)),
    made(AdaptiveHead, "mapping=weighted-softmax.*pointwise", cutoffs=(4, 9),
         mapping="weighted-softmax", div_value=1.5),
    made(FactoredSphericalHead, "eps=0.0: expected a finite number above 0", eps=0.0),
    made(FactoredSphericalHead, "objective='softmax' is unknown; expected one of spher",
         objective="softmax"),
]  # fmt: skip


def rows(*shape: int) -> Tensor:
    return torch.randn(*shape, HIDDEN)


def target(*numbers: float) -> Tensor:
    return torch.tensor(numbers)


HEADS: dict[str, Callable[[], Any]] = {
    "linear": lambda: LinearHead(HIDDEN, VOCAB, "sigsoftmax").loss,
    "mixture": lambda: MixtureHead(HIDDEN, VOCAB, "sigsoftmax", 3).loss,
    "sparse": lambda: LinearHead(HIDDEN, VOCAB, "sparsemax").loss,
    "adaptive": lambda: AdaptiveHead(HIDDEN, VOCAB, (4, 9), div_value=1.5).loss,
    "factored": lambda: FactoredSphericalHead(HIDDEN, VOCAB),
}
SIZE = r"hidden: expected shape \(\.\.\., 5\), got \(2, 6\)"
# arguments of a loss, options, and what is said of them
LOSSES: list[tuple[tuple[Tensor, ...], dict[str, Any], str, type[Exception]]] = [
    ((torch.randn(2, 6), target(0, 1)), {}, SIZE, ValueError),
    ((rows(2), target(0, -1)), {}, rf"targets: -1 .*\[0, {VOCAB}\)", ValueError),
    ((rows(2), target(0, VOCAB)), {}, rf"targets: 11 .*\[0, {VOCAB}\)", ValueError),
    ((rows(2), target(0, -100)), {"ignore_index": -1}, "targets: -100", ValueError),
    # the right number of elements, or what would broadcast
    ((rows(2, 3), torch.zeros(6).long()), {}, r"targets: .*\(2, 3\).*\(6,\)", ValueError),
    ((rows(2, 3), torch.zeros(3).long()), {}, r"targets: .*\(2, 3\).*\(3,\)", ValueError),
    ((rows(2), target(0.0, 1.0)), {}, "targets: expected integers.*float32", TypeError),
]
NOT_OF_FACTORED = [
    ((rows(2).double(), target(0, 1)), {}, r"expected torch.float32.*use hidden\.to", TypeError),
    ((rows(2), target(0, 1)), {"reduction": None}, "reduction=.*mean, sum, none", ValueError),
    ((rows(2), target(0, 1)), {"chunk": 0}, "chunk=0: expected at least 1", ValueError),
]
CALLS = [
    *(wrong(f"{kind}: {says}", lambda make=make, given=given, options=options: make()(
          *given, **options), says, error)
      for kind, make in HEADS.items()
      for given, options, says, error in (
          LOSSES if kind == "factored" else [*LOSSES, *NOT_OF_FACTORED])),
    *(wrong(f"log_prob: {kind.__name__}",
            lambda kind=kind: kind(HIDDEN, VOCAB).log_prob(torch.randn(2, 6)), SIZE)
      for kind in (LinearHead, MixtureHead)),
    *(wrong(f"load_weight: {says}",
            lambda bias=bias, given=given: FactoredSphericalHead(
                HIDDEN, VOCAB, bias=bias).load_weight(*given), says)
      for bias, given, says in (
          (True, (torch.ones(VOCAB, HIDDEN),), "bias: expected a tensor"),
          (False, (torch.ones(VOCAB, HIDDEN), torch.ones(VOCAB)), "bias: expected None"),
          (False, (torch.ones(VOCAB, 4),), r"weight: expected shape \(11, 5\), got \(11, 4\)"))),
]  # fmt: skip


COUNTS = torch.tensor([100, 60, 60, 31, 20, 11, 7, 7, 2, 1, 1])


def prior(
    says: str, head: Any = None, counts: Tensor = COUNTS, error: Any = ValueError, **options: float
) -> Wrong:
    head = head or LinearHead(HIDDEN, VOCAB)
    return wrong(f"match_prior: {says}", lambda: match_prior(head, counts, **options), says, error)


PRIOR = [
    prior("expected a LinearHead or a MixtureHead, got AdaptiveHead",
          AdaptiveHead(9, VOCAB, [4]), error=TypeError),
    prior("mapping=sparsemax", LinearHead(HIDDEN, VOCAB, "sparsemax")),
    prior("bias=True", LinearHead(HIDDEN, VOCAB, bias=False)),
    prior(r"counts.*\(11,\).*\(10,\)", counts=COUNTS[:-1]),
    prior("counts.*numbers >= 0", counts=COUNTS - 2),
    prior("counts.*finite", counts=COUNTS.double().log().log()),
    prior("smoothing=0.0", smoothing=0.0),
]  # fmt: skip


def labels(
    says: str,
    hidden: Any = None,
    targets: Any = None,
    error: Any = ValueError,
    *,
    mapping: str = "r-softmax",
    sparsity: str = "fixed",
    **options: Any,
) -> Wrong:
    """`loss` of a multi-label head."""
    hidden = rows(2) if hidden is None else hidden
    targets = torch.zeros(2, LABELS) if targets is None else targets
    head = MultiLabelHead(HIDDEN, LABELS, mapping, sparsity=sparsity)
    name = f"labels of {mapping} {sparsity}: {says}"
    return wrong(name, lambda: head.loss(hidden, targets, **options), says, error)


def searched(says: str, error: Any = ValueError, **changes: Any) -> Wrong:
    arguments = {"log_p": torch.zeros(2, 3), "target": torch.ones(2, 3), **changes}
    return wrong(f"search_threshold: {says}", lambda: search_threshold(**arguments), says, error)


PREDICTED = {"sparsity": "predicted"}
MULTILABEL = [
    *(made(MultiLabelHead, says, mapping=mapping, **options)
      for mapping, options, says in (
          ("r-sotfmax", {}, "did you mean r-softmax"),
          (Mapping("r-softmax", num_heads=2, r=[0.1, 0.2]), {}, "one value for each of 2"),
          ("sparsecone", {}, "mapping=sparsecone: it returns zeros and has no loss"),
          ("normalized-relu", {}, "it returns zeros.*one of t-softmax, r-softmax, spars"),
          ("sigmoid", {}, "its rows may sum to anything, .*use it in attention, and here"),
          (Mapping("scaled-softmax", sink=0.0), {}, "its sink is not scaled.*leave `sink`"),
          ("softmax", PREDICTED, "expected t-softmax or r-softmax.*got softmax"),
          (Mapping("r-softmax", sink=0.0), PREDICTED, "without a sink.*got r-softmax with a"),
          (Mapping("t-softmax", learn="t"), PREDICTED, "got t-softmax that learns t"),
          (Mapping("r-softmax", r=0.3), PREDICTED, r"r=0\.3 would have no effect; leave r out"),
          (Mapping("t-softmax", t=0.0), PREDICTED, "t=0.0: a learned t must start strictly"),
          ("r-softmax", {"sparsity": "learned"}, "'learned': expected 'fixed' or 'predicted'"),
          ("sparsemax", {"loss": "nll"}, "trained by sparsemax, sparsegen-hinge"),
          ("softmax", {"loss": "sparsemax"}, "loss='sparsemax': softmax can be .* by nll"),
          ("softmax", {"threshold": 0}, r"every label p > 0.*in \(0, 1\), which search_thresh"),
          ("r-softmax", {"threshold": 1.0}, r"threshold=1\.0: expected a number in \[0, 1\)"))),
    made(MultiLabelHead, "threshold=.*expected a number", TypeError, threshold="x"),
    *(case for mapping in ("softmax", "sparsemax", "r-softmax") for case in (
        labels(SIZE, torch.randn(2, 6), mapping=mapping),
        labels(r"target: expected shape \(2, 3\).*got \(2, 4\)", targets=torch.zeros(2, 4),
               mapping=mapping),
        labels(r"target: expected shape .* one entry per label, got \(2,", targets=torch.zeros(2),
               mapping=mapping),
        labels("reduction='max': expected one of", mapping=mapping, reduction="max"))),
    *(labels("target: expected 0 or 1 for every label, got ", rows(1), sparsity=sparsity,
             targets=torch.tensor([[0, value, 0]], dtype=dtype))
      for sparsity, value, dtype in (("fixed", -1, torch.half), ("predicted", math.nan, None))),
    labels("target.*got 2; use one_hot for class numbers", rows(1), torch.tensor([[1, 2, 0]])),
    labels("target: expected a real tensor of 0 and 1, got", rows(1), [0, 1, 1], TypeError),
    wrong("hidden that is not floating point",
          lambda: MultiLabelHead(HIDDEN, LABELS)(torch.zeros(1, HIDDEN).long()),
          r"hidden: expected floating point, got torch\.int64", TypeError),
    wrong("decide on probabilities",
          lambda: MultiLabelHead(HIDDEN, LABELS, "sparsemax").decide(torch.full((2, 3), 1 / 3)),
          r"log_p: expected logarithms of probabilities, at most 0, got 0\.33"),
    searched("candidates: expected at least one number", candidates=()),
    searched(r"candidates=1\.0: expected a number in \[0, 1\)", candidates=(0.1, 1.0)),
    searched("average='weighted': expected one of micro, macro, samples", average="weighted"),
    searched(r"target: expected shape \(2, 3\).*got \(2, 4\)", target=torch.ones(2, 4)),
    searched("target: expected 0 or 1 for every label, got 2", target=torch.full((2, 3), 2)),
    searched("log_p: expected log p of at least one row.*NaN", log_p=torch.full((2, 3), math.nan)),
    searched("log_p: expected logarithms", log_p=torch.full((2, 3), 0.5)),
]  # fmt: skip

ROWS = [*MAKING, *CALLS, *PRIOR, *MULTILABEL]
