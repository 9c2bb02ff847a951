"""Bad input to AdaptiveHead."""

import pytest
import torch

from sparse_attn.heads import AdaptiveHead
from tests.heads.plain import HIDDEN, assert_same, random_hidden

WORDS, CUTOFFS = 17, (4, 9, 12)


def small_head():
    return AdaptiveHead(HIDDEN, WORDS, CUTOFFS, div_value=1.5).double()


@pytest.mark.parametrize(
    "cutoffs", [(), (0, 5), (5, 5), (9, 4), (-1,), (4, WORDS), (WORDS,), (4, 30)], ids=str
)
def test_bad_cutoffs(cutoffs):
    with pytest.raises(ValueError, match=r"cutoffs=.*\[1, 16\]"):
        AdaptiveHead(HIDDEN, WORDS, cutoffs)


@pytest.mark.parametrize("cutoffs", [(4.0, 9), ("4",)], ids=str)
def test_cutoffs_of_another_type(cutoffs):
    with pytest.raises(TypeError, match=r"cutoffs=.*whole numbers"):
        AdaptiveHead(HIDDEN, WORDS, cutoffs)


@pytest.mark.parametrize("div_value", [0.0, 0.5, -4.0, float("nan"), float("inf")])
def test_bad_div_value(div_value):
    with pytest.raises(ValueError, match=f"div_value={div_value}"):
        AdaptiveHead(HIDDEN, WORDS, CUTOFFS, div_value=div_value)


def test_projections_to_nothing():
    """5 // 4^2 = 0, which torch makes without a word."""
    with pytest.raises(ValueError, match=r"div_value=4.0.*cluster 3"):
        AdaptiveHead(HIDDEN, WORDS, CUTOFFS)


@pytest.mark.parametrize(
    "name", ["sparsemax", "entmax", "r-softmax", "normalized-relu", "weighted-softmax"]
)
def test_mappings_it_does_not_take(name):
    with pytest.raises(ValueError, match=rf"mapping={name}.*pointwise"):
        AdaptiveHead(HIDDEN, WORDS, CUTOFFS, name, div_value=1.5)


def test_target_outside_the_vocabulary():
    head = small_head()
    with pytest.raises(ValueError, match=r"targets.*17"):
        head.nll(random_hidden(2), torch.tensor([0, 17]))


@pytest.mark.parametrize("method", ["log_prob", "nll"])
def test_hidden_of_another_size(method):
    head = small_head()
    arguments = (torch.tensor([0, 1]),) if method == "nll" else ()
    with pytest.raises(ValueError, match="hidden"):
        getattr(head, method)(torch.randn(2, HIDDEN + 1, dtype=torch.float64), *arguments)


def test_nan_stays_in_its_token():
    head, hidden = small_head(), random_hidden(4, grad=False)
    targets = torch.tensor([0, 5, 16, 10])
    clean = head.nll(hidden, targets, reduction="none")
    hidden[2] = torch.nan
    found = head.nll(hidden, targets, reduction="none")
    assert found.isnan().tolist() == [False, False, True, False]
    assert_same(found[[0, 1, 3]], clean[[0, 1, 3]])
