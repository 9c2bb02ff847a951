"""One graph for all layers, few compilations, and gradient checkpointing."""

import shutil

import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.testing import CompileCounterWithBackend
from torch._inductor.utils import get_first_incompatible_cudagraph_node

from sparse_attn import SparsitySchedule, patch_model
from tests.kernels.compiling import stubbed
from tests.marks import first, soak

from .families import BY_NAME, FAMILIES, padding, tokens
from .helpers import (
    MAPPINGS,
    SINKS,
    assert_near,
    gradients,
    learned,
    mapping_id,
    patch,
)

BERT = BY_NAME["bert"]
GPU = (
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
)

# Dynamo itself makes an instance of entmax's autograd function, which torch deprecates.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*autograd.function.Function.* should not be instantiated:DeprecationWarning"
)


def compiled(model, backend="eager", **options):
    counter = CompileCounterWithBackend(backend)
    return torch.compile(model, backend=counter, fullgraph=True, **options), counter


def assert_fused(counter, calls, impl="cpu"):
    """One graph, in which the fused operator computes every call: the reference has none."""
    assert counter.frame_count == 1
    (graph,) = counter.graphs
    names = [str(node.target) for node in graph.graph.nodes]
    assert sum(f"sparse_attn.{impl}_forward" in name for name in names) == calls


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_schedule_of_six_values_compiles_at_most_twice(backend):
    """Only the backends after "eager" make a graph's float an input; others compile it in."""
    model = patch_model(BERT.build(num_hidden_layers=1), "r-softmax")
    schedule = SparsitySchedule(parameter="r", initial=0.0, final=0.15)
    fast, counter = compiled(model, backend)
    seen = []
    for step in range(6):
        schedule.apply(model, step / 5)
        expected = BERT.hidden(model)
        assert_near(BERT.hidden(fast), expected, 1e-5)
        seen.append(expected)
        assert counter.frame_count <= 2
    assert (seen[0] - seen[-1]).abs().max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "mapping"),
    [
        *(("bert", m) for m in MAPPINGS if m[0] in ("sparsemax", "plif", "scaled-entmax")),
        *((n, ("r-softmax", {"r": 0.3})) for n in ("modernbert", "t5", "gpt2", "gemma2")),
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
    if mapping[0] != "plif":  # which has no kernel
        assert_fused(counter, family.modules)


# T5's and GPT-OSS's scores have a bias and sinks, ModernBERT's and Gemma 2's rows a window
FUSED = ["bert", "gpt2", "t5", "modernbert", "gemma2", "gpt-oss"]
DROPOUT = {name: {"attention_dropout": 0.1} for name in ("modernbert", "gemma2", "gpt-oss")}

# experts of Transformers 5.17 on the CPU, which AOTAutograd cannot differentiate
BACKENDS = {"gpt-oss": "eager"}


@pytest.mark.parametrize("name", first("bert", "t5", "gpt-oss"))
def test_training_compiles_to_one_graph_of_fused_operators(name):
    """With padding, a learned parameter and dropout."""
    family = BY_NAME[name]
    model = family.build(use_cache=False, **DROPOUT.get(name, {})).train()
    patch_model(model, "r-softmax", r=0.3, learn="r")
    fast, counter = compiled(model, BACKENDS.get(name, "aot_eager"))
    family.run(fast, family.example).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in learned(model).values())
    assert_fused(counter, family.modules)


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_layers_compiled_one_by_one_are_fused(name):
    """Transformers then asks for attention weights from around the graph."""
    family = BY_NAME[name]
    model = patch_model(family.build(use_cache=False), "sparsemax")
    expected = family.hidden(model)
    counter = CompileCounterWithBackend("eager")
    for layer in model.encoder.layer if name == "bert" else model.h:
        layer.compile(backend=counter, fullgraph=True)
    assert_near(family.hidden(model), expected, 1e-5)
    assert counter.graphs
    for graph in counter.graphs:
        names = [str(node.target) for node in graph.graph.nodes]
        assert sum("sparse_attn.cpu_forward" in name for name in names) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "name", "params", "learn"),
    [
        ("bert", *SINKS[1], "sink"),
        *((family, "t-softmax", {"t": 4.0}, "t") for family in ("t5", "modernbert")),
    ],
)
def test_training_on_a_gpu_compiles_in_one_graph(family, name, params, learn):
    """With kernels that do nothing, on the CPU."""
    made = BY_NAME[family]
    model = patch_model(made.build(use_cache=False), name, learn=learn, **params).train()
    fast, counter = compiled(model)
    with stubbed():
        for _ in range(2):
            made.run(fast, made.example).sum().backward()
    # the Triton kernels have no gradient to T5's learned bias, which its cross-attention has not
    calls = made.config["num_decoder_layers"] if family == "t5" else made.modules
    assert_fused(counter, calls, "triton")


@pytest.mark.parametrize("learn", ["", "r"])
def test_nothing_in_a_training_step_excludes_cuda_graphs(learn):
    """Neither an operator that Inductor cannot capture, nor a tensor that is not the graph's."""
    model = BERT.build(use_cache=False, num_hidden_layers=1, attention_probs_dropout_prob=0.1)
    patch_model(model.train(), "r-softmax", r=0.3, learn=learn or ())
    graphs = []

    def keep(graph, inputs):
        graphs.append(graph)
        return make_boxed_func(graph.forward)

    backend = aot_autograd(fw_compiler=keep, bw_compiler=keep)
    with stubbed():
        fast = torch.compile(model, backend=backend, fullgraph=True)
        BERT.run(fast, BERT.example).sum().backward()
    forward, backward = graphs
    for graph, name in ((forward, "forward"), (backward, "backward")):
        assert get_first_incompatible_cudagraph_node(graph) is None
        targets = [str(node.target) for node in graph.graph.nodes]
        assert sum(f"sparse_attn.triton_{name}" in target for target in targets) == 1
        # values that the host reads, and inputs that change in place
        assert not [t for t in targets if "local_scalar" in t or ".copy_" in t]
        constants = [node for node in graph.graph.nodes if node.op == "get_attr"]
        assert not constants, constants


ONE_LAYER = {
    "bert": {"num_hidden_layers": 1},
    "gpt2": {"n_layer": 1},
    "t5": {"num_layers": 1, "num_decoder_layers": 1},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "mapping", "learn", "backend"),
    [
        ("bert", "t-softmax", "t", "aot_eager"),
        ("t5", "sparsemax", (), "eager"),
        *soak(
            ("bert", "weighted-softmax", (), "aot_eager"),
            ("gpt2", "r-softmax", (), "eager"),
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


def test_checkpointed_layers_take_a_tensor():
    """PyTorch brings back the generators of the devices of these tensors, and of no other GPU."""
    for family in FAMILIES:
        if family.name == "albert":
            continue  # which Transformers does not checkpoint
        model = patch_model(family.build(), "softmax").train()
        checkpoint(model, reentrant=False)
        seen = []
        for module in model.modules():
            if given := getattr(module, "_gradient_checkpointing_func", None):
                module._gradient_checkpointing_func = recording(given, seen)
        family.run(model, family.example).sum().backward()
        assert seen
        assert all(seen), family


def recording(given, seen):
    def run(function, *args, **options):
        seen.append(any(torch.is_tensor(value) for value in args))
        return given(function, *args, **options)

    return run


def checkpoint(model, reentrant):
    # renamed between the supported versions of Transformers
    enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
    enable({"use_reentrant": reentrant})
    if reentrant:
        model.enable_input_require_grads()


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=GPU)])
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", FUSED)
def test_dropout_repeats_under_gradient_checkpointing(name, reentrant, device):
    family = BY_NAME[name]
    model = family.build(**DROPOUT.get(name, {})).train().to(device)
    patch_model(model, "t-softmax", t=1.2, learn="t")
    inputs = {key: tensor.to(device) for key, tensor in family.example.items()}
    found = []
    for checkpointed in (False, True):
        if checkpointed:
            checkpoint(model, reentrant)
        torch.manual_seed(3)
        model.zero_grad()
        family.run(model, inputs).square().mean().backward()
        found.append(gradients(model))
    for key, expected in found[0].items():
        close = 1e-4 * max(1.0, expected.abs().max().item())
        torch.testing.assert_close(
            found[1][key], expected, rtol=1e-4, atol=close, msg=lambda t, key=key: f"{key}: {t}"
        )


# torch's own inductor imports a module that torch deprecates
@pytest.mark.slow
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
