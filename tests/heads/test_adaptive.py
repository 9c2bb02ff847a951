"""AdaptiveHead: torch's adaptive softmax for softmax, and its like for every pointwise mapping."""

import functools

import pytest
import torch
from torch import nn

from benchmarks.timing import peak_memory
from sparse_attn import Mapping
from sparse_attn.heads import AdaptiveHead, parameter_groups
from tests.heads.plain import (
    BY_NAME,
    CUTOFFS,
    HIDDEN,
    WORDS,
    adaptive_head,
    assert_same,
    dense_log_prob,
    dense_nll,
    gradients,
    random_hidden,
)

reductions = pytest.mark.parametrize("reduction", ["mean", "sum", "none"])


def torch_twin(head, bias):
    """torch's adaptive softmax with the same weights; its clusters have no bias."""
    twin = nn.AdaptiveLogSoftmaxWithLoss(
        head.hidden, head.vocab, list(head.cutoffs), div_value=2.0, head_bias=bias
    ).double()
    with torch.no_grad():
        twin.head.weight.copy_(head.shortlist.weight)
        if bias:
            twin.head.bias.copy_(head.shortlist.bias)
        for (projection, words), cluster in zip(twin.tail, head.clusters, strict=True):
            projection.weight.copy_(cluster.projection.weight)
            words.weight.copy_(cluster.head.weight)
            if bias:
                cluster.head.bias.zero_()
    return twin


# Values and gradients


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no-bias"])
@pytest.mark.parametrize("cutoffs", [(4,), (1, 2), CUTOFFS, (4, 9, 16)], ids=str)
def test_softmax_equals_torch(bias, cutoffs):
    head = adaptive_head(BY_NAME["softmax"], 12, bias=bias, div_value=2.0, cutoffs=cutoffs)
    twin = torch_twin(head, bias)
    hidden = torch.randn(20, 12, dtype=torch.float64, requires_grad=True)
    targets = torch.arange(20) % WORDS  # the first and last word of every cluster among them
    assert_same(head.log_prob(hidden), twin.log_prob(hidden))
    output, loss = twin(hidden, targets)
    assert_same(head.nll(hidden, targets, reduction="none", chunk=3), -output)
    assert_same(head.nll(hidden, targets, chunk=3), loss)
    found = gradients(head.nll(hidden, targets), hidden, head.shortlist.weight)
    assert_same(found, gradients(loss, hidden, twin.head.weight))


@reductions
@pytest.mark.parametrize("words", [[0, 1, 2, 3], [16, 16], [4, 0, 8]], ids=str)
def test_a_cluster_that_no_target_hits(words, reduction):
    """Its parameters get zeros, not None, which distributed training would wait for."""
    case = BY_NAME["plif"]
    head, targets = adaptive_head(case), torch.tensor(words)
    hidden = random_hidden(len(words))
    found = head.nll(hidden, targets, reduction=reduction).sum()
    expected = dense_nll(dense_log_prob(case, head, hidden), targets, reduction).sum()
    assert_same(found, expected)
    inputs = (hidden, *head.parameters())
    wanted = gradients(expected, *inputs)
    found.backward()
    assert_same([tensor.grad for tensor in inputs], wanted)


# Structure


def test_sizes_of_the_parts():
    """Grave et al.: hidden // div_value^i for cluster i, the clusters themselves in q."""
    head = AdaptiveHead(64, 1000, [10, 100, 500], div_value=4.0)
    assert head.shortlist.weight.shape == (13, 64)
    shapes = [(tuple(c.projection.weight.shape), tuple(c.head.weight.shape)) for c in head.clusters]
    assert shapes == [((16, 64), (90, 16)), ((4, 64), (400, 4)), ((1, 64), (500, 1))]
    assert (head.hidden, head.vocab, head.cutoffs) == (64, 1000, (10, 100, 500))


def test_one_mapping_for_all_parts():
    head = AdaptiveHead(HIDDEN, WORDS, CUTOFFS, Mapping("plif", knots=10), div_value=1.5)
    groups = parameter_groups(head, lr=1.0, mapping_lr=0.1)
    slopes = [p for group in groups if group["lr"] == 0.1 for p in group["params"]]
    assert [tuple(p.shape) for p in slopes] == [(10,)]


# Memory


@functools.cache
def peak(tokens, chunk, rare=0.1):
    """MiB of forward and backward; `rare` is the share of the targets outside the shortlist."""
    torch.manual_seed(0)
    head = AdaptiveHead(32, 8000, (1000, 3000), "sigsoftmax")
    hidden = torch.randn(tokens, 32, requires_grad=True)
    frequent, infrequent = torch.randint(1000, (tokens,)), torch.randint(1000, 8000, (tokens,))
    targets = torch.where(torch.rand(tokens) < rare, infrequent, frequent)
    return peak_memory(
        lambda: head.nll(hidden, targets, chunk=chunk).backward(), torch.device("cpu")
    )


SCORE_ROW = 4 * 5000 / (1 << 20)  # MiB, of the largest part


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_memory_is_set_by_the_chunk():
    """The scores of all tokens and words would add 15 MiB for every 512 tokens."""
    assert peak(512, 16, rare=1.0) < 12 * 16 * SCORE_ROW + 4
    # hidden states, and a few tensors of their size
    assert peak(1024, 16, rare=1.0) - peak(512, 16, rare=1.0) < 20 * 512 * 32 * 4 / (1 << 20)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_rows_meet_the_words_of_their_own_cluster_only():
    """In one chunk: the shortlist for all, the largest cluster for one row in fourteen."""
    assert peak(512, 512) < peak(512, 512, rare=1.0) - 2 * 256 * SCORE_ROW


def test_a_state_dict_loads_into_another_head() -> None:
    one, other = (adaptive_head(BY_NAME["sigsoftmax"]) for _ in range(2))
    hidden = random_hidden(3)
    assert not torch.equal(other.log_prob(hidden), one.log_prob(hidden))
    other.load_state_dict(one.state_dict())
    torch.testing.assert_close(other.log_prob(hidden), one.log_prob(hidden), rtol=0, atol=0)
