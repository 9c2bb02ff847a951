"""A mapping of a user's own, a record or a decorated function: it works like the built-in ones."""

import dataclasses
import pickle

import pytest
import torch

from sparse_attn import (
    Mapping,
    MappingSpec,
    losses,
    register_mapping,
)
from sparse_attn import functional as maps
from sparse_attn.cli import main
from sparse_attn.heads import AdaptiveHead, LinearHead, MultiLabelHead
from sparse_attn.losses.row_blocks import labelled_rows
from sparse_attn.mappings import ParameterSpec, get_spec, pointwise_spec, registry
from sparse_attn.mappings.base import on_rows
from sparse_attn.mappings.registry import module_of

from .cases import assert_close, random_mask, random_scores

SCALE = ParameterSpec("scale", 2.0, low=0.1)
SHARE = ParameterSpec("share", 0.1, low=0.0, high=1.0)


def _rows(rows, valid, scale, *, log):
    return maps.sparsemax(scale * rows, mask=valid, log=log)


def scaled(scores, scale, *, mask=None, dim=-1, log=False):
    """sparsemax(s z)."""
    return on_rows(_rows, scores, scale, mask=mask, dim=dim, log=log, checks=(SCALE,))


def scaled_loss(scores, target, scale, *, mask=None, reduction="mean"):
    """|p - eta|^2 / 2 + <eta, max z - z>."""
    rows = labelled_rows(scores, target, mask)
    p = scaled(rows.scores, scale, mask=rows.valid)
    squares = (p - rows.eta).square().sum(-1) / 2
    return rows.reduced(squares - rows.labels.dot(rows.shifted), reduction)


def pairs_loss(scores, target, scale, *, mask=None, reduction="mean"):
    return losses.sparsegen_hinge_loss(scale * scores, target, mask=mask, reduction=reduction)


OWN = MappingSpec(
    "scaled",
    scaled,
    parameters=(SCALE,),
    zeros=True,
    translation_invariant=True,
    losses={"pairs": pairs_loss, "squares": scaled_loss},
    multilabel_only=("pairs",),
    color="#7F3C8D",
    source="these tests",
)


def min_p(scores, share=0.1):
    """softmax over the entries with at least a share of the largest probability."""
    p = scores.softmax(-1)
    p = torch.where(p < share * p.amax(-1, keepdim=True), 0.0, p)
    return p / p.sum(-1, keepdim=True)


def square(scores, valid, *, eps=1.0):
    weights = (scores.square() + eps) * valid
    return weights / weights.sum(-1, keepdim=True)


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    monkeypatch.setattr(registry, "_SPECS", dict(registry._SPECS))
    register_mapping(OWN)
    assert register_mapping("min-p", parameters=(SHARE,), source="these tests")(min_p) is min_p
    register_mapping("square")(square)


# The decorator of a function of rows


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


def near_max(scores, width=1.0):
    weights = (scores - scores.amax(-1, keepdim=True) + width).clamp(min=0)
    return weights / weights.sum(-1, keepdim=True)


@pytest.mark.parametrize("prefix", ["", "mixed-", "scaled-"])
@pytest.mark.parametrize(
    "values",
    [
        {"width": 0.0},
        {"width": [1.0, -1.0], "num_heads": 2, "learn": "width"},
    ],
    ids=str,
)
def test_given_values_are_tried_too(prefix, values):
    """Its range is (-inf, inf), but the function is no mapping for all of it."""
    register_mapping("near-max")(near_max)
    with pytest.raises(ValueError, match=r"width=(-1|0): mapping='near-max' is not finite"):
        Mapping(prefix + "near-max", **values)
    allowed = {**values, "width": [0.5, 2.0] if "num_heads" in values else 0.5}
    assert Mapping(prefix + "near-max", **allowed)(random_scores(2, 5, 5)).isfinite().all()


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


def test_other_masses():
    register_mapping("half", mass="at most one")(lambda scores: scores.softmax(-1) / 2)
    register_mapping("tanh", mass="free")(lambda scores, valid: scores.tanh())
    scores = random_scores(4, 9)
    assert_close(Mapping("half")(scores).sum(-1), torch.full((4,), 0.5, dtype=scores.dtype))
    assert_close(Mapping("tanh")(scores), scores.tanh())


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


# Parameters, and mappings made of it


@pytest.mark.parametrize(("name", "parameter"), [("scaled", "scale"), ("square", "eps")])
def test_its_parameter_is_fixed_or_learned_by_head(name, parameter):
    scores = random_scores(2, 3, 4, 9, scale=0.2, dtype=torch.float32)
    fixed = Mapping(name, **{parameter: 3.0})
    learned = Mapping(name, learn=parameter, num_heads=3, **{parameter: 3.0})
    p = learned(scores)
    torch.testing.assert_close(p, fixed(scores))
    (gradient,) = torch.autograd.grad(p.pow(2).sum(), list(learned.parameters()))
    assert gradient.shape == (3,)
    assert (gradient != 0).all()
    fixed.set_value(parameter, 4.0)
    other = Mapping(name, **{parameter: 4.0})
    assert_close(pickle.loads(pickle.dumps(fixed))(scores), other(scores))


def test_it_is_mixed_and_takes_a_sink():
    scores = random_scores(4, 9)
    assert_close(Mapping("scaled", scale=3.0)(scores), maps.sparsemax(3 * scores))
    mixed = Mapping("mixed-scaled", mix=0.5)
    assert_close(mixed(scores), (maps.softmax(scores) + maps.sparsemax(2 * scores)) / 2)
    mixed = Mapping("mixed-min-p", mix=0.5, share=0.3)(scores)
    assert_close(mixed, (maps.softmax(scores) + min_p(scores, 0.3)) / 2)
    with_sink = Mapping("square", sink=1.0)(scores)
    more = torch.cat([scores, torch.ones(4, 1, dtype=scores.dtype)], -1)
    assert_close(with_sink, square(more, torch.ones_like(more, dtype=torch.bool))[:, :-1])


# Records


def test_a_function_and_a_log_function_apart():
    apart = MappingSpec(
        "apart",
        lambda z, *, mask=None, dim=-1: maps.softmax(-z, mask=mask, dim=dim),
        lambda z, *, mask=None, dim=-1: maps.softmax(-z, mask=mask, dim=dim, log=True),
    )
    register_mapping(apart)
    scores = random_scores(4, 9)
    assert_close(Mapping("apart")(scores), maps.softmax(-scores))
    assert_close(Mapping("apart").log(scores), maps.softmax(-scores, log=True))


def test_one_line_of_log_g(capsys):
    def power_of(z, power):
        """g(z) = (1 + |z|)^power."""
        return power.square().sqrt() * torch.log1p(z.abs())  # a tensor wherever it is called

    power = ParameterSpec("power", 2.0, low=0.0, high_open=True)
    register_mapping(pointwise_spec("powers", power_of, (power,), source="this test"))
    scores, mask = random_scores(4, 9), random_mask(4, 9)
    weights = (1 + scores.abs()).pow(3).masked_fill(~mask, 0)
    mapping = Mapping("powers", power=3.0)
    assert_close(mapping(scores, mask), weights / weights.sum(-1, keepdim=True))
    assert_close(mapping.log(scores, mask).exp(), mapping(scores, mask))
    assert not mapping.spec.zeros
    hidden, words = random_scores(4, 8), torch.tensor([0, 3, 1, 2])
    linear = [LinearHead(8, 5, name) for name in ("powers", "square")]
    for head in (*linear, AdaptiveHead(8, 5, [3], "powers")):
        log_p = head.double().log_prob(hidden)
        assert_close(head.nll(hidden, words, reduction="none"), -log_p[range(4), words])
    main(["mappings", "powers"])
    assert "g(z) = (1 + |z|)^power." in capsys.readouterr().out


# Its losses


def test_it_is_trained_by_its_own_loss():
    """The first that is not for sets of labels alone."""
    scores, target = random_scores(3, 5).requires_grad_(), torch.tensor([4, -100, 1])
    assert get_spec("scaled").own_loss is scaled_loss
    for mapping, options in (("scaled", {"scale": 1.5}), (Mapping("scaled", scale=1.5), {})):
        loss = losses.mapping_loss(scores, target, mapping, **options)
        assert_close(loss, scaled_loss(scores, target, 1.5))
    with pytest.raises(ValueError, match=r"mapping='scaled': it may return .* use pairs_loss"):
        losses.mapping_nll(scores, target, "scaled")
    # built-in mappings: their own, or -log p
    assert_close(losses.mapping_loss(scores, target, "entmax"), losses.entmax_loss(scores, target))
    nll = losses.mapping_nll(scores, target, "sigsoftmax", bias=0.5)
    assert_close(losses.mapping_loss(scores, target, "sigsoftmax", bias=0.5), nll)
    with pytest.raises(ValueError, match="mapping='sparsegen': it may return exact zeros"):
        losses.mapping_loss(scores, target, "sparsegen")


def test_a_head_of_a_language_model_learns_by_it():
    head = LinearHead(8, 50, Mapping("scaled", learn="scale"))
    hidden, words = torch.randn(20, 8), torch.arange(20)
    scores = hidden @ head.weight.T + head.bias
    assert_close(head.loss(hidden, words), scaled_loss(scores, words, head.mapping.value("scale")),
          rtol=1e-5, atol=1e-6)  # fmt: skip
    with pytest.raises(ValueError, match=r"use loss\(\), which is scaled's own"):
        head.nll(hidden, words)
    with pytest.raises(ValueError, match=r"train with a mapping.*scaled"):
        LinearHead(8, 50, "r-softmax").loss(hidden, words)
    head.loss(hidden, words).backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in head.parameters())


@pytest.mark.parametrize(("name", "loss"), [("pairs", pairs_loss), ("squares", scaled_loss)])
def test_a_multi_label_head_learns_by_any_of_them(name, loss):
    head = MultiLabelHead(8, 6, Mapping("scaled", scale=1.5), loss=name)
    assert MultiLabelHead(8, 6, "scaled").criterion == "pairs"
    hidden, labels = torch.randn(5, 8), torch.eye(6)[:5] + torch.eye(6)[1:]
    expected = loss(head.scores(hidden), labels, 1.5)
    torch.testing.assert_close(head.loss(hidden, labels), expected)
    head.loss(hidden, labels).backward()
    assert head.weight.grad.abs().sum() > 0
    assert (head(hidden) == -torch.inf).any()
    with pytest.raises(ValueError, match="loss='nll': scaled can be trained by pairs, squares"):
        MultiLabelHead(8, 6, "scaled", loss="nll")


def test_a_changed_record_keeps_no_kernel():
    own = dataclasses.replace(get_spec("entmax"), name="own")
    with pytest.raises(ValueError, match="kernel='entmax': expected None for own"):
        register_mapping(own)
    register_mapping(dataclasses.replace(own, kernel=None))
    assert get_spec("own").own_loss is losses.entmax_loss
