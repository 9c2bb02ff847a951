"""What the losses refuse: each message names the argument, what was expected and what came."""

import math
import re

import torch

from sparse_attn import Mapping, losses
from tests.bad_input import Wrong
from tests.losses.cases import CASES

SCORES = torch.randn(2, 5)
LABELS = torch.tensor([[1, 0, 0, 1, 0], [0, 1, 0, 0, 0]])
MASK = torch.tensor([[True, False, True, True, True]])
ONE_UNLABELLED = LABELS * torch.tensor([[1], [0]])


def refused(name, loss, error, *says, scores=SCORES, target=LABELS, **options):
    """The parts of the message in this order, anywhere in it."""
    return Wrong(name, lambda _: loss(scores, target, **options), error, ".*".join(says))


def of_every_loss(name, case):
    def row(what, error, *says, **options):
        return refused(f"{what} of {name} loss", case, error, *says, **options)

    yield row("whole scores", TypeError, "scores", "floating", "int64", scores=LABELS)
    yield row("one score", ValueError, "scores", r"\(\.\.\., n\)", r"\(\)",
              scores=torch.tensor(1.0), target=torch.tensor(0))  # fmt: skip
    yield row("no scores", ValueError, "scores", "at least 1", r"\(2, 0\)",
              scores=torch.zeros(2, 0), target=torch.zeros(2, 0))  # fmt: skip
    for shape in ((3,), (2, 4), (1, 5), (2, 1), (), (2, 5, 1)):
        says = ("target", r"\(2,\)", r"\(2, 5\)", re.escape(str(shape)))
        yield row(f"target {shape}", ValueError, *says, target=torch.zeros(shape).long())
    for value in (5, -1, -101, 10**9):
        says = ("target", f"{value}", r"\[0, 5\)", "-100")
        yield row(f"class {value}", ValueError, *says, target=torch.tensor([0, value]))
    for dtype in (torch.float32, torch.bool):
        says = ("target", "integers", str(dtype))
        yield row(f"{dtype} classes", TypeError, *says, target=torch.ones(2, dtype=dtype))
    for value in (-1.0, math.nan, math.inf):
        weights = LABELS.float().index_fill(1, torch.tensor([3]), value)
        yield row(f"weights {value}", ValueError, "target", "expected", f"{value}", target=weights)
    for value in (0.5, 2.0) if case.binary else ():
        says = ("target", "0 or 1", f"{value}")
        yield row(f"labels {value}", ValueError, *says, target=value * LABELS)
    for target in (LABELS, torch.tensor([0, 1])):
        says = ("target", r"\(1,\)", "masked")
        yield row(f"masked label {target.dim()}", ValueError, *says, target=target, mask=MASK)
    yield row("whole mask", TypeError, "mask", "boolean", "int64",
              r"`mask.bool\(\)` if 1 = takes part$", mask=LABELS)  # fmt: skip
    yield row("mask shape", ValueError, "mask", r"\(3, 5\)", r"\(2, 5\)",
              mask=torch.ones(3, 5, dtype=torch.bool))  # fmt: skip
    yield row("reduction", ValueError, "reduction='batch'", "mean, sum, none", reduction="batch")
    if case.needs_labels:
        says = ("target", r"\(1,\)", "no label")
        yield row("no labels", ValueError, *says, target=ONE_UNLABELLED)


def out_of_range(loss, name, value):
    shown = value.min().item() if isinstance(value, torch.Tensor) else value
    says = (f"{name}={shown}", "expected a (finite )?number")
    return refused(f"{loss.__name__} {name}={shown}", loss, ValueError, *says, **{name: value})


def of_another_shape(loss, name):
    says = (name, r"\(3,\)", "broadcast")
    title = f"{loss.__name__} {name} of another shape"
    return refused(title, loss, ValueError, *says, **{name: torch.ones(3)})


def nll(error, *says, mapping, name="", **options):
    title = f"mapping_nll of {name or mapping} {options}"
    return refused(title, losses.mapping_nll, error, *says, mapping=mapping, **options)


def counts(what, error, *says, logits=(2, 6), dtype=torch.float32, target=LABELS, **options):
    scores = torch.zeros(logits, dtype=dtype)
    call = losses.label_count_loss
    return refused(f"counts: {what}", call, error, *says, scores=scores, target=target, **options)


OWN = {
    "sparsemax": "sparsemax_loss",
    "entmax": "entmax_loss",
    "sparsegen": "sparsegen_hinge_loss",
    "sparsehourglass": "sparsehourglass_loss",
    "r-softmax": "r_softmax_multilabel_loss",
    "t-softmax": "t_softmax_multilabel_loss",
    "sparsecone": "a mapping without zeros",
    "normalized-relu": "a mapping without zeros",
}
SPHERICAL = "spherical-softmax"
ROWS = [
    *(row for name, case in CASES.items() for row in of_every_loss(name, case)),
    refused("no labels of bouchard_loss", losses.bouchard_loss, ValueError,
            "target", r"\(1,\)", "no label", target=ONE_UNLABELLED),
    *(out_of_range(losses.entmax_loss, "alpha", value) for value in (0.5, 2.5, math.nan)),
    out_of_range(losses.sparsegen_hinge_loss, "lam", 1.0),
    out_of_range(losses.sparsehourglass_loss, "q", -0.1),
    out_of_range(losses.r_softmax_multilabel_loss, "r", 1.1),
    out_of_range(losses.t_softmax_multilabel_loss, "t", -1.0),
    out_of_range(losses.bouchard_loss, "xi", -0.1),
    out_of_range(losses.bouchard_loss, "xi", math.inf),
    out_of_range(losses.bouchard_loss, "xi", torch.tensor([1.0, 1.0, -0.5, 0.0, 0.0])),
    out_of_range(losses.bouchard_loss, "alpha", math.nan),
    of_another_shape(losses.entmax_loss, "alpha"),
    of_another_shape(losses.sparsegen_hinge_loss, "lam"),
    of_another_shape(losses.sparsehourglass_loss, "q"),
    of_another_shape(losses.r_softmax_multilabel_loss, "r"),
    of_another_shape(losses.t_softmax_multilabel_loss, "t"),
    of_another_shape(losses.bouchard_loss, "xi"),
    of_another_shape(losses.bouchard_loss, "alpha"),
    refused("a word for xi of the loss", losses.bouchard_loss, ValueError,
            "xi='single'", "'shared'", "'per_class'", xi="single"),
    Wrong("a word for xi of the bound", lambda _: losses.bouchard_bound(SCORES, "single"),
          ValueError, "xi='single'.*'shared'.*'per_class'"),
    counts("shape", ValueError, "target", r"\(2, 5\)", r"\(2, 4\)", target=torch.zeros(2, 4)),
    counts("whole logits", TypeError, "count_logits", "floating", dtype=torch.int64),
    counts("labels", ValueError, "target", "0 or 1", "2", target=2 * LABELS),
    counts("reduction", ValueError, "reduction='batch'", reduction="batch"),
    *(nll(ValueError, f"mapping='{name}'", "zeros", f"use {own}", mapping=name)
      for name, own in OWN.items()),
    *(nll(ValueError, f"mapping='{name}'", "zeros", f"use {own}", mapping=Mapping(name),
          name=f"Mapping {name}") for name, own in OWN.items()),
    nll(ValueError, f"mapping='{SPHERICAL}'", "zeros", mapping=SPHERICAL, eps=0.0),
    *(nll(ValueError, f"mapping='{name}'", "may sum to", "a loss", "softmax", mapping=name)
      for name in ("softpick", "clipped-softmax", "sigmoid", "relu")),
    nll(ValueError, "mapping='softmax'", "at most one", "leave `sink` out", name="a sink",
        mapping=Mapping("softmax", sink=0.0)),
    nll(ValueError, "mapping='softmax'", "at most one", "leave `sink` out", mapping="softmax",
        sink=0.0),
    refused("mapping_loss of sigmoid", losses.mapping_loss, ValueError, "mapping='sigmoid'",
            "anything", "a distribution", mapping="sigmoid"),
    nll(TypeError, "eps", "own parameters", mapping=Mapping(SPHERICAL), eps=0.1),
    nll(TypeError, "eps", "sigsoftmax takes bias", mapping="sigsoftmax", eps=0.1),
    nll(TypeError, "mapping='plif'", "sparse_attn.Mapping", mapping="plif"),
    nll(ValueError, "mapping='softmx'", "softmax", mapping="softmx"),
    nll(ValueError, "eps=-1", "out of range", mapping=SPHERICAL, eps=-1.0),
]  # fmt: skip
