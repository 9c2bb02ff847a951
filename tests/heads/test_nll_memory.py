"""nll never holds a full matrix of scores: its memory is set by the chunk."""

import functools

import pytest
import torch
from torch.nn import functional as F

from benchmarks.timing import peak_memory
from sparse_attn import Mapping
from sparse_attn.heads import LinearHead, MixtureHead
from tests.marks import first

# what torch.profiler says of itself
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

TOKENS, WORDS, SIZE = 1024, 5000, 32
SCORE_ROW = 4 * WORDS / (1 << 20)  # MiB
FULL = TOKENS * SCORE_ROW

HEADS = {
    "softmax": lambda: LinearHead(SIZE, WORDS),
    "sigsoftmax-bias": lambda: LinearHead(SIZE, WORDS, Mapping("sigsoftmax", learn="bias")),
    "taylor-softmax": lambda: LinearHead(SIZE, WORDS, "taylor-softmax"),
    "plif": lambda: LinearHead(SIZE, WORDS, Mapping("plif", knots=1000, bound=20.0)),
    "mos": lambda: MixtureHead(SIZE, WORDS, components=3, latent=16),
    "moss-no-bias": lambda: MixtureHead(SIZE, WORDS, "sigsoftmax", 2, bias=False, latent=16),
}
sizes = pytest.mark.parametrize("name", first(*HEADS))


def gradient_size(head):
    return sum(p.numel() for p in head.parameters()) * 4 / (1 << 20)  # MiB


@functools.cache
def peak(name, tokens, chunk, training=True):
    """MiB beyond what lay there before."""
    torch.manual_seed(0)
    head = HEADS[name]().requires_grad_(training)
    hidden = torch.randn(tokens, SIZE, requires_grad=training)
    targets = torch.randint(WORDS, (tokens,))

    def step():
        loss = head.nll(hidden, targets, chunk=chunk)
        return loss.backward() if training else loss

    return peak_memory(step, torch.device("cpu"))


@sizes
def test_memory_is_set_by_the_chunk(name):
    """A few rows of scores for every row of the chunk, and a fraction of the whole matrix.

    Twice the parameters: gradients may be summed in one buffer and handed over in another.
    """
    head = HEADS[name]()
    few, many = peak(name, TOKENS, 32), peak(name, TOKENS, 128)
    assert few < 2 * gradient_size(head) + 12 * 32 * SCORE_ROW + 2
    assert few < FULL / 2
    # the profiler sees the chunk's buffers: four times the chunk, about four times as many
    assert 2 * 96 * SCORE_ROW < many - few < 12 * 96 * SCORE_ROW


@sizes
def test_memory_does_not_grow_with_the_tokens(name):
    """But for what is of the size of the hidden states: the full matrix of the others is 10 MiB."""
    grown = peak(name, TOKENS, 32) - peak(name, TOKENS // 2, 32)
    rows = 12 * (TOKENS // 2) * SIZE * 4 / (1 << 20)
    assert grown < rows


@sizes
def test_memory_without_gradients(name):
    assert peak(name, TOKENS, 32, training=False) < 12 * 32 * SCORE_ROW + 2


@sizes
def test_nothing_of_the_size_of_the_scores_is_saved(name):
    """Between forward and backward: neither scores nor probabilities of all tokens."""
    head = HEADS[name]()
    hidden = torch.randn(512, SIZE, requires_grad=True)
    saved = {}

    def pack(tensor):
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    targets = torch.randint(WORDS, (512,))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        losses = head.nll(hidden, targets, reduction="none", chunk=16)
    assert losses.requires_grad
    assert saved
    assert sum(saved.values()) < 4 * 512 * WORDS / 2


def test_the_meter_sees_a_full_matrix():
    """The tests above can fail."""
    head = HEADS["softmax"]()
    hidden = torch.randn(TOKENS, SIZE, requires_grad=True)
    targets = torch.randint(WORDS, (TOKENS,))
    plain = peak_memory(
        lambda: F.cross_entropy(head.scores(hidden), targets).backward(),
        torch.device("cpu"),
    )
    assert plain > FULL
    assert peak("softmax", TOKENS, TOKENS) > FULL
