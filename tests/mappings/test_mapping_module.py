"""`Mapping`: the module that holds a mapping's name and its fixed or learned parameters."""

import copy
import io
import math
import pickle

import pytest
import torch

from sparse_attn import Mapping, mapping_names
from sparse_attn import functional as maps

from .cases import random_mask, random_scores

# float32 all through: one rounding of the parameter and a few of the map.
FLOAT32 = {"rtol": 1e-5, "atol": 1e-6}

SETTINGS = [
    ("weighted-softmax", {"weights": 2.0}),
    ("t-softmax", {"t": 2.0}),
    ("r-softmax", {"r": 0.2}),
    ("sparsegen", {"lam": 0.3}),
    ("sparsecone", {"q": 0.4}),
    ("sparsehourglass", {"q": 0.4}),
    ("entmax", {"alpha": 1.3}),
    ("sigsoftmax", {"bias": 0.7}),
    ("spherical-softmax", {"eps": 0.5}),
    ("temperature-softmax", {"temperature": 0.7}),
    ("top-k-softmax", {"k": 3.0}),
    ("random-drop-softmax", {"r": 0.4}),
]
MIXED = [("mixed-r-softmax", {"mix": 0.6}), ("mixed-sparsehourglass", {"q": 0.4})]
LEARNABLE = [
    (name, *next(iter(params.items())))
    for name, params in [*SETTINGS[1:], *MIXED]
    if name not in ("top-k-softmax", "random-drop-softmax")
]
settings = pytest.mark.parametrize(("name", "params"), SETTINGS, ids=[s[0] for s in SETTINGS])
learnable = pytest.mark.parametrize(
    ("name", "argument", "value"), LEARNABLE, ids=[s[0] for s in LEARNABLE]
)


def scores_of(*shape, dtype=torch.float32):
    return random_scores(*shape, scale=1.0, dtype=dtype)


@settings
def test_calls_its_function(name, params):
    module, scores, mask = Mapping(name, **params), scores_of(3, 4, 5), random_mask(3, 4, 5)
    function = name.replace("-", "_")
    expected = getattr(maps, function)(scores, **params, mask=mask)
    assert torch.equal(module(scores, mask), expected)
    assert torch.equal(module(scores, mask=mask), expected)
    moved = module(scores.movedim(-1, 0), mask.movedim(-1, 0), dim=0).movedim(0, -1)
    torch.testing.assert_close(moved, expected, **FLOAT32)
    expected = getattr(maps, f"log_{function}")(scores, **params, mask=mask)
    assert torch.equal(module.log(scores, mask), expected)
    assert torch.equal(module.log(scores.mT, mask.mT, dim=-2).mT, expected)


@pytest.mark.parametrize("name", mapping_names())
def test_every_name_has_defaults(name):
    module, scores = Mapping(name), scores_of(3, 7)
    p = module(scores)
    torch.testing.assert_close(p.sum(-1), torch.ones(3), **FLOAT32)
    torch.testing.assert_close(module.log(scores).exp(), p, **FLOAT32)
    assert name in repr(module)
    assert module.name == name


# Fixed parameters


@settings
def test_fixed_parameters_are_floats_and_no_state(name, params):
    module = Mapping(name, **params)
    ((argument, value),) = params.items()
    assert type(module.value(argument)) is float
    assert getattr(module, argument) == module.value(argument) == value
    assert not module.state_dict()
    assert not list(module.parameters())
    assert f"{argument}={value}" in repr(module)


@settings
def test_set_value(name, params):
    ((argument, value),) = params.items()
    module, scores = Mapping(name), scores_of(4, 9)
    module.set_value(argument, value)
    assert module.value(argument) == value
    assert torch.equal(module(scores), Mapping(name, **params)(scores))


def test_set_value_checks_the_range():
    module = Mapping("r-softmax", r=0.2)
    for value in (-0.1, 1.5, math.nan):
        with pytest.raises(ValueError, match=rf"\br\b.*{value}") as error:
            module.set_value("r", value)
        assert "[0, 1]" in str(error.value)
    assert module.value("r") == 0.2


def test_set_value_knows_its_parameters():
    with pytest.raises((TypeError, ValueError), match=r"\bt\b"):
        Mapping("r-softmax").set_value("t", 1.0)
    with pytest.raises((TypeError, ValueError), match=r"\br\b"):
        Mapping("r-softmax", learn="r").set_value("r", 0.3)


def test_values_out_of_range_are_refused_at_once():
    for name, argument, value in [
        ("r-softmax", "r", 1.5),
        ("t-softmax", "t", -1.0),
        ("sparsegen", "lam", 1.0),
        ("entmax", "alpha", 0.5),
        ("sparsehourglass", "q", -0.5),
        ("spherical-softmax", "eps", -0.5),
        ("sigsoftmax", "bias", math.inf),
        ("temperature-softmax", "temperature", 0.0),
        ("top-k-softmax", "k", 0.5),
        ("mixed-r-softmax", "mix", 1.5),
        ("mixed-r-softmax", "r", -0.5),
    ]:
        with pytest.raises(ValueError, match=rf"\b{argument}\b.*{value}"):
            Mapping(name, **{argument: value})


def test_unknown_parameters_are_refused():
    with pytest.raises((TypeError, ValueError), match=r"\bt\b.*softmax"):
        Mapping("softmax", t=1.0)
    with pytest.raises((TypeError, ValueError), match=r"\br\b.*t-softmax"):
        Mapping("t-softmax", r=0.5)
    with pytest.raises((TypeError, ValueError), match=r"learn.*alpha"):
        Mapping("t-softmax", learn="alpha")
    for name, argument in [("top-k-softmax", "k"), ("random-drop-softmax", "r")]:
        with pytest.raises(TypeError, match=rf"learn='{argument}'.*can learn no parameter"):
            Mapping(name, learn=argument)


# Learned parameters


@learnable
def test_a_learned_parameter_starts_at_its_value(name, argument, value):
    module, scores = Mapping(name, learn=argument, **{argument: value}), scores_of(4, 9)
    assert set(module.state_dict()) == {f"raw_{argument}"}
    raw = getattr(module, f"raw_{argument}")
    assert isinstance(raw, torch.nn.Parameter)
    assert raw.shape == (1,)
    assert raw.dtype == torch.float32
    start = module.value(argument)
    torch.testing.assert_close(start, torch.tensor([value]), rtol=1e-6, atol=1e-7)
    fixed = Mapping(name, **{argument: value})
    torch.testing.assert_close(module(scores), fixed(scores), **FLOAT32)
    torch.testing.assert_close(module.log(scores).exp(), fixed(scores), **FLOAT32)


@learnable
def test_a_learned_parameter_learns(name, argument, value):
    """One step of gradient descent lowers the loss, for any number of scores dimensions."""
    module = Mapping(name, learn=[argument], **{argument: value})
    for shape in [(6,), (4, 6), (2, 3, 4, 6)]:
        scores = scores_of(*shape).abs()
        loss = module(scores).pow(2).sum()
        (gradient,) = torch.autograd.grad(loss, list(module.parameters()))
        assert gradient.abs() > 1e-4
        with torch.no_grad():
            raw = getattr(module, f"raw_{argument}")
            before = raw.clone()
            raw -= 1e-2 * gradient.sign()
            assert module(scores).pow(2).sum() < loss
            raw.copy_(before)


@learnable
def test_a_learned_parameter_cannot_leave_its_range(name, argument, value):
    module, scores = Mapping(name, learn=argument, **{argument: value}), scores_of(4, 9)
    for extreme in (-1e3, -30.0, 30.0, 1e3):
        with torch.no_grad():
            getattr(module, f"raw_{argument}").fill_(extreme)
        reached = module.value(argument).item()
        p = module(scores)
        assert p.isfinite().all()
        if argument == "lam" and reached == 1:  # float32 rounds 1 - 1e-13 to the open end
            continue
        torch.testing.assert_close(p.sum(-1), torch.ones(4), **FLOAT32)
        fixed = Mapping(name, **{argument: reached})  # raises when out of range
        torch.testing.assert_close(p, fixed(scores), **FLOAT32)


@learnable
def test_a_value_for_each_head(name, argument, value):
    module = Mapping(name, learn=argument, num_heads=3, **{argument: value})
    raw = getattr(module, f"raw_{argument}")
    assert raw.shape == (3,)
    with torch.no_grad():
        raw += torch.tensor([-0.2, 0.0, 0.3])
    values = module.value(argument)
    assert values.shape == (3,)
    assert len(set(values.tolist())) == 3
    scores, mask = scores_of(2, 3, 5, 7).abs(), random_mask(2, 1, 5, 7)
    p = module(scores, mask)
    for head in range(3):
        alone = Mapping(name, **{argument: values[head].item()})
        torch.testing.assert_close(p[:, head], alone(scores[:, head], mask[:, 0]), **FLOAT32)
    (gradient,) = torch.autograd.grad(p.pow(2).sum(), raw)
    assert (gradient != 0).all()


def test_a_learned_parameter_must_start_inside_its_range():
    for name, params in [("r-softmax", {"r": 1.5}), ("t-softmax", {"t": -1.0})]:
        with pytest.raises(ValueError, match=next(iter(params))):
            Mapping(name, learn=tuple(params), **params)


# Life of a module


@pytest.mark.parametrize("cast", [lambda m: m.to(torch.bfloat16), lambda m: m.half()])
@pytest.mark.parametrize("learn", [(), "r"])
def test_stays_in_float32(cast, learn):
    """As part of a model in half precision, r = 0.15 does not become bfloat16's 0.1504."""
    model = torch.nn.ModuleDict({"map": Mapping("r-softmax", r=0.15, learn=learn)})
    model["linear"] = torch.nn.Linear(2, 2)
    expected = torch.as_tensor(model["map"].value("r")).item()
    cast(model)
    assert model["linear"].weight.dtype != torch.float32
    assert all(p.dtype == torch.float32 for p in model["map"].parameters())
    assert torch.as_tensor(model["map"].value("r")).item() == expected
    scores = scores_of(4, 50, dtype=model["linear"].weight.dtype)
    p = model["map"](scores)
    assert p.dtype == scores.dtype
    reference = Mapping("r-softmax", r=expected)(scores.float()).to(scores.dtype)
    torch.testing.assert_close(p, reference, rtol=torch.finfo(scores.dtype).eps, atol=1e-6)


@pytest.mark.parametrize("name", ["plif", "monotone"])
def test_learned_maps_stay_in_float32(name):
    module = Mapping(name).to(torch.bfloat16)
    assert all(p.dtype == torch.float32 for p in module.parameters())
    scores = scores_of(4, 9, dtype=torch.bfloat16)
    assert module(scores).dtype == torch.bfloat16


@pytest.mark.parametrize("name", ["plif", "monotone", "t-softmax"])
def test_a_cast_keeps_the_parameter_objects(name):
    """An optimiser made before the cast still moves the parameters, and their gradients stay."""
    module = Mapping(name, learn="t") if name == "t-softmax" else Mapping(name)
    before = dict(module.named_parameters())
    module(scores_of(4, 9)).pow(2).sum().backward()
    module.to(torch.bfloat16)
    assert dict(module.named_parameters()).keys() == before.keys()
    for key, parameter in module.named_parameters():
        assert parameter is before[key]
        assert parameter.requires_grad
        assert parameter.grad.dtype == torch.float32


def test_state_dict_round_trip():
    source = Mapping("t-softmax", t=3.0, learn="t", num_heads=4)
    target = Mapping("t-softmax", t=1.0, learn="t", num_heads=4)
    buffer = io.BytesIO()
    torch.save(source.state_dict(), buffer)
    buffer.seek(0)
    target.load_state_dict(torch.load(buffer, weights_only=True))
    assert torch.equal(target.value("t"), source.value("t"))


@pytest.mark.parametrize(
    "module",
    [
        Mapping("softmax"),
        Mapping("r-softmax", r=0.3),
        Mapping("entmax", alpha=1.7, learn="alpha", num_heads=3),
        Mapping("plif", knots=8, bound=4.0),
        Mapping("monotone", units=5, bound=4.0),
        Mapping("mixed-t-softmax", t=2.0, mix=0.6, learn=("t", "mix"), num_heads=3),
    ],
    ids=lambda module: module.name,
)
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies(module, copied):
    twin, scores = copied(module), scores_of(2, 3, 5, 6)
    assert torch.equal(twin(scores), module(scores))
    assert repr(twin) == repr(module)
    originals = {id(p) for p in module.parameters()}
    assert not originals & {id(p) for p in twin.parameters()}
    if module.name == "r-softmax":
        twin.set_value("r", 0.8)
        assert module.value("r") == 0.3


def test_repr_tells_what_it_is():
    assert "r-softmax" in repr(Mapping("r-softmax", r=0.25))
    assert "0.25" in repr(Mapping("r-softmax", r=0.25))
    assert "'t'" in repr(Mapping("t-softmax", learn="t"))


# The learned maps


@pytest.mark.parametrize("name", ["plif", "monotone"])
def test_learned_maps_start_as_softmax(name):
    module = Mapping(name)
    scores = scores_of(50, 64).mul(3)
    # PLIF starts with slopes of exactly 1; the network's steps add up to a line within 1e-5.
    torch.testing.assert_close(module(scores), scores.softmax(-1), rtol=1e-4, atol=1e-6)


def test_learned_maps_take_their_options():
    plif = Mapping("plif", knots=8, bound=2.0)
    assert [tuple(p.shape) for p in plif.parameters()] == [(8,)]
    monotone = Mapping("monotone", units=5, bound=2.0)
    assert [tuple(p.shape) for p in monotone.parameters()] == [(5,)] * 3
    with torch.no_grad():
        next(plif.parameters()).copy_(torch.linspace(-1, 1, 8))
    scores = scores_of(4, 9)
    expected = maps.plif(scores, torch.linspace(-1, 1, 8), bound=2.0)
    assert torch.equal(plif(scores), expected)


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("plif", "knots", 0),
        ("plif", "knots", 2.5),
        ("plif", "bound", 0.0),
        ("monotone", "units", 0),
    ],
)
def test_options_have_ranges(name, option, value):
    with pytest.raises(ValueError, match=rf"\b{option}\b.*{value}"):
        Mapping(name, **{option: value})


@pytest.mark.parametrize("name", ["plif", "monotone"])
def test_learned_maps_learn(name):
    """A few steps of Adam bring the map to softmax(2 z), which it does not start from."""
    module = Mapping(name, **({"knots": 20} if name == "plif" else {"units": 20}), bound=4.0)
    scores = scores_of(64, 10)
    target = (2 * scores).softmax(-1)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.1)

    def loss():
        return (
            -(target * module.log(scores)).sum(-1).mean() + (target * target.log()).sum(-1).mean()
        )

    start = loss().item()
    for _ in range(60):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    assert loss().item() < 0.1 * start
