"""The memory of a loss is set by its chunk, and a step of the factored head by no vocabulary."""

import functools

import pytest
import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.timing import peak_memory
from sparse_attn import Mapping
from sparse_attn.heads import AdaptiveHead, FactoredSphericalHead, LinearHead, MixtureHead
from tests.marks import first

# what torch.profiler says of itself
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

CPU = torch.device("cpu")
TOKENS, WORDS, SIZE = 1024, 5000, 32
SCORE_ROW = 4 * WORDS / (1 << 20)  # MiB; of an adaptive head, of its largest part
FULL = TOKENS * SCORE_ROW

HEADS = {
    "softmax": lambda: LinearHead(SIZE, WORDS),
    "sigsoftmax-bias": lambda: LinearHead(SIZE, WORDS, Mapping("sigsoftmax", learn="bias")),
    "taylor-softmax": lambda: LinearHead(SIZE, WORDS, "taylor-softmax"),
    "plif": lambda: LinearHead(SIZE, WORDS, Mapping("plif", knots=1000, bound=20.0)),
    "mos": lambda: MixtureHead(SIZE, WORDS, components=3, latent=16),
    "moss-no-bias": lambda: MixtureHead(SIZE, WORDS, "sigsoftmax", 2, bias=False, latent=16),
    "adaptive": lambda: AdaptiveHead(SIZE, 8000, (1000, 3000), "sigsoftmax"),
}
sizes = pytest.mark.parametrize("name", HEADS)


def gradient_size(head):
    return sum(p.numel() for p in head.parameters()) * 4 / (1 << 20)  # MiB


@functools.cache
def peak(name, tokens, chunk, training=True, rare=1.0):
    """MiB beyond what lay there before; `rare` is the share of the targets above 1000."""
    torch.manual_seed(0)
    head = HEADS[name]().requires_grad_(training)
    hidden = torch.randn(tokens, SIZE, requires_grad=training)
    frequent, others = torch.randint(1000, (tokens,)), torch.randint(1000, head.vocab, (tokens,))
    targets = torch.where(torch.rand(tokens) < rare, others, frequent)

    def step():
        loss = head.nll(hidden, targets, chunk=chunk)
        return loss.backward() if training else loss

    return peak_memory(step, CPU)


@pytest.mark.parametrize("name", first("softmax", "plif", "mos", "adaptive"))
def test_memory_is_set_by_the_chunk(name):
    """A few rows of scores for every row of the chunk, and a fraction of the whole matrix.

    Twice the parameters: gradients may be summed in one buffer and handed over in another.
    """
    few, many = peak(name, TOKENS, 32), peak(name, TOKENS, 128)
    assert few < 2 * gradient_size(HEADS[name]()) + 12 * 32 * SCORE_ROW + 2
    assert few < FULL / 2
    # the profiler sees the chunk's buffers: four times the chunk, about four times as many
    assert (1 if name == "adaptive" else 2) * 96 * SCORE_ROW < many - few < 12 * 96 * SCORE_ROW
    assert peak(name, TOKENS, 32, training=False) < 12 * 32 * SCORE_ROW + 2
    # a few tensors of the size of the hidden states: the full matrix of the others is 10 MiB
    grown = few - peak(name, TOKENS // 2, 32)
    assert grown < (20 if name == "adaptive" else 12) * (TOKENS // 2) * SIZE * 4 / (1 << 20)


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


def test_rows_meet_the_words_of_their_own_cluster_only():
    """In one chunk: the shortlist for all, the largest cluster for one row in fourteen."""
    frequent = peak("adaptive", 512, 512, rare=0.1)
    assert frequent < peak("adaptive", 512, 512) - 2 * 256 * SCORE_ROW


def test_the_meter_sees_a_full_matrix():
    """The tests above can fail."""
    head = HEADS["softmax"]()
    hidden = torch.randn(TOKENS, SIZE, requires_grad=True)
    targets = torch.randint(WORDS, (TOKENS,))
    plain = peak_memory(lambda: F.cross_entropy(head.scores(hidden), targets).backward(), CPU)
    assert plain > FULL
    assert peak("softmax", TOKENS, TOKENS) > FULL


# The factored head


def step_cost(vocab):
    """Floating-point operations of matrix products and bytes allocated by one training step."""
    head = FactoredSphericalHead(16, vocab)
    hidden = torch.randn(8, 16, requires_grad=True)
    targets = torch.arange(8)

    def step():
        head(hidden, targets).backward()
        head.step(0.1)

    with FlopCounterMode(display=False) as flops:
        step()
    with torch.profiler.profile(profile_memory=True, acc_events=True) as record:
        step()
    events = record.profiler.kineto_results.events()
    return flops.get_total_flops(), max(e.nbytes() for e in events if e.name() == "[memory]")


def test_a_step_costs_the_same_for_every_vocabulary():
    small, large = step_cost(50), step_cost(50_000)
    assert small == large
    assert small[0] > 0
    # nothing with a row for each word is ever allocated
    assert large[1] < 50_000
