"""Activation checkpointing computes a layer again in backward: with the mapping and the values of
its forward pass, or an error says what has changed."""

import copy
import threading

import pytest
import torch
from torch.utils.checkpoint import checkpoint as checkpointed

from sparse_attn import Mapping, patch_model, patched, unpatch_model

from .families import BY_NAME
from .helpers import gradients
from .test_compile import checkpoint

reentrant = pytest.mark.parametrize("reentrant", [False, True])
IDS = torch.arange(20).view(2, 10) + 5
CHANGED = r"changed between .* call backward\(\) before"


def built(reentrant=None):
    torch.manual_seed(0)
    model = BY_NAME["llama"].build().train()
    if reentrant is not None:
        checkpoint(model, reentrant)
    return model


def sparse(reentrant=None, name="r-softmax", **values):
    return patch_model(built(reentrant), name, **(values or {"r": 0.3}))


def loss_of(model):
    return model(input_ids=IDS, use_cache=False)[0].sin().sum()


def set_values(model, r):
    for module in model.modules():
        if isinstance(module, Mapping):
            module.set_value("r", r)


def same(model, expected):
    found = gradients(model)
    assert found.keys() == expected.keys()
    for name, slope in expected.items():
        assert torch.allclose(found[name], slope, atol=1e-5 * slope.abs().max()), name


def expected_of(model):
    loss_of(model).backward()
    return gradients(model)


CHANGES = {
    "patch": (
        lambda checkpoints: built(checkpoints),
        lambda model: patch_model(model, "sparsemax"),
    ),
    "unpatch": (sparse, unpatch_model),
    "another mapping": (sparse, lambda model: patch_model(model, "sparsemax")),
    "no values": (
        lambda checkpoints: patch_model(built(checkpoints), "sparsemax"),
        lambda model: patch_model(model, "softmax"),
    ),
    "a value": (sparse, lambda model: set_values(model, 0.6)),
    "a value for each head": (
        lambda checkpoints: patch_model(
            built(checkpoints), "r-softmax", per="head", r=[0.1, 0.2, 0.3, 0.4]
        ),
        lambda model: set_values(model, [0.1, 0.2, 0.3, 0.5]),
    ),
}


@reentrant
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_before_backward_is_refused(change, reentrant):
    make, apply = CHANGES[change]
    model = make(reentrant)
    loss = loss_of(model)
    apply(model)
    with pytest.raises(RuntimeError, match=CHANGED):
        loss.backward()


@reentrant
def test_backward_after_the_block_is_refused(reentrant):
    model = built(reentrant)
    with patched(model, "r-softmax", r=0.5):
        loss = loss_of(model)
    with pytest.raises(RuntimeError, match=CHANGED):
        loss.backward()
    # and the model works on
    model.zero_grad()
    assert len(expected_of(model)) > 0
    same(model, expected_of(built()))
    with patched(model, "r-softmax", r=0.5):
        model.zero_grad()
        loss_of(model).backward()
    same(model, expected_of(sparse(r=0.5)))


@reentrant
def test_a_change_that_is_undone_is_none(reentrant):
    """As by a teacher, which is the same model with softmax, between forward and backward."""
    model, expected = sparse(reentrant), expected_of(sparse())
    loss = loss_of(model)
    for _ in range(3):
        with patched(model.eval(), "softmax"), torch.no_grad():
            loss_of(model)
    model.train()
    set_values(model, 0.7)
    set_values(model, 0.3)
    loss.backward()
    same(model, expected)
    model = built(reentrant)
    loss = loss_of(model)
    with patched(model, "sparsemax"):
        loss_of(model).backward()
    model.zero_grad()
    loss.backward()
    same(model, expected_of(built()))


@reentrant
def test_a_schedule_between_steps(reentrant):
    model = sparse(reentrant)
    for r in (0.2, 0.4, 0.4, 0.6):
        set_values(model, r)
        model.zero_grad()
        loss_of(model).backward()
        same(model, expected_of(sparse(r=r)))


@reentrant
def test_a_copy_starts_anew(reentrant):
    model = sparse(reentrant)
    loss = loss_of(model)
    set_values(model, 0.6)
    twin = copy.deepcopy(model)
    loss_of(twin).backward()
    same(twin, expected_of(sparse(r=0.6)))
    with pytest.raises(RuntimeError, match=CHANGED):
        loss.backward()


@reentrant
def test_another_thread_trains(reentrant):
    """Autograd counts in each thread for itself."""
    model = sparse(reentrant)
    for r in (0.1, 0.2, 0.5):
        set_values(model, r)
        loss_of(model)
    errors = []

    def train():
        try:
            loss_of(model).backward()
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert not errors
    same(model, expected_of(sparse(r=0.5)))


@reentrant
def test_a_mapping_alone(reentrant):
    mapping, scores = Mapping("r-softmax", r=0.3), torch.randn(3, 7, requires_grad=True)
    loss = checkpointed(mapping, scores, use_reentrant=reentrant).square().sum()
    mapping.set_value("r", 0.8)
    with pytest.raises(RuntimeError, match=CHANGED):
        loss.backward()


def test_without_checkpointing_nothing_is_refused():
    model = built()
    with patched(model, "r-softmax", r=0.3):
        loss = loss_of(model)
    loss.backward()
    same(model, expected_of(sparse()))
    model = sparse()
    loss = loss_of(model)
    set_values(model, 0.7)
    loss.backward()
    same(model, expected_of(sparse()))


def test_an_unpatched_model_without_checkpointing_has_no_hook():
    model = unpatch_model(patch_model(built(), "sparsemax"))
    assert not any(module._forward_pre_hooks for module in model.modules())
