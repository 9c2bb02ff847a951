"""`Mapping`: the module that holds a mapping's name and its fixed or learned parameters."""

import copy
import pickle

import pytest
import torch

from sparse_attn import Mapping, mapping_names

from .cases import (
    LEARNABLE,
    PARAMETERS,
    assert_close,
    finite,
    function_of,
    random_mask,
    random_scores,
)

# float32 all through: one rounding of the parameter and a few of the map.
FLOAT32 = {"rtol": 1e-5, "atol": 1e-6}

START = {
    "t-softmax": 2.0,
    "r-softmax": 0.2,
    "sparsegen": 0.3,
    "sparsecone": 0.4,
    "sparsehourglass": 0.4,
    "entmax": 1.3,
    "sigsoftmax": 0.7,
    "spherical-softmax": 0.5,
    "temperature-softmax": 0.7,
    "sigmoid": -1.0,
    "top-k-softmax": 3.0,
    "top-p-softmax": 0.7,
    "threshold-softmax": 0.05,
    "max-gap": 0.5,
    "random-drop-softmax": 0.4,
}
SETTINGS = [(p.mapping, p.name, START[p.mapping]) for p in PARAMETERS if p.mapping in START]
SETTINGS += [("clipped-softmax", "gamma", -0.1)]
SETTINGS += [("weighted-softmax", "weights", 2.0)]
LEARNED = [s for s in SETTINGS if s[0] in {p.mapping for p in LEARNABLE}]
LEARNED += [("softmax", "sink", 0.4), ("scaled-softmax", "beta", 0.7)]
LEARNED += [("mixed-r-softmax", "mix", 0.6), ("mixed-sparsehourglass", "q", 0.4)]
setting = pytest.mark.parametrize(("name", "argument", "value"), SETTINGS, ids=lambda s: str(s))
learned = pytest.mark.parametrize(("name", "argument", "value"), LEARNED, ids=lambda s: str(s))
of_learned_functions = pytest.mark.parametrize("name", ["plif", "monotone"])


def scores_of(*shape, dtype=torch.float32):
    return random_scores(*shape, scale=1.0, dtype=dtype)


@setting
def test_calls_its_function(name, argument, value):
    module, scores, mask = (
        Mapping(name, **{argument: value}),
        scores_of(3, 4, 5),
        random_mask(3, 4, 5),
    )
    expected = function_of(name)(scores, **{argument: value}, mask=mask)
    assert torch.equal(module(scores, mask), expected)
    assert torch.equal(module(scores, mask=mask), expected)
    moved = module(scores.movedim(-1, 0), mask.movedim(-1, 0), dim=0).movedim(0, -1)
    assert_close(moved, expected, **FLOAT32)
    expected = function_of(name)(scores, **{argument: value}, mask=mask, log=True)
    assert torch.equal(module.log(scores, mask), expected)
    assert torch.equal(module.log(scores.mT, mask.mT, dim=-2).mT, expected)


@pytest.mark.parametrize("name", mapping_names())
def test_every_name_has_defaults(name):
    module, scores = Mapping(name), scores_of(3, 7)
    assert_close(module.log(scores).exp(), module(scores), **FLOAT32)
    assert name in repr(module)
    assert module.name == name


@setting
def test_fixed_parameters_are_floats_in_buffers(name, argument, value):
    module = Mapping(name)
    module.set_value(argument, value)
    for twin in (module, Mapping(name, **{argument: value})):
        assert type(twin.value(argument)) is float
        assert twin.value(argument) == value
        assert twin.get_buffer(argument).item() == pytest.approx(value)
        assert twin.state_dict().keys() == {p.name for p in twin.spec.parameters}
        assert not list(twin.parameters())
        assert f"{argument}={value}" in repr(twin)
    scores = scores_of(4, 9)
    assert torch.equal(module(scores), twin(scores))


def test_a_refused_value_changes_nothing():
    module = Mapping("r-softmax", r=0.2)
    with pytest.raises(ValueError, match=r"r=1\.5"):
        module.set_value("r", 1.5)
    assert module.value("r") == 0.2


# Learned parameters


@learned
def test_a_learned_parameter_starts_at_its_value(name, argument, value):
    module, scores = Mapping(name, learn=argument, **{argument: value}), scores_of(4, 9)
    assert set(module.state_dict()) == {f"raw_{argument}", *module.fixed}
    raw = getattr(module, f"raw_{argument}")
    assert isinstance(raw, torch.nn.Parameter)
    assert raw.shape == (1,)
    assert raw.dtype == torch.float32
    assert_close(module.value(argument), torch.tensor([value]), rtol=1e-6, atol=1e-7)
    fixed = Mapping(name, **{argument: value})
    assert_close(module(scores), fixed(scores), **FLOAT32)
    assert_close(module.log(scores).exp(), fixed(scores), **FLOAT32)
    assert repr([argument]) in repr(module)


@learned
def test_a_learned_parameter_learns_within_its_range(name, argument, value):
    """One step of gradient descent lowers the loss; a raw value of any size is finite."""
    module, scores = Mapping(name, learn=argument, **{argument: value}), scores_of(4, 6).abs()
    raw = getattr(module, f"raw_{argument}")
    loss = module(scores).pow(2).sum()
    (gradient,) = torch.autograd.grad(loss, raw)
    assert gradient.abs() > 1e-4
    with torch.no_grad():
        raw.sub_(1e-2 * gradient.sign())
        assert module(scores).pow(2).sum() < loss
    for extreme in (-1e3, -30.0, 30.0, 1e3):
        with torch.no_grad():
            raw.fill_(extreme)
        reached, p = module.value(argument).item(), module(scores.requires_grad_())
        for result in (p, finite(module.log(scores))):
            gradients = torch.autograd.grad(result.pow(2).sum(), (scores, raw))
            assert all(gradient.isfinite().all() for gradient in gradients)
        if argument != "lam" or reached != 1:  # float32 rounds 1 - 1e-13 to the open end
            fixed = Mapping(name, **{argument: reached})  # raises when out of range
            assert_close(p, fixed(scores), **FLOAT32)


@pytest.mark.parametrize(
    ("name", "values"),
    [*((name, {argument: value}) for name, argument, value in LEARNED),
     ("mixed-t-softmax", {"t": 2.0, "mix": 0.5})],
)  # fmt: skip
def test_a_value_for_each_head(name, values):
    module = Mapping(name, learn=tuple(values), num_heads=3, **values)
    with torch.no_grad():
        for parameter in module.parameters():
            assert parameter.shape == (3,)
            parameter += torch.tensor([-0.2, 0.0, 0.3])
    reached = {argument: module.value(argument) for argument in values}
    assert all(len(set(value.tolist())) == 3 for value in reached.values())
    scores, mask = scores_of(2, 3, 5, 7).abs(), random_mask(2, 1, 5, 7)
    p = module(scores, mask)
    for head in range(3):
        alone = Mapping(name, **{argument: v[head].item() for argument, v in reached.items()})
        assert_close(p[:, head], alone(scores[:, head], mask[:, 0]), **FLOAT32)
    for gradient in torch.autograd.grad(p.pow(2).sum(), list(module.parameters())):
        assert (gradient != 0).all()


@pytest.mark.parametrize(
    ("name", "argument", "value"),
    [*LEARNED, ("clipped-softmax", "gamma", -0.1), ("clipped-softmax", "zeta", 1.25)],
)
@pytest.mark.parametrize("heads", [None, 2])
def test_a_description_and_a_state_make_it_again(name, argument, value, heads):
    """Also where the default is no number to learn from."""
    values = {argument: value if heads is None else [value] * heads}
    source = Mapping(name, learn=argument, num_heads=heads, **values)
    made = source.describe()
    again = Mapping(made["mapping"], learn=made["learn"], num_heads=heads, **made["params"])
    assert again.describe() == made
    with torch.no_grad():
        source.get_parameter(f"raw_{argument}").add_(0.1)
    again.load_state_dict(source.state_dict())
    assert torch.equal(again.value(argument), source.value(argument))
    assert again.value(argument).numel() == (heads or 1)


# Life of a module


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("r-softmax", {"r": 0.15}),
        ("r-softmax", {"r": 0.15, "learn": "r"}),
        ("plif", {}),
        ("monotone", {}),
    ],
)
def test_a_cast_of_the_model_leaves_it_in_float32(dtype, name, options):
    """r = 0.15 does not become bfloat16's 0.1504; an optimiser made before moves it still."""
    model = torch.nn.ModuleDict({"map": Mapping(name, **options), "linear": torch.nn.Linear(2, 2)})
    module, scores = model["map"], scores_of(4, 50)
    module(scores.requires_grad_()).pow(2).sum().backward()
    before, expected = dict(module.named_parameters()), module(scores.to(dtype).float())
    model.to(dtype)
    assert model["linear"].weight.dtype == dtype
    assert dict(module.named_parameters()).keys() == before.keys()
    for key, parameter in module.named_parameters():
        assert parameter is before[key]
        assert parameter.dtype == parameter.grad.dtype == torch.float32
    p = module(scores.to(dtype))
    assert p.dtype == dtype
    assert_close(p, expected.to(dtype), rtol=torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.parametrize(
    "module",
    [
        Mapping("softmax"),
        Mapping("r-softmax", r=0.3),
        Mapping("entmax", alpha=1.7, learn="alpha", num_heads=3),
        Mapping("plif", knots=8, bound=4.0),
        Mapping("monotone", units=5, bound=4.0),
        Mapping("mixed-r-softmax", r=0.3, mix=0.4),
        Mapping("mixed-t-softmax", t=2.0, mix=0.6, learn=("t", "mix"), num_heads=3),
    ],
    ids=lambda module: module.name,
)
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies(module, copied):
    twin, scores = copied(module), scores_of(2, 3, 5, 6)
    assert torch.equal(twin(scores), module(scores))
    assert torch.equal(twin.log(scores), module.log(scores))
    assert repr(twin) == repr(module)
    assert twin.describe() == module.describe()
    originals = {id(p) for p in module.parameters()}
    assert not originals & {id(p) for p in twin.parameters()}
    if module.name.endswith("r-softmax"):
        twin.set_value("r", 0.8)
        assert module.value("r") == 0.3


# The learned functions


@of_learned_functions
def test_learned_functions_start_as_softmax(name):
    scores = scores_of(50, 64).mul(3)
    # PLIF starts with slopes of exactly 1; the network's steps add up to a line within 1e-5.
    assert_close(Mapping(name)(scores), scores.softmax(-1), rtol=1e-4, atol=1e-6)


def test_a_notebook_shows_parameters_and_ranges() -> None:
    shown = Mapping("sparsegen", lam=0.5, learn="lam")._repr_html_()
    assert "<td>lam</td><td>[0.5]</td><td>(-inf, 1)</td><td>learned</td>" in shown
    assert Mapping("softmax")._repr_html_() == "<code>Mapping(&#x27;softmax&#x27;)</code>"


def test_a_default_that_each_row_derives_is_none():
    scores = scores_of(3, 7)
    module = Mapping("sigmoid")
    derived = module(scores)
    assert "bias=None" in repr(module)
    assert Mapping("sigmoid", **module.describe()["params"])(scores).equal(derived)
    module.set_value("bias", 0.5)
    assert not torch.equal(module(scores), derived)
    module.set_value("bias", None)
    assert torch.equal(module(scores), derived)
    per_head = Mapping("clipped-softmax", gamma=[-0.1, -0.3], num_heads=2)
    per_head.set_value("gamma", None)
    assert torch.equal(per_head(scores), per_head.spec.function(scores))
    clipped = Mapping("clipped-softmax", alpha=0.5)
    assert clipped.describe()["params"] == {"gamma": None, "zeta": 1.0, "alpha": 0.5}
    clipped.set_value("gamma", -0.1)  # alpha has no effect then, and is not accepted beside it
    assert Mapping("clipped-softmax", **clipped.describe()["params"]).value("gamma") == -0.1
    assert "alpha" not in repr(clipped)


def test_a_sink_is_a_parameter():
    """Saved only where it was asked for; another call may bring one."""
    scores = scores_of(2, 3, 5, 7)
    plain, module = Mapping("entmax"), Mapping("entmax", sink=[0.1, 0.2, 0.3], num_heads=3)
    assert plain.describe() == Mapping("entmax", sink=None).describe()
    assert plain.describe()["params"] == {"alpha": 1.5}
    assert list(module.describe()["params"]) == ["alpha", "sink"]
    brought = plain(scores, sink=torch.tensor([0.1, 0.2, 0.3])[:, None])
    assert torch.equal(brought, module(scores))
    assert plain.spec.mass == "one"
    assert module.spec.mass == "at most one"
    column = torch.tensor([0.1, 0.2, 0.3])[:, None, None].expand(2, 3, 5, 1)
    assert torch.equal(plain(torch.cat([scores, column], -1))[..., :-1], module(scores))
