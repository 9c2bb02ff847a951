"""per="query": the factor of `scaled-NAME` from the input of each query."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.nn import functional as F
from transformers import LlamaForCausalLM

from sparse_attn import Mapping, export_model, load_pretrained, patch_model, unpatch_model
from sparse_attn.functional import entmax
from sparse_attn.inspection import record_attention
from sparse_attn.kernels.dispatch import run
from sparse_attn.kernels.inputs import AttentionInputs
from sparse_attn.mappings.derived import length_factor

from .families import BY_NAME, padding, tokens
from .helpers import assert_near, gradients, jitter, learned

NAMES = ("scaled-softmax", "scaled-entmax", "scaled-r-softmax", "scaled-relu")
FAMILIES = ("bert", "llama", "gpt2", "vit")
QUERY = {"per": "query", "delta": 0.5, "beta": 0.7, "gamma": 2.0}


def patched(family, name="scaled-entmax", **arguments):
    model = patch_model(BY_NAME[family].build(), name, **{**QUERY, **arguments})
    jitter(model)
    return model


def outputs(model, family):
    with torch.no_grad():
        return model(**BY_NAME[family].example)[0]


@pytest.mark.parametrize("name", NAMES)
def test_it_starts_as_the_mapping_itself(name):
    model = BY_NAME["bert"].build()
    other = patch_model(copy.deepcopy(model), name.removeprefix("scaled-"))
    assert_near(outputs(patch_model(model, name, per="query"), "bert"), outputs(other, "bert"))


def test_weights_are_those_of_the_formula():
    """One layer of BERT, with padding, against the formula written out."""
    model = patched("bert").encoder.layer[0].attention.self
    x, mask = torch.randn(3, 9, 16), padding().bool()[:, None, None]
    _, p = model(x, attention_mask=mask, output_attentions=True)
    scale = model.sparse_attn.by_query
    heads = (scale.beta @ x.mT, scale.gamma @ x.mT)
    start = torch.log(torch.expm1(torch.tensor(0.7)))
    beta, gamma = F.softplus(heads[0] + start), 2.0 * torch.tanh(heads[1])
    n = mask.sum(-1).float()
    factor = 0.5 + beta * n.log() ** gamma
    q, k = (part(x).view(3, 9, 4, 4).transpose(1, 2) for part in (model.query, model.key))
    assert_near(p, entmax(factor.unsqueeze(-1) * (q @ k.mT) / 2, 1.5, mask=mask))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", NAMES)
def test_the_kernel_meets_the_reference(family, name):
    """Outputs and gradients, also with a hook, with which the reference runs."""
    model = patched(family, name)
    results = []
    for observed in (False, True):
        for module in model.modules():
            if observed and isinstance(module, Mapping):
                module.register_forward_hook(lambda *_: None)
        model.zero_grad()
        output = model(**BY_NAME[family].example)[0]
        output.sin().sum().backward()
        results.append((output, gradients(model)))
    (output, slopes), (expected, wanted) = results
    assert_near(output, expected, 1e-5)
    assert slopes.keys() == wanted.keys()
    assert any(".by_query." in n for n in slopes)
    for key, slope in wanted.items():
        assert (slopes[key] - slope).abs().max() <= 1e-4 * (1 + slope.abs().max()), key


def test_gradients_to_the_weights_are_exact():
    mapping = Mapping("scaled-softmax", num_heads=2, query_size=3, delta=0.5).double()
    scale = mapping.by_query
    x = torch.randn(1, 5, 3, dtype=torch.float64)
    q, k, v = (torch.randn(1, 2, 5, 4, dtype=torch.float64) for _ in range(3))

    def call(beta, gamma, query):
        weights = {"beta": beta, "gamma": gamma}
        values = torch.func.functional_call(scale, weights, (x, 0.7, 2.0))
        return run(AttentionInputs(query, k, v, mapping, causal=True, by_row=values)).output

    weights = [torch.randn(2, 3, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    assert torch.autograd.gradcheck(call, (*weights, q.requires_grad_()))


def test_negative_powers_are_finite():
    """(log 1)^gamma is infinite for gamma < 0, so one key counts as two."""
    n = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    gamma = torch.tensor(-2.0, requires_grad=True)
    factor = length_factor(n, torch.tensor(0.0), torch.tensor(1.0), gamma)
    factor.sum().backward()
    assert_near(factor, torch.tensor([2.0814, 2.0814, 0.8285]), 1e-4)
    assert gamma.grad.isfinite()
    assert n.grad.isfinite().all()


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_saved_and_loaded(family, tmp_path):
    model = patched(family, learn="beta", gamma=1.5)
    model.save_pretrained(tmp_path)
    loaded = load_pretrained(type(model), tmp_path)
    assert torch.equal(outputs(loaded, family), outputs(model, family))
    assert 'per="query"' in repr(loaded)
    assert loaded.state_dict().keys() == model.state_dict().keys()


def test_it_trains_and_half_precision_keeps_its_weights():
    model = patched("llama").to(torch.bfloat16)
    assert {p.dtype for p in learned(model).values()} == {torch.float32}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = {n: p.clone() for n, p in learned(model).items()}
    ids = tokens()
    model(ids)[0].float().square().mean().backward()
    optimizer.step()
    assert all((p != before[n]).any() for n, p in learned(model).items())


def test_compiled_in_one_graph():
    model = patched("bert")
    inputs = BY_NAME["bert"].example
    with torch.no_grad():
        expected = model(**inputs)[0]
        torch._dynamo.reset()
        got = torch.compile(model, backend="eager", fullgraph=True)(**inputs)[0]
    assert_near(got, expected, 1e-5)


def test_checkpointing_gives_the_same_gradients():
    model = patched("bert").train()
    inputs, found = BY_NAME["bert"].example, []
    for _ in range(2):
        model.zero_grad()
        torch.manual_seed(0)
        model(**inputs)[0].sin().sum().backward()
        found.append(gradients(model))
        enable = getattr(
            model, "activation_checkpointing_enable", model.gradient_checkpointing_enable
        )
        enable({"use_reentrant": False})
    for name, slope in found[0].items():
        assert_near(found[1][name], slope, 1e-5)


def test_generation_step_by_step_is_the_whole_pass():
    """Keys of the cache count, and the input is that of the new tokens alone."""
    config = BY_NAME["llama"].build().config
    model = patch_model(LlamaForCausalLM(config).eval(), "scaled-entmax", **QUERY)
    jitter(model)
    found = model.generate(tokens(2, 5), max_new_tokens=6, do_sample=False, pad_token_id=0)
    with torch.no_grad():
        whole = model(found).logits.argmax(-1)
    assert torch.equal(whole[:, 4:-1], found[:, 5:])


def test_recorded_zeros_are_those_of_the_weights():
    model = patched("bert")
    inputs = BY_NAME["bert"].example
    with torch.no_grad(), record_attention(model) as record:
        weights = model(**inputs, output_attentions=True).attentions
    valid = padding().bool()[:, None, None].expand_as(weights[0])
    zeros = torch.stack([(w[valid] == 0).float().mean() for w in weights]).mean()
    assert record.mean == pytest.approx(zeros.item(), abs=0.05)


def test_exported(tmp_path):
    model, inputs = patched("bert", "scaled-softmax"), BY_NAME["bert"].example
    export_model(model, tmp_path / "model.pt2", inputs)
    got = torch.export.load(tmp_path / "model.pt2").module()(**inputs)
    with torch.no_grad():
        assert_near(got["last_hidden_state"], model(**inputs)[0], 1e-5)


def test_unpatched_it_leaves_nothing():
    model = BY_NAME["bert"].build()
    keys, expected = list(model.state_dict()), outputs(model, "bert")
    patch_model(model, "scaled-entmax", per="query")
    unpatch_model(model)
    assert list(model.state_dict()) == keys
    assert torch.equal(outputs(model, "bert"), expected)


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
