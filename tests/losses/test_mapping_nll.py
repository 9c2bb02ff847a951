"""The likelihood of dense mappings by name and as modules, learned ones included."""

import pytest
import torch

from sparse_attn import Mapping
from sparse_attn.losses import mapping_nll
from sparse_attn.mappings import get_spec, mapping_names
from tests.losses.cases import assert_close

DENSE = [
    spec.name for spec in map(get_spec, mapping_names()) if not spec.zeros and spec.mass == "one"
]
LABELS = torch.tensor([[1, 0, 0, 1, 0], [0, 1, 0, 0, 0]])


def random_scores():
    return torch.randn(2, 5, dtype=torch.float64)


@pytest.mark.parametrize("name", DENSE)
def test_is_minus_the_log_of_the_mapping(name):
    """-log p_c for a class, the mean of them for equal labels."""
    mapping, z = Mapping(name), random_scores()
    log_p = mapping.log(z).detach()
    found = mapping_nll(z, LABELS, mapping, reduction="none").detach()
    assert_close(found, [-(log_p[0, 0] + log_p[0, 3]) / 2, -log_p[1, 1]], 0, 1e-12)
    classes = mapping_nll(z, torch.tensor([4, 1]), mapping, reduction="none").detach()
    assert_close(classes, [-log_p[0, 4], -log_p[1, 1]], 0, 1e-12)


@pytest.mark.parametrize("name", ["softmax", "sigsoftmax", "spherical-softmax", "softmax-abs"])
def test_a_name_stands_for_its_defaults(name):
    z = random_scores()
    assert_close(
        mapping_nll(z, LABELS, name), mapping_nll(z, LABELS, Mapping(name)).item(), 0, 1e-12
    )


def test_parameters_by_name_are_floats_or_tensors_with_their_gradient():
    z, bias = random_scores(), torch.tensor([0.4, -2.0], dtype=torch.float64, requires_grad=True)
    rows = mapping_nll(z, LABELS, "sigsoftmax", bias=bias, reduction="none")
    for i, value in enumerate(bias.tolist()):
        assert_close(
            rows[i], mapping_nll(z[i], LABELS[i], "sigsoftmax", bias=value).item(), 0, 1e-12
        )
    rows.sum().backward()
    assert (bias.grad != 0).all()


@pytest.mark.parametrize(
    "mapping",
    [Mapping("plif", knots=20, bound=3.0), Mapping("sigsoftmax", learn="bias")],
    ids=lambda mapping: mapping.name,
)
def test_learned_mappings_learn(mapping):
    mapping_nll(random_scores(), LABELS, mapping).backward()
    for parameter in mapping.parameters():
        assert parameter.grad.abs().sum() > 0
