"""What the losses refuse: each message names the argument, what was expected and what came."""

import math

import pytest
import torch

from sparse_attn import Mapping, losses
from tests.losses.cases import CASES, every_case

SCORES = torch.randn(2, 5)
LABELS = torch.tensor([[1, 0, 0, 1, 0], [0, 1, 0, 0, 0]])
MASK = torch.tensor([[True, False, True, True, True]])
WITHOUT_MAPPING = (losses.squared_error, losses.sparsemax_loss, losses.bouchard_loss)


def refuses(error, *parts):
    """The parts in this order, anywhere in the message."""
    return pytest.raises(error, match="(?s)" + ".*".join(parts))


@every_case
def test_scores(case):
    with refuses(TypeError, "scores", "floating", "int64"):
        case(LABELS, LABELS)
    with refuses(ValueError, "scores", r"\(\.\.\., n\)", r"\(\)"):
        case(torch.tensor(1.0), torch.tensor(0))
    with refuses(ValueError, "scores", "at least 1", r"\(2, 0\)"):
        case(torch.zeros(2, 0), torch.zeros(2, 0))


@every_case
@pytest.mark.parametrize("shape", [(3,), (2, 4), (1, 5), (2, 1), (), (2, 5, 1)], ids=str)
def test_shape_of_target(case, shape):
    with refuses(ValueError, "target", r"\(2,\)", r"\(2, 5\)", str(shape)[:-1].replace("(", r"\(")):
        case(SCORES, torch.zeros(shape).long())


@every_case
@pytest.mark.parametrize("value", [5, -1, -101, 10**9])
def test_class_out_of_range(case, value):
    with refuses(ValueError, "target", f"{value}", r"\[0, 5\)", "-100"):
        case(SCORES, torch.tensor([0, value]))


@every_case
@pytest.mark.parametrize("dtype", [torch.float32, torch.bool])
def test_classes_that_are_no_whole_numbers(case, dtype):
    with refuses(TypeError, "target", "whole numbers", str(dtype)):
        case(SCORES, torch.ones(2, dtype=dtype))


@every_case
@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_label_weights(case, value):
    with refuses(ValueError, "target", "expected", str(value)):
        case(SCORES, LABELS.float().index_fill(1, torch.tensor([3]), value))


@pytest.mark.parametrize("name", [n for n, c in CASES.items() if c.binary])
def test_labels_that_are_neither_0_nor_1(name):
    with refuses(ValueError, "target", "0 or 1", "0.5"):
        CASES[name](SCORES, LABELS / 2)


@every_case
def test_label_at_a_masked_class(case):
    with refuses(ValueError, "target", r"\(1,\)", "masked"):
        case(SCORES, LABELS, mask=MASK)
    with refuses(ValueError, "target", r"\(1,\)", "masked"):
        case(SCORES, torch.tensor([0, 1]), mask=MASK)


@every_case
def test_mask(case):
    with refuses(TypeError, "mask", "boolean", "int64", r"`mask.bool\(\)` if 1 = takes part$"):
        case(SCORES, LABELS, mask=LABELS)
    with refuses(ValueError, "mask", r"\(3, 5\)", r"\(2, 5\)"):
        case(SCORES, LABELS, mask=torch.ones(3, 5, dtype=torch.bool))


@every_case
def test_reduction(case):
    with refuses(ValueError, "reduction='batch'", "mean, sum, none"):
        case(SCORES, LABELS, reduction="batch")


@pytest.mark.parametrize("loss", WITHOUT_MAPPING[:1] + WITHOUT_MAPPING[2:])
def test_a_row_without_labels_is_no_distribution(loss):
    with refuses(ValueError, "target", r"\(1,\)", "no label"):
        loss(SCORES, LABELS * torch.tensor([[1], [0]]))


@pytest.mark.parametrize(
    ("loss", "name", "value"),
    [
        (losses.entmax_loss, "alpha", 0.5),
        (losses.entmax_loss, "alpha", 2.5),
        (losses.entmax_loss, "alpha", math.nan),
        (losses.sparsegen_hinge_loss, "lam", 1.0),
        (losses.sparsehourglass_loss, "q", -0.1),
        (losses.r_softmax_multilabel_loss, "r", 1.1),
        (losses.t_softmax_multilabel_loss, "t", -1.0),
        (losses.bouchard_loss, "xi", -0.1),
        (losses.bouchard_loss, "xi", math.inf),
        (losses.bouchard_loss, "xi", torch.tensor([1.0, 1.0, -0.5, 0.0, 0.0])),
        (losses.bouchard_loss, "alpha", math.nan),
    ],
)
def test_parameters_out_of_range(loss, name, value):
    shown = value.min().item() if isinstance(value, torch.Tensor) else value
    with refuses(ValueError, f"{name}={shown}", "expected a (finite )?number"):
        loss(SCORES, LABELS, **{name: value})


@pytest.mark.parametrize(
    ("loss", "name"),
    [
        (losses.entmax_loss, "alpha"),
        (losses.sparsegen_hinge_loss, "lam"),
        (losses.sparsehourglass_loss, "q"),
        (losses.r_softmax_multilabel_loss, "r"),
        (losses.t_softmax_multilabel_loss, "t"),
        (losses.bouchard_loss, "xi"),
        (losses.bouchard_loss, "alpha"),
    ],
)
def test_parameters_of_another_shape(loss, name):
    with refuses(ValueError, name, r"\(3,\)", "broadcast"):
        loss(SCORES, LABELS, **{name: torch.ones(3)})


def test_unknown_word_for_xi():
    for bound in (losses.bouchard_bound, lambda z, xi: losses.bouchard_loss(z, LABELS, xi)):
        with refuses(ValueError, "xi='single'", "'shared'", "'per_class'"):
            bound(SCORES, "single")


def test_label_count_loss():
    with refuses(ValueError, "target", r"\(2, 5\)", r"\(2, 4\)"):
        losses.label_count_loss(torch.zeros(2, 6), torch.zeros(2, 4))
    with refuses(TypeError, "count_logits", "floating"):
        losses.label_count_loss(torch.zeros(2, 6).long(), LABELS)
    with refuses(ValueError, "target", "0 or 1", "2"):
        losses.label_count_loss(torch.zeros(2, 6), 2 * LABELS)
    with refuses(ValueError, "reduction='batch'"):
        losses.label_count_loss(torch.zeros(2, 6), LABELS, reduction="batch")


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("sparsemax", "sparsemax_loss"),
        ("entmax", "entmax_loss"),
        ("sparsegen", "sparsegen_hinge_loss"),
        ("sparsehourglass", "sparsehourglass_loss"),
        ("r-softmax", "r_softmax_multilabel_loss"),
        ("t-softmax", "t_softmax_multilabel_loss"),
        ("sparsecone", "a mapping without zeros"),
        ("normalized-relu", "a mapping without zeros"),
    ],
)
def test_likelihood_of_a_mapping_with_zeros(name, own):
    for mapping in (name, Mapping(name)):
        with refuses(ValueError, f"mapping='{name}'", "zeros", f"use {own}"):
            losses.mapping_nll(SCORES, LABELS, mapping)
    assert not own.endswith("_loss") or hasattr(losses, own)


def test_likelihood_of_a_mapping_that_reaches_zero_at_the_end_of_a_range():
    with refuses(ValueError, "mapping='spherical-softmax'", "zeros"):
        losses.mapping_nll(SCORES, LABELS, "spherical-softmax", eps=0.0)


def test_parameters_of_a_mapping():
    with refuses(TypeError, "eps", "own parameters"):
        losses.mapping_nll(SCORES, LABELS, Mapping("spherical-softmax"), eps=0.1)
    with refuses(TypeError, "eps", "sigsoftmax takes bias"):
        losses.mapping_nll(SCORES, LABELS, "sigsoftmax", eps=0.1)
    with refuses(TypeError, "mapping='plif'", "sparse_attn.Mapping"):
        losses.mapping_nll(SCORES, LABELS, "plif")
    with refuses(ValueError, "mapping='softmx'", "softmax"):
        losses.mapping_nll(SCORES, LABELS, "softmx")
    with refuses(ValueError, "eps=-1", "out of range"):
        losses.mapping_nll(SCORES, LABELS, "spherical-softmax", eps=-1.0)
