"""Errors of MultiLabelHead and search_threshold: what was expected, what came, what helps."""

import math

import pytest
import torch

from sparse_attn import Mapping, SparsitySchedule
from sparse_attn.heads import MultiLabelHead, search_threshold

HIDDEN, LABELS = 4, 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"hidden": 0}, "hidden=0: expected at least 1"),
        ({"labels": 0}, "labels=0: expected at least 1"),
        ({"mapping": "r-sotfmax"}, "mapping='r-sotfmax' is unknown; did you mean r-softmax"),
        ({"mapping": Mapping("r-softmax", num_heads=2, r=[0.1, 0.2])}, "one value for each of 2"),
        ({"mapping": "sparsecone"}, "mapping=sparsecone: it returns zeros and has no loss"),
        ({"mapping": "normalized-relu"}, "it returns zeros.*one of t-softmax, r-softmax, spars"),
        ({"sparsity": "learned"}, "sparsity='learned': expected 'fixed' or 'predicted'"),
        ({"mapping": "softmax", "sparsity": "predicted"}, "expected t-softmax or r-softmax.*softm"),
        ({"mapping": "entmax", "sparsity": "predicted"}, "t-softmax or r-softmax.*got entmax"),
        ({"mapping": Mapping("t-softmax", learn="t"), "sparsity": "predicted"},
         "got t-softmax that learns t"),
        ({"mapping": Mapping("r-softmax", r=0.3), "sparsity": "predicted"},
         r"r=0\.3 would have no effect; leave r out"),
        ({"mapping": Mapping("t-softmax", t=0.0), "sparsity": "predicted"},
         "t=0.0: a learned t must start strictly inside"),
        ({"loss": "bce"}, "loss='bce': r-softmax can be trained by r-softmax"),
        ({"loss": "nll"}, "loss='nll': r-softmax can be trained by r-softmax"),
        ({"mapping": "sparsemax", "loss": "nll"}, "trained by sparsemax, sparsegen-hinge"),
        ({"mapping": "softmax", "loss": "sparsemax"}, "loss='sparsemax': softmax can be .* by nll"),
        ({"threshold": 1.0}, r"threshold=1\.0: expected a number in \[0, 1\)"),
        ({"threshold": -0.1}, r"threshold=-0\.1: expected a number in \[0, 1\)"),
        ({"threshold": math.nan}, "threshold=nan: expected"),
        ({"mapping": "softmax", "threshold": 0}, "threshold=0: softmax gives every label p > 0"),
    ],
    ids=str,
)  # fmt: skip
def test_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        MultiLabelHead(**{"hidden": HIDDEN, "labels": LABELS, **arguments})


def test_a_mapping_is_a_name_or_a_mapping():
    with pytest.raises(TypeError, match=r"mapping: expected a registered name or a .*got builtin"):
        MultiLabelHead(HIDDEN, LABELS, torch.softmax)


@pytest.mark.parametrize("mapping", ["softmax", "sparsemax", "r-softmax"])
@pytest.mark.parametrize(
    ("hidden", "target", "options", "message"),
    [
        ((2, 5), (2, LABELS), {}, r"hidden: expected shape \(\.\.\., 4\), got \(2, 5\)"),
        ((), (LABELS,), {}, r"hidden: expected shape \(\.\.\., 4\), got \(\)"),
        ((2, HIDDEN), (2, 4), {}, r"target: expected shape \(2, 3\).*got \(2, 4\)"),
        ((2, HIDDEN), (2,), {}, r"target: expected shape \(2, 3\), one entry a label, got \(2,\)"),
        ((2, HIDDEN), (LABELS,), {}, r"target: expected shape \(2, 3\).*got \(3,\)"),
        ((2, HIDDEN), (2, LABELS), {"reduction": "max"}, "reduction='max': expected one of mean"),
    ],
    ids=str,
)
def test_shapes_and_reduction(mapping, hidden, target, options, message):
    head = MultiLabelHead(HIDDEN, LABELS, mapping)
    with pytest.raises(ValueError, match=message):
        head.loss(torch.zeros(hidden), torch.zeros(target), **options)


@pytest.mark.parametrize("sparsity", ["fixed", "predicted"])
@pytest.mark.parametrize("value", [2, -1, 0.5, -100, math.nan, math.inf])
def test_values_of_targets(sparsity, value):
    head = MultiLabelHead(HIDDEN, LABELS, sparsity=sparsity)
    target = torch.tensor([[0, 1, 0], [1, value, 0]])
    for bad in (target, target.half(), target.double()):
        with pytest.raises(ValueError, match=r"target: expected 0 or 1 for every label, got "):
            head.loss(torch.zeros(2, HIDDEN), bad)
    if value == 2:
        with pytest.raises(ValueError, match=r"target.*got 2; use one_hot for class numbers"):
            head.loss(torch.zeros(2, HIDDEN), torch.tensor([[0, 1, 0], [1, 2, 0]]))


@pytest.mark.parametrize("wrong", [1.0, -0.5, math.nan])
def test_a_threshold_that_is_set(wrong):
    head = MultiLabelHead(HIDDEN, LABELS)
    with pytest.raises(ValueError, match=f"threshold={wrong}: expected a number in"):
        head.threshold = wrong
    assert head.threshold == 0
    dense = MultiLabelHead(HIDDEN, LABELS, "softmax")
    with pytest.raises(ValueError, match=r"expected a number in \(0, 1\), which search_threshold"):
        dense.threshold = 0


@pytest.mark.parametrize(
    ("arguments", "parameter", "value", "message"),
    [
        ({}, "t", 1.0, "parameter='t': r-softmax with sparsity='fixed' has no such fixed"),
        ({}, "r", 1.5, r"r=1\.5 is out of range"),
        ({"sparsity": "predicted"}, "r", 0.5, "'r': r-softmax with sparsity='predicted' has no"),
        ({"mapping": Mapping("t-softmax", learn="t")}, "t", 0.5, "has no such fixed parameter"),
    ],
    ids=str,
)
def test_parameters_that_cannot_be_set(arguments, parameter, value, message):
    head = MultiLabelHead(HIDDEN, LABELS, **arguments)
    before = head.describe()
    with pytest.raises(ValueError, match=message):
        SparsitySchedule(parameter, value, value).apply(head, 0.5)
    assert head.describe() == before


@pytest.mark.parametrize("arguments", [{}, {"mapping": "t-softmax", "sparsity": "predicted"}])
def test_only_a_predicted_r_counts(arguments):
    head = MultiLabelHead(HIDDEN, LABELS, **arguments)
    with pytest.raises(ValueError, match="predicts no number of labels; use r-softmax with spars"):
        head.count_scores(torch.zeros(2, HIDDEN))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"candidates": ()}, "candidates: expected at least one number"),
        ({"candidates": (0.1, 1.0)}, r"candidates=1\.0: expected a number in \[0, 1\)"),
        ({"average": "weighted"}, "average='weighted': expected one of micro, macro, samples"),
        ({"target": torch.ones(2, 4)}, r"target: expected shape \(2, 3\).*got \(2, 4\)"),
        ({"target": torch.full((2, 3), 2)}, "target: expected 0 or 1 for every label, got 2"),
    ],
    ids=str,
)
def test_search_threshold(changes, message):
    arguments = {"log_p": torch.zeros(2, 3), "target": torch.ones(2, 3), **changes}
    with pytest.raises(ValueError, match=message):
        search_threshold(**arguments)


@pytest.mark.parametrize(
    ("log_p", "found"),
    [(torch.full((2, LABELS), math.nan), "NaN"), (torch.zeros(0, LABELS), r"shape \(0, 3\)")],
)
def test_a_threshold_is_not_searched_in_nothing(log_p, found):
    with pytest.raises(ValueError, match=rf"log_p: expected log p of one row at least.*{found}"):
        search_threshold(log_p, torch.zeros(log_p.shape))


@pytest.mark.parametrize("target", [[0, 1, 1], torch.zeros(1, LABELS, dtype=torch.complex64)])
def test_target_is_a_real_tensor(target):
    with pytest.raises(TypeError, match="target: expected a real tensor of 0 and 1, got"):
        MultiLabelHead(HIDDEN, LABELS).loss(torch.zeros(1, HIDDEN), target)


def test_hidden_is_floating_point():
    with pytest.raises(TypeError, match=r"hidden: expected floating point, got torch\.int64"):
        MultiLabelHead(HIDDEN, LABELS)(torch.zeros(1, HIDDEN, dtype=torch.int64))


@pytest.mark.parametrize("scores", [torch.randn(5, LABELS) + 3, torch.rand(5, LABELS)])
def test_a_threshold_is_not_searched_in_scores_or_probabilities(scores):
    with pytest.raises(ValueError, match="log_p: expected logarithms of probabilities, at most 0"):
        search_threshold(scores, torch.zeros(5, LABELS))


@pytest.mark.parametrize("value", [None, "x"])
def test_a_threshold_is_a_number(value):
    with pytest.raises(TypeError, match=r"threshold=.*expected a number in \[0, 1\)"):
        MultiLabelHead(HIDDEN, LABELS, "softmax").threshold = value
