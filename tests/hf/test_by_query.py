"""per="query": the factor of `scaled-NAME` from the input of each query."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from accelerate import cpu_offload
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn import functional as F

from sparse_attn import Mapping, patch_model, unpatch_model
from sparse_attn.functional import entmax
from sparse_attn.kernels import attention

from .families import BY_NAME, padding, tokens
from .helpers import assert_near, gradients, jitter, learned, mappings_of

NAMES = ("scaled-softmax", "scaled-entmax", "scaled-r-softmax", "scaled-relu")
FAMILIES = ("bert", "llama", "gpt2", "vit", "bert-decoder", "t5", "whisper")
QUERY = {"per": "query", "delta": 0.5, "beta": 0.7, "gamma": 2.0}


def patched(family, name="scaled-entmax", **arguments):
    model = patch_model(BY_NAME[family].build(), name, **{**QUERY, **arguments})
    jitter(model)
    return model


def outputs(model, family):
    with torch.no_grad():
        return model(**BY_NAME[family].example)[0]


def slopes(call, model, inputs=BY_NAME["bert"].example):
    """Every gradient of a call."""
    model.zero_grad()
    torch.manual_seed(0)
    call(**inputs)[0].sin().sum().backward()
    return gradients(model)


def same_slopes(found, expected, tolerance):
    assert found.keys() >= expected.keys()
    for name, slope in expected.items():
        assert (found[name] - slope).abs().max() <= tolerance * (1 + slope.abs().max()), name


@pytest.mark.parametrize("name", NAMES)
def test_the_start_is_the_mapping_itself(name):
    model = BY_NAME["bert"].build()
    other = patch_model(copy.deepcopy(model), name.removeprefix("scaled-"))
    assert_near(outputs(patch_model(model, name, per="query"), "bert"), outputs(other, "bert"))


def test_weights_are_those_of_the_formula():
    """One layer of BERT, with padding, against the formula written out."""
    model = patched("bert").encoder.layer[0].attention.self
    x, mask = torch.randn(3, 9, 16), padding().bool()[:, None, None]
    _, p = model(x, attention_mask=mask, output_attentions=True)
    scale = model.sparse_attn.by_query
    heads = (scale.beta_weight @ x.mT, scale.gamma_weight @ x.mT)
    start = torch.log(torch.expm1(torch.tensor(0.7)))
    beta, gamma = F.softplus(heads[0] + start), 2.0 * torch.tanh(heads[1])
    n = mask.sum(-1).float()
    factor = 0.5 + beta * n.log() ** gamma
    q, k = (part(x).view(3, 9, 4, 4).transpose(1, 2) for part in (model.query, model.key))
    assert_near(p, entmax(factor.unsqueeze(-1) * (q @ k.mT) / 2, 1.5, mask=mask))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", NAMES)
def test_the_kernel_meets_the_reference(family, name):
    """Outputs and gradients in float64; with a hook the reference runs."""
    model = patched(family, name).double()
    inputs = {
        n: t.double() if t.is_floating_point() else t for n, t in BY_NAME[family].example.items()
    }
    output, found = model(**inputs)[0], slopes(model, model, inputs)
    for mapping in mappings_of(model):
        mapping.register_forward_hook(lambda *_: None)
    assert_near(output, model(**inputs)[0], 1e-12)
    assert any(".by_query." in n for n in found)
    expected = slopes(model, model, inputs)
    assert found.keys() == expected.keys()
    same_slopes(found, expected, 1e-9)


@pytest.mark.parametrize("impl", ["reference", "cpu"])
@pytest.mark.parametrize("name", ["relu", "sigmoid", "softmax"])
@pytest.mark.parametrize(("exponent", "power"), [(2.0, 0.0), (0.5, 0.0), (0.0, 1.0), (-2.0, 1.0)])
def test_one_key_has_a_logarithm_of_0(name, impl, exponent, power):
    """Of a fixed factor too, whose exponent is never negative; a sink shows it in softmax."""
    score = torch.full((1, 1, 1, 1), 2.0)
    zero, one, x = score * 0, score * 0 + 1, torch.ones(1, 1, 1)
    sink = {"sink": 0.25} if name == "softmax" else {}
    plain = Mapping(name, **sink)(score * (0.5 + power)).item()
    shape = {"num_heads": 1, "query_size": 1}
    by_query = Mapping(f"scaled-{name}", delta=0.5, beta=1.0, gamma=abs(exponent), **shape, **sink)
    with torch.no_grad():
        by_query.by_query.gamma_weight.fill_(30 * exponent)  # tanh is -1, 0 or 1
    given = {"bias": score, "impl": impl}
    found = attention(zero, zero, one, by_query, query_input=x, **given)
    assert found.item() == pytest.approx(plain)
    found.sum().backward()
    assert all(p.grad.isfinite().all() for p in by_query.parameters())
    if exponent >= 0:
        fixed = Mapping(f"scaled-{name}", delta=0.5, beta=1.0, gamma=exponent, **sink)
        assert attention(zero, zero, one, fixed, **given).item() == pytest.approx(plain)
        assert fixed(score).item() == pytest.approx(plain)


def test_a_step_in_half_precision_moves_float32_weights():
    model = patched("llama").to(torch.bfloat16)
    assert {p.dtype for p in learned(model).values()} == {torch.float32}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = {n: p.clone() for n, p in learned(model).items()}
    ids = tokens()
    model(ids)[0].float().square().mean().backward()
    optimizer.step()
    assert all((p != before[n]).any() for n, p in learned(model).items())


@pytest.mark.slow
def test_a_schedule_of_beta_is_compiled_twice():
    """In one graph, and with gradients; its first value is a constant, the others are inputs."""
    torch._dynamo.reset()
    model, counter = patched("bert"), CompileCounterWithBackend("aot_eager")
    graph = torch.compile(model, backend=counter, fullgraph=True)
    for beta in (0.5, 0.6, 0.7, 0.8):
        for mapping in mappings_of(model):
            mapping.set_value("beta", beta)
        same_slopes(*(slopes(call, model) for call in (graph, model)), 1e-4)
    assert counter.frame_count <= 2


def test_threads_do_not_share_inputs():
    """Both are between the module's hook and our attention at the same time."""
    model, barrier = patched("bert"), threading.Barrier(2)
    batches = [BY_NAME["bert"].example, {"input_ids": tokens(), "attention_mask": padding()}]

    def meet(*_):
        barrier.wait(60)

    with torch.no_grad():
        expected = [model(**batch)[0] for batch in batches]
        model.encoder.layer[0].attention.self.query.register_forward_pre_hook(meet)
        with ThreadPoolExecutor(2) as pool:
            found = list(pool.map(lambda batch: model(**batch)[0], batches))
    for got, wanted in zip(found, expected, strict=True):
        assert_near(got, wanted, 1e-5)


def test_unpatched_it_leaves_nothing():
    model = BY_NAME["bert"].build()
    keys, expected = list(model.state_dict()), outputs(model, "bert")
    unpatch_model(patch_model(model, "scaled-entmax", per="query"))
    assert list(model.state_dict()) == keys
    assert torch.equal(outputs(model, "bert"), expected)


def test_offloaded_and_on_the_meta_device():
    model = patched("bert", learn="beta")
    expected = outputs(model, "bert")
    assert_near(outputs(cpu_offload(copy.deepcopy(model)), "bert"), expected)
    inputs = {n: t.to("meta") for n, t in BY_NAME["bert"].example.items()}
    assert model.to("meta")(**inputs)[0].shape == expected.shape
