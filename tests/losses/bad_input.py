"""What the losses refuse, a row for each argument: the message names it."""

import math
from functools import partial

import torch

from sparse_attn import Mapping, losses
from tests.bad_input import Wrong
from tests.losses.cases import CASES

SCORES = torch.randn(2, 5)
LABELS = torch.tensor([[1, 0, 0, 1, 0], [0, 1, 0, 0, 0]])
UNLABELLED = LABELS * torch.tensor([[1], [0]])
SINK = Mapping("softmax", sink=0.0)


def refused(loss, says, error=ValueError, scores=SCORES, target=LABELS, **options):
    name = f"{loss.__name__}: {says} {sorted(options)}"
    return Wrong(name, lambda _: loss(scores, target, **options), error, says)


sparsemax = partial(refused, losses.sparsemax_loss)
nll = partial(refused, losses.mapping_nll)
counts = partial(refused, losses.label_count_loss, scores=torch.zeros(2, 6))


def of_cases(says, cases, target=LABELS, **options):
    """A row for each case, because each must ask for the shared checks."""
    return [
        Wrong(f"{name}: {says}", lambda _, case=case: case(SCORES, target, **options),
              ValueError, says)
        for name, case in cases.items()
    ]  # fmt: skip


NEEDY = {name: case for name, case in CASES.items() if case.needs_labels}
BINARY = {name: case for name, case in CASES.items() if case.binary}
ROWS = [
    *of_cases("target.*masked", CASES, mask=LABELS == 0),
    *of_cases("target.*no label", NEEDY, target=UNLABELLED),
    *of_cases("target.*0 or 1", BINARY, target=2 * LABELS),
    sparsemax("scores.*floating", TypeError, scores=LABELS),
    sparsemax("scores.*at least 1", scores=torch.zeros(2, 0), target=torch.zeros(2, 0)),
    sparsemax(r"target.*\(2, 4\)", target=torch.zeros(2, 4)),
    sparsemax("target: 5 is outside", target=torch.tensor([0, 5])),
    sparsemax("target: -1 is outside", target=torch.tensor([0, -1])),
    sparsemax("target.*integers", TypeError, target=torch.ones(2)),
    *(sparsemax(f"target.*{value}", target=LABELS * value) for value in (-1.0, math.nan, math.inf)),
    sparsemax("mask.*boolean", TypeError, mask=LABELS),
    sparsemax(r"mask.*\(3, 5\)", mask=torch.ones(3, 5, dtype=torch.bool)),
    sparsemax("reduction='batch'", reduction="batch"),
    # parameters
    *(refused(loss, f"{name}={value}", **{name: value}) for loss, name, value in (
        (losses.entmax_loss, "alpha", 2.5),
        (losses.sparsegen_hinge_loss, "lam", 1.0),
        (losses.sparsehourglass_loss, "q", -0.1),
        (losses.r_softmax_multilabel_loss, "r", 1.1),
        (losses.t_softmax_multilabel_loss, "t", -1.0),
        (losses.bouchard_loss, "xi", -0.1),
        (losses.bouchard_loss, "xi", math.inf),
        (losses.bouchard_loss, "alpha", math.nan),
    )),
    refused(losses.entmax_loss, "alpha.*broadcast", alpha=torch.ones(3)),
    refused(losses.bouchard_loss, "xi.*broadcast", xi=torch.ones(3)),
    refused(losses.bouchard_loss, "xi=-0.5", xi=torch.tensor([1.0, 1.0, -0.5, 0.0, 0.0])),
    refused(losses.bouchard_loss, "xi='single'", xi="single"),
    refused(losses.bouchard_bound, "xi='single'", target="single"),
    counts("count_logits.*floating", TypeError, scores=torch.zeros(2, 6, dtype=torch.int64)),
    counts(r"target.*\(2, 4\)", target=torch.zeros(2, 4)),
    counts("target.*0 or 1", target=2 * LABELS),
    counts("reduction='batch'", reduction="batch"),
    # mappings
    nll("zeros.*use sparsemax_loss", mapping="sparsemax"),
    nll("zeros.*use a mapping without", mapping="sparsecone"),
    nll("zeros.*use entmax_loss", mapping=Mapping("entmax")),
    nll("zeros", mapping="spherical-softmax", eps=0.0),
    nll("at most one.*distribution", mapping="softpick"),
    nll("at most one.*sink", mapping=SINK),
    nll("at most one.*sink", mapping="softmax", sink=0.0),
    nll("own parameters", TypeError, mapping=Mapping("spherical-softmax"), eps=0.1),
    nll("sigsoftmax takes bias", TypeError, mapping="sigsoftmax", eps=0.1),
    nll("sparse_attn.Mapping", TypeError, mapping="plif"),
    nll("mapping='softmx'", mapping="softmx"),
    nll("eps=-1", mapping="spherical-softmax", eps=-1.0),
    refused(losses.mapping_loss, "to anything.*distribution", mapping="sigmoid"),
]  # fmt: skip
