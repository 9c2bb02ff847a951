"""The records of the registry: what they say is what the functions do."""

import math

import pytest
import torch

from sparse_attn import functional as maps
from sparse_attn import losses, mapping_names
from sparse_attn.mappings import get_spec

from .cases import CASES, PARAMETERS, assert_close, defaults, random_mask, random_scores

# the experiments, which other tests of this process import, register one of their own
NAMES = [n for n in mapping_names() if get_spec(n).function.__module__.startswith("sparse_attn")]
every_name = pytest.mark.parametrize("name", NAMES)


def test_names():
    assert isinstance(mapping_names(), tuple)
    assert sorted(name.replace("-", "_") for name in NAMES) == sorted(
        name for name in maps.__all__ if not name.startswith("log_")
    )
    assert {case.name for case in CASES if not case.derived} == set(NAMES)


@every_name
def test_records_name_the_public_functions(name):
    spec, scores = get_spec(name), random_scores(3, 6)
    assert spec.name == name
    assert spec.source
    public, values = name.replace("-", "_"), defaults(spec)
    assert spec.function is getattr(maps, public)
    log_p = getattr(maps, public)(scores, **values, log=True)
    assert torch.equal(spec.log_function(scores, **values), log_p)


@every_name
def test_parameters_are_those_of_the_tests(name):
    of_tests = {(p.name, p.range) for p in PARAMETERS if p.mapping == name}
    found = {(p.name, p.range) for p in get_spec(name).parameters}
    assert found == of_tests or name in ("weighted-softmax", "plif")
    for parameter in get_spec(name).parameters:
        assert parameter.default is None or parameter.contains(parameter.default)


@every_name
def test_flags_agree_with_the_cases(name):
    spec, cases = get_spec(name), [c for c in CASES if c.name == name and not c.derived]
    assert spec.mass == cases[0].mass
    if name != "weighted-softmax":  # whose weights move with the scores there
        assert spec.zeros == any(case.zeros for case in cases)
        assert spec.translation_invariant == all(case.shift for case in cases)


def test_flags_of_weighted_softmax():
    """Zero weights give zeros; with given weights a common shift cancels."""
    spec, scores = get_spec("weighted-softmax"), random_scores(5)
    weights = torch.tensor([0.0, 1.0, 2.0, 0.5, 0.0])
    assert spec.zeros
    assert spec.translation_invariant
    p = spec.function(scores, weights)
    assert (p == 0).sum() == 2
    assert_close(spec.function(scores + 3, weights), p)


POINTWISE = {name for name in NAMES if get_spec(name).log_g}


def test_log_g_is_there_for_the_pointwise_mappings():
    kernels = {n for n in NAMES if (kernel := get_spec(n).kernel) and kernel.family == "pointwise"}
    assert {"softmax", "sigsoftmax", "normalized-relu"} < kernels
    assert kernels | {"temperature-softmax", "plif", "monotone"} == POINTWISE


@pytest.mark.parametrize("name", sorted(POINTWISE))
def test_log_g_gives_the_mapping(name):
    """p = softmax(log g), with log g of each score alone, under the mask as well."""
    spec, scores, mask = get_spec(name), random_scores(4, 9), random_mask(4, 9)
    scores[:, 0] = scores[:, 0].abs()
    mask[:, 0] = True
    values = {n: torch.as_tensor(v, dtype=torch.float64) for n, v in defaults(spec).items()}
    if name == "plif":
        values["bound"] = 6.0
    log_g = spec.log_g(scores, **values)
    p = log_g.masked_fill(~mask, -math.inf).softmax(-1)
    assert_close(p, spec.function(scores, **values, mask=mask))
    assert torch.equal(spec.log_g(scores.flatten(), **values).view(4, 9), log_g)


@every_name
def test_losses_are_those_of_the_library(name):
    spec = get_spec(name)
    assert all(loss is getattr(losses, loss.__name__) for loss in spec.losses.values())
    assert set(spec.multilabel_only) <= set(spec.losses)
    assert bool(spec.losses) <= spec.zeros
    has_own = spec.own_loss in (losses.sparsemax_loss, losses.entmax_loss)
    assert has_own == (name in ("sparsemax", "entmax"))
    takes = {p.name for p in spec.parameters}
    assert {spec.predicts, spec.kernel and spec.kernel.parameter} <= {*takes, None}
