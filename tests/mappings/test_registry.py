"""Names, records, and mappings of one's own."""

import dataclasses
import math

import pytest
import torch

from sparse_attn import Mapping, MappingSpec, losses, mapping_names, register_mapping
from sparse_attn import functional as maps
from sparse_attn.mappings import ParameterSpec, get_spec, registry

from .cases import CASES, FLOAT64, random_mask, random_scores

NAMES = [
    "softmax",
    "weighted-softmax",
    "t-softmax",
    "r-softmax",
    "sparsemax",
    "sparsegen",
    "sparsecone",
    "sparsehourglass",
    "entmax",
    "sigsoftmax",
    "taylor-softmax",
    "spherical-softmax",
    "softmax-abs",
    "normalized-relu",
    "normalized-sigmoid",
    "plif",
    "monotone",
    "temperature-softmax",
    "top-k-softmax",
    "random-drop-softmax",
]

POINTWISE = {
    "softmax": {},
    "sigsoftmax": {"bias": 0.7},
    "taylor-softmax": {},
    "spherical-softmax": {"eps": 0.3},
    "softmax-abs": {},
    "normalized-relu": {},
    "normalized-sigmoid": {},
    "temperature-softmax": {"temperature": 0.7},
}


def test_names():
    assert isinstance(mapping_names(), tuple)
    # the experiments, which other tests of this process import, register one of their own
    library = [n for n in mapping_names() if get_spec(n).function.__module__[:11] == "sparse_attn"]
    assert sorted(library) == sorted(NAMES)


def test_the_cases_of_these_tests_cover_every_mapping():
    assert {case.name for case in CASES if not case.mixed} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_records_name_the_public_functions(name):
    spec = get_spec(name)
    assert spec.name == name
    assert spec.source
    function = name.replace("-", "_")
    scores = random_scores(3, 6)
    params = {p.name: p.default for p in spec.parameters}
    if spec.weights is not None:
        params |= spec.weights(**{o.name: o.default for o in spec.options})
    expected = getattr(maps, function)(scores, **params)
    assert torch.equal(spec.function(scores, **params), expected)
    expected = getattr(maps, f"log_{function}")(scores, **params)
    assert torch.equal(spec.log_function(scores, **params), expected)


@pytest.mark.parametrize("name", NAMES)
def test_defaults_are_in_range(name):
    for parameter in get_spec(name).parameters:
        assert parameter.low <= parameter.default <= parameter.high
        assert type(parameter.learnable) is bool


@pytest.mark.parametrize("name", NAMES)
def test_records_are_frozen(name):
    spec = get_spec(name)
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.zeros = not spec.zeros
    for parameter in spec.parameters:
        with pytest.raises(dataclasses.FrozenInstanceError):
            parameter.default = 0.5


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"weighted-softmax"}))
def test_flags_agree_with_the_invariant_table(name):
    spec, cases = get_spec(name), [case for case in CASES if case.name == name]
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
    torch.testing.assert_close(spec.function(scores + 3, weights), p, **FLOAT64)


@pytest.mark.parametrize("name", NAMES)
def test_log_g_is_there_for_the_pointwise_family(name):
    """p = softmax(log g), with log g of each score alone, under the mask as well."""
    spec = get_spec(name)
    if name not in POINTWISE:
        # the learned ones take their tensors: test_review.py
        assert (spec.log_g is None) == (name not in ("plif", "monotone"))
        return
    scores, mask, params = random_scores(4, 9), random_mask(4, 9), POINTWISE[name]
    scores[:, 0] = scores[:, 0].abs()
    mask[:, 0] = True
    tensors = {key: torch.tensor(value, dtype=torch.float64) for key, value in params.items()}
    log_g = spec.log_g(scores, **tensors)
    p = log_g.masked_fill(~mask, -math.inf).softmax(-1)
    torch.testing.assert_close(p, spec.function(scores, **params, mask=mask), **FLOAT64)
    flat = spec.log_g(scores.flatten(), **tensors).reshape(4, 9)
    assert torch.equal(flat, log_g)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("r-sofmax", "r-softmax"),
        ("r_softmax", "r-softmax"),
        ("sparse-max", "sparsemax"),
        ("entmx", "entmax"),
        ("spherical", "spherical-softmax"),
        ("Softmax", "softmax"),
        ("plf", "plif"),
        ("random-drop", "random-drop-softmax"),
        ("topk-softmax", "top-k-softmax"),
    ],
)
def test_unknown_names_suggest_the_nearest(wrong, right):
    for call in (get_spec, Mapping):
        with pytest.raises(ValueError, match=rf"{wrong}.*\b{right}\b"):
            call(wrong)


# A mapping of one's own


@pytest.fixture
def clean_registry(monkeypatch):
    monkeypatch.setattr(registry, "_SPECS", dict(registry._SPECS))


def scaled(scores, temperature, dim):
    """The temperature is a float, or a tensor of the row shape, which lacks `dim`."""
    return scores / torch.as_tensor(temperature).unsqueeze(dim)


def tempered(scores, temperature, *, mask=None, dim=-1):
    return maps.softmax(scaled(scores, temperature, dim), mask=mask, dim=dim)


def log_tempered(scores, temperature, *, mask=None, dim=-1):
    return maps.log_softmax(scaled(scores, temperature, dim), mask=mask, dim=dim)


TEMPERED = MappingSpec(
    name="tempered-softmax",
    function=tempered,
    log_function=log_tempered,
    parameters=(ParameterSpec("temperature", 1.0, 0.0, math.inf),),
    translation_invariant=True,
    source="these tests",
)


@pytest.mark.usefixtures("clean_registry")
def test_a_registered_mapping_works_like_the_others():
    register_mapping(TEMPERED)
    assert "tempered-softmax" in mapping_names()
    assert get_spec("tempered-softmax") is TEMPERED
    scores = random_scores(4, 9)
    module = Mapping("tempered-softmax", temperature=2.0)
    torch.testing.assert_close(module(scores), (scores / 2).softmax(-1), **FLOAT64)
    torch.testing.assert_close(module.log(scores), (scores / 2).log_softmax(-1), **FLOAT64)
    module.set_value("temperature", 4.0)
    torch.testing.assert_close(module(scores), (scores / 4).softmax(-1), **FLOAT64)
    with pytest.raises(ValueError, match=r"temperature.*-1\.0"):
        Mapping("tempered-softmax", temperature=-1.0)
    with pytest.raises(ValueError, match="tempered-softmax"):
        Mapping("temperd-softmax")


@pytest.mark.usefixtures("clean_registry")
def test_a_registered_mapping_can_be_learned():
    register_mapping(TEMPERED)
    module = Mapping("tempered-softmax", temperature=2.0, learn="temperature", num_heads=3)
    scores = random_scores(2, 3, 4, 9, dtype=torch.float32)
    (gradient,) = torch.autograd.grad(module(scores).pow(2).sum(), module.raw_temperature)
    assert gradient.shape == (3,)
    assert (gradient != 0).all()


@pytest.mark.usefixtures("clean_registry")
def test_a_name_is_taken_once():
    register_mapping(TEMPERED)
    with pytest.raises(ValueError, match="tempered-softmax"):
        register_mapping(TEMPERED)
    with pytest.raises(ValueError, match="sparsemax"):
        register_mapping(dataclasses.replace(TEMPERED, name="sparsemax"))
    assert get_spec("sparsemax").function is maps.sparsemax


@pytest.mark.parametrize("name", mapping_names())
def test_losses_of_the_record_are_those_of_the_library(name):
    spec = get_spec(name)
    assert all(loss is getattr(losses, loss.__name__) for loss in spec.losses.values())
    assert set(spec.multilabel_only) <= set(spec.losses)
    assert bool(spec.losses) <= spec.zeros
    has_own = spec.own_loss in (losses.sparsemax_loss, losses.entmax_loss)
    assert has_own == (name in ("sparsemax", "entmax"))
    takes = {p.name for p in spec.parameters}
    assert {spec.predicts, spec.kernel and spec.kernel.parameter} <= {*takes, None}
