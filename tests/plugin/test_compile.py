"""One graph for all layers, few compilations, and gradient checkpointing."""

import shutil

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from benchmarks.host import stubbed
from sparse_attn import SparsitySchedule, patch_model

from .families import BY_NAME, padding, text_inputs, tokens
from .helpers import (
    MAPPINGS,
    SINKS,
    assert_near,
    gradients,
    jitter,
    learned,
    mapping_id,
    patch,
    soak,
)

BERT = BY_NAME["bert"]

# Dynamo itself makes an instance of entmax's autograd function, which torch deprecates.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*autograd.function.Function.* should not be instantiated:DeprecationWarning"
)


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(model, backend="eager", **options):
    counter = CompileCounterWithBackend(backend)
    return torch.compile(model, backend=counter, fullgraph=True, **options), counter


@pytest.mark.parametrize(
    ("mapping", "values", "backend"),
    [
        ("r-softmax", {"parameter": "r", "initial": 0.0, "final": 0.15}, "eager"),
        ("r-softmax", {"parameter": "r", "initial": 0.0, "final": 0.15}, "aot_eager"),
        ("t-softmax", {"parameter": "t", "initial": 6.0, "final": 1.0}, "aot_eager"),
        ("entmax", {"parameter": "alpha", "initial": 1.1, "final": 1.9}, "aot_eager"),
    ],
)
def test_schedule_of_ten_values_compiles_at_most_twice(mapping, values, backend):
    """Only the backends after "eager" make a graph's float an input; others compile it in."""
    model = patch_model(BERT.build(), mapping)
    schedule = SparsitySchedule(**values)
    fast, counter = compiled(model, backend)
    seen = []
    for step in range(10):
        schedule.apply(model, step / 9)
        expected = BERT.hidden(model)
        assert_near(BERT.hidden(fast), expected, 1e-5)
        seen.append(expected)
        assert counter.frame_count <= 2
    assert (seen[0] - seen[-1]).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("name", "mapping"),
    [
        *(("bert", m) for m in MAPPINGS if m[0] in ("sparsemax", "entmax", "plif")),
        *(("bert", m) for m in SINKS),
        *(
            (n, ("r-softmax", {"r": 0.3}))
            for n in ("modernbert", "t5", "gpt2", "gemma2", "gpt-oss")
        ),
    ],
    ids=mapping_id,
)
def test_kinds_of_mappings_and_of_models_compile_in_one_graph(name, mapping):
    family = BY_NAME[name]
    model = patch(family.build(use_cache=False), mapping)
    fast, counter = compiled(model)
    expected = family.hidden(model)
    assert_near(family.hidden(fast), expected, 1e-5)
    assert counter.frame_count == 1


@pytest.mark.parametrize(
    ("name", "params", "learn"),
    [
        ("entmax", {"alpha": 1.5}, ()),
        ("t-softmax", {"t": 4.0}, "t"),
        *((name, params, "sink") for name, params in SINKS),
    ],
)
def test_training_on_a_gpu_compiles_in_one_graph(name, params, learn):
    """With kernels that do nothing, on the CPU."""
    model = patch_model(BERT.build(), name, learn=learn, **params).train()
    fast, counter = compiled(model, "aot_eager")
    with stubbed():
        for _ in range(2):
            BERT.run(fast, BERT.example).sum().backward()
    assert counter.frame_count == 1
    (graph,) = counter.graphs
    calls = [node for node in graph.graph.nodes if "triton_forward" in str(node.target)]
    assert len(calls) == BERT.modules


ONE_LAYER = {
    "bert": {"num_hidden_layers": 1},
    "gpt2": {"n_layer": 1},
    "t5": {"num_layers": 1, "num_decoder_layers": 1},
}


@pytest.mark.parametrize(
    ("name", "mapping", "learn", "backend"),
    [
        ("bert", "weighted-softmax", (), "aot_eager"),
        ("bert", "t-softmax", "t", "aot_eager"),
        ("gpt2", "r-softmax", (), "eager"),
        ("t5", "sparsemax", (), "eager"),
        *soak(
            ("bert", "r-softmax", (), "eager"),
            ("gpt2", "sparsemax", (), "eager"),
            ("t5", "t-softmax", "t", "eager"),
        ),
    ],
)
def test_dynamic_shapes_compile_at_most_twice(name, mapping, learn, backend):
    """With dynamic=True every number is a symbol: lengths, the scale, ends of ranges."""
    family = BY_NAME[name]
    model = patch_model(family.build(use_cache=False, **ONE_LAYER[name]), mapping, learn=learn)
    fast, counter = compiled(model, backend, dynamic=True)
    for length in (9, 7, 20):
        mask = padding((length, length - 3, 2))
        inputs = {"input_ids": tokens(length=length), "attention_mask": mask}
        if name == "t5":
            inputs["decoder_input_ids"] = tokens(length=length - 2)
            inputs["decoder_attention_mask"] = mask[:, 2:]
        expected = family.hidden(model, inputs)
        assert_near(family.hidden(fast, inputs), expected, 1e-5)
    assert counter.frame_count <= 2


def test_several_mappings_compile_in_one_graph_with_gradients():
    model = patch_model(BERT.build(num_hidden_layers=3), "t-softmax", learn="t", per="head")
    patch_model(model, "r-softmax", r=[0.1, 0.2, 0.3, 0.4], per="head", layers=[1])
    patch_model(model, "plif", knots=10, layers=[2])
    jitter(model)
    fast, counter = compiled(model, "aot_eager")
    plain = trained(model, model)
    traced = trained(fast, model)
    for name, gradient in plain.items():
        torch.testing.assert_close(traced[name], gradient, rtol=1e-4, atol=1e-5)
    assert counter.frame_count == 1


def trained(call, model):
    """The gradient of every parameter, those of the mappings among them."""
    torch.manual_seed(0)
    model.zero_grad()
    call(**text_inputs()).last_hidden_state.square().mean().backward()
    found = gradients(model)
    assert learned(model).keys() <= found.keys()
    return found


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", ["bert", "llama", "gpt2", "gpt-oss"])
def test_gradient_checkpointing_changes_nothing(name, reentrant):
    family = BY_NAME[name]
    model = patch_model(family.build(), "t-softmax", t=1.2, learn="t").train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    expected = trained(model, model)
    # renamed between the supported versions of Transformers
    enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
    enable({"use_reentrant": reentrant})
    model.enable_input_require_grads()
    calls = []
    layer = next(m for n, m in model.named_modules() if n.endswith(".sparse_attn"))
    layer.register_forward_hook(lambda *_: calls.append(1))
    actual = trained(model, model)
    assert len(calls) == 2  # once forward, once more for the gradient
    assert actual.keys() == expected.keys()
    for key, gradient in actual.items():
        torch.testing.assert_close(gradient, expected[key])


# torch's own inductor imports a module that torch deprecates
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.skipif(shutil.which("c++") is None, reason="inductor needs a C++ compiler")
def test_inductor_computes_what_the_model_does():
    model, inputs = patch_model(BERT.build(), "entmax", alpha=1.5), BERT.inputs()
    found = []
    for call in (model, torch.compile(model)):
        hidden = call(**inputs).last_hidden_state
        hidden.square().sum().backward()
        found.append((hidden.detach(), gradients(model)))
        model.zero_grad()
    (expected, slopes), (hidden, fast) = found
    assert_near(hidden, expected, 1e-5)
    largest = max(slope.abs().max() for slope in slopes.values())
    assert all((fast[n] - slope).abs().max() < 1e-4 * largest for n, slope in slopes.items())
