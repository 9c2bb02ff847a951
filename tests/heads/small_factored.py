"""A small FactoredSphericalHead, and what its tests ask of it."""

import torch

from sparse_attn.heads import FactoredSphericalHead

VOCAB, HIDDEN = 11, 5
OBJECTIVES = ("spherical", "taylor", "mse", "bouchard")


def make(objective="spherical", **options):
    return FactoredSphericalHead(HIDDEN, VOCAB, objective, **options)


def batch(rows=4, dtype=torch.float32):
    return torch.randn(rows, HIDDEN, dtype=dtype), torch.randint(VOCAB, (rows,))


def state(head):
    return {name: tensor.clone() for name, tensor in head.state_dict().items()}


def assert_untouched(head, before):
    assert all(torch.equal(tensor, before[name]) for name, tensor in head.state_dict().items())
