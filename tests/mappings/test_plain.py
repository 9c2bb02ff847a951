"""A plain function of rows as a mapping, by `@register_mapping("name")`."""

import pickle

import pytest
import torch

from sparse_attn import Mapping, functional, register_mapping
from sparse_attn.heads import LinearHead
from sparse_attn.mappings import ParameterSpec, get_spec, registry
from sparse_attn.mappings.registry import module_of

from .cases import assert_close, random_mask, random_scores

SHARE = ParameterSpec("share", 0.1, low=0.0, high=1.0)


def min_p(scores, share=0.1):
    """softmax over the entries with at least a share of the largest probability."""
    p = scores.softmax(-1)
    p = torch.where(p < share * p.amax(-1, keepdim=True), 0.0, p)
    return p / p.sum(-1, keepdim=True)


def square(scores, valid, *, eps=1.0):
    weights = (scores.square() + eps) * valid
    return weights / weights.sum(-1, keepdim=True)


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setattr(registry, "_SPECS", dict(registry._SPECS))
    assert register_mapping("min-p", parameters=(SHARE,), source="these tests")(min_p) is min_p
    register_mapping("square")(square)


def test_what_a_record_says_is_seen_in_the_rows():
    spec = get_spec("min-p")
    assert (spec.zeros, spec.translation_invariant, spec.source) == (True, True, "these tests")
    assert spec.parameters == (SHARE,)
    spec = get_spec("square")
    assert (spec.zeros, spec.translation_invariant) == (False, False)
    (eps,) = spec.parameters
    assert (eps.name, eps.default, eps.range) == ("eps", 1.0, "(-inf, inf)")
    register_mapping("square-2", zeros=True, translation_invariant=True)(square)
    assert get_spec("square-2").zeros
    assert get_spec("square-2").translation_invariant


@pytest.mark.parametrize(("name", "function"), [("min-p", min_p), ("square", square)])
def test_masks_dims_and_dtypes_are_handled(name, function):
    scores, mask = random_scores(4, 9, 5), random_mask(4, 9, 5)
    p = Mapping(name)(scores, mask, dim=1)
    assert p.shape == scores.shape
    assert (p[~mask] == 0).all()
    for i in range(4):
        for j in range(5):
            row, few = scores[i, :, j], mask[i, :, j]
            valid = {"valid": torch.ones(int(few.sum()), dtype=torch.bool)}
            alone = function(row[few], **(valid if name == "square" else {}))
            assert_close(p[i, few, j], alone)
    half = Mapping(name)(scores.to(torch.bfloat16), mask, dim=1)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.double(), p, atol=0.1, rtol=0.1)
    assert not Mapping(name)(scores, torch.zeros_like(mask)).any()


@pytest.mark.parametrize("name", ["min-p", "square"])
def test_logarithm_and_gradients(name):
    mapping, mask = Mapping(name), random_mask(4, 9)
    scores = random_scores(4, 9).requires_grad_()
    assert_close(mapping.log(scores, mask).exp(), mapping(scores, mask))
    assert (mapping.log(scores, mask)[~mask] == -torch.inf).all()
    torch.autograd.gradcheck(lambda z: mapping(z, mask), scores)
    torch.autograd.gradcheck(lambda z: mapping.log(z, mask).clamp(min=-99.0), scores)


def test_a_parameter_is_learned_by_head():
    mapping = Mapping("square", learn="eps", eps=2.0, num_heads=3)
    scores = random_scores(2, 3, 4, 9, dtype=torch.float32)
    p = mapping(scores)
    assert_close(p, Mapping("square", eps=2.0)(scores))
    (gradient,) = torch.autograd.grad(p.pow(2).sum(), mapping.raw_eps)
    assert gradient.shape == (3,)
    assert (gradient != 0).all()
    with pytest.raises(ValueError, match=r"share=2\.0 is out of range: .*\[0, 1\]"):
        Mapping("min-p", share=2.0)


def test_it_is_mixed_takes_a_sink_and_is_pickled():
    scores = random_scores(4, 9)
    mixed = Mapping("mixed-min-p", mix=0.5, share=0.3)(scores)
    assert_close(mixed, (functional.softmax(scores) + min_p(scores, 0.3)) / 2)
    with_sink = Mapping("square", sink=1.0)(scores)
    more = torch.cat([scores, torch.ones(4, 1, dtype=scores.dtype)], -1)
    assert_close(with_sink, square(more, torch.ones_like(more, dtype=torch.bool))[:, :-1])
    copied = pickle.loads(pickle.dumps(Mapping("min-p", share=0.5)))
    assert_close(copied(scores), min_p(scores, 0.5))


def test_a_head_trains_by_its_probabilities():
    head, hidden = LinearHead(8, 5, "square").double(), random_scores(4, 8)
    words = torch.tensor([0, 3, 1, 2])
    p = square(head.scores(hidden), torch.tensor(True))
    assert_close(head.nll(hidden, words, reduction="none"), -p.log()[range(4), words])


def test_other_masses():
    register_mapping("half", mass="at most one")(lambda scores: scores.softmax(-1) / 2)
    register_mapping("tanh", mass="free")(lambda scores, valid: scores.tanh())
    scores = random_scores(4, 9)
    assert_close(Mapping("half")(scores).sum(-1), torch.full((4,), 0.5, dtype=scores.dtype))
    assert_close(Mapping("tanh")(scores), scores.tanh())


def test_zeros_of_longer_rows_are_seen():
    def top_fifty(scores):
        least = scores.topk(min(50, scores.shape[-1]), -1).values[..., -1:]
        return scores.masked_fill(scores < least, -torch.inf).softmax(-1)

    register_mapping("top-fifty")(top_fifty)
    assert get_spec("top-fifty").zeros


def test_a_function_without_a_gradient_is_refused():
    for function in (lambda z: z.detach().softmax(-1), torch.no_grad()(lambda z: z.softmax(-1))):
        with pytest.raises(ValueError, match="has no gradient; use PyTorch operations"):
            register_mapping("blind")(function)


@pytest.mark.parametrize(
    ("error", "says", "register"),
    [
        (TypeError, "expected a name, as in @register", lambda: register_mapping(min_p)),
        (ValueError, "name='a b:1': expected letters", lambda: register_mapping("a b:1")(min_p)),
        (ValueError, "zeros=False: x gives", lambda: register_mapping("x", zeros=False)(min_p)),
        (TypeError, "argument 'colour'", lambda: register_mapping("x", colour="red")(min_p)),
    ],
)
def test_slips_of_the_decorator(error, says, register):
    with pytest.raises(error, match=says):
        register()


def test_a_cell_of_a_notebook_runs_again():
    def made(slope):
        def again(scores):
            return (slope * scores).softmax(-1)

        return again

    register_mapping("again")(made(1.0))
    register_mapping("again")(made(2.0))
    scores = random_scores(4, 9)
    assert_close(Mapping("again")(scores), (2 * scores).softmax(-1))
    with pytest.raises(ValueError, match="name='again' is already registered"):
        register_mapping("again")(min_p)


def test_the_module_of_a_mapping():
    assert module_of("min-p") == module_of("scaled-min-p") == __name__
    assert module_of("softmax") is module_of("mixed-entmax") is None
    assert not [name for name in registry.LIBRARY if module_of(name)]  # softmax-abs has torch.abs
