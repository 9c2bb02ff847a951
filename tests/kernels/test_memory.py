"""What is kept for the backward pass: nothing of the size of the scores."""

import gc

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sparse_attn import Mapping
from sparse_attn.kernels.inputs import AttentionInputs

from .backends import each
from .problems import LEARNED, SETTINGS, Inputs, Problem

SIZE = 128
SHAPE = {"batch": 1, "heads": 1, "kv_heads": 1, "queries": SIZE, "keys": SIZE, "dim": 16}
CASES = [
    *(Problem(name, params, **SHAPE) for name, params in SETTINGS),
    *(Problem(name, params, learn=next(iter(params)), **SHAPE) for name, params in LEARNED),
    Problem("r-softmax", {"r": 0.25}, key_lengths=(100,), mask="111K", **SHAPE),
    Problem("entmax", {"alpha": 1.5}, bias="11K", **SHAPE, options={"causal": True, "window": 9}),
    Problem("sparsemax", {}, **SHAPE, options={"dropout": 0.25, "softcap": 4.0}),
    Problem("entmax", {"alpha": 1.5}, packed=(SIZE - 40, 40), **SHAPE),
]


def large_tensors():
    gc.collect()
    return {
        id(t): t.shape for t in gc.get_objects() if isinstance(t, torch.Tensor)
        and not isinstance(t, torch.nn.Parameter) and t.numel() >= SIZE * SIZE
    }  # fmt: skip


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@each()
@pytest.mark.parametrize("case", CASES, ids=str)
def test_nothing_of_the_size_of_the_scores_is_saved(backend, case):
    inputs = backend.inputs(case)
    saved = []

    def pack(tensor):
        saved.append(tensor.untyped_storage().nbytes() // tensor.element_size())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = inputs.attend(backend.impl)
    assert saved, "the backward pass must need something"
    assert max(saved) < SIZE * SIZE, saved
    assert sum(saved) < 8 * inputs.query.numel()
    assert output.requires_grad


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@each()
def test_nothing_of_the_size_of_the_scores_is_left_alive(backend):
    """Also not beside autograd's own list of saved tensors."""
    inputs = backend.inputs(Problem("sparsemax", **SHAPE))
    before = large_tensors()
    output = inputs.attend(backend.impl)
    new = {k: v for k, v in large_tensors().items() if k not in before}
    assert not new
    del output


def test_the_hook_sees_the_reference_keep_them():
    """The test above can fail."""
    inputs = Inputs(Problem("sparsemax", **SHAPE))
    sizes = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, id):
        inputs.attend("reference")
    assert max(sizes) >= SIZE * SIZE


class Largest(TorchDispatchMode):
    """The elements in the largest storage that an operation returns."""

    size = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(found):
            size = tensor.untyped_storage().nbytes() // tensor.element_size()
            self.size = max(self.size, size)
        return found


PADDING = torch.arange(SIZE) < SIZE - 9
LINEAR = {
    "causal": {"causal": True},
    "window": {"window": 9},
    "padding": {"mask": PADDING, "causal": True},
    "packed": {"cu_seqlens": torch.tensor([0, 50, SIZE]), "window": 9},
    "of Transformers": {"mask": PADDING.expand(1, 1, SIZE, SIZE), "bias": torch.zeros(1, SIZE)},
}


@pytest.mark.parametrize("options", LINEAR.values(), ids=LINEAR)
def test_keys_are_counted_without_the_size_of_the_scores(options):
    query = torch.randn(1, 1, SIZE, 8)
    inputs = AttentionInputs(query, query, query, Mapping("scaled-softmax"), **options)
    with Largest() as largest:
        inputs.for_operator()
    assert 0 < largest.size < SIZE * SIZE
    with Largest() as largest:
        inputs.counted()
    assert largest.size >= SIZE * SIZE, "the test can fail"
