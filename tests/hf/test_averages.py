"""Averages and copies of a model carry the values of its mappings, fixed, scheduled or learned."""

import copy
import math

import pytest
import torch
from safetensors.torch import load_file
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from transformers import AutoModel

from sparse_attn import Mapping, SparsitySchedule, patch_model, unpatch_model

from .families import BY_NAME
from .helpers import mappings_of

IDS = torch.arange(20).view(2, 10) + 5


def values(model, name="r"):
    return [mapping.value(name) for mapping in mappings_of(model)]


def sparse(name="r-softmax", **arguments):
    torch.manual_seed(0)
    model = BY_NAME["bert"].build().eval()
    return patch_model(model, name, **(arguments or {"r": 0.05}))


def outputs(model):
    with torch.no_grad():
        return model(input_ids=IDS)[0]


@pytest.mark.parametrize(("use_buffers", "mean"), [(False, 0.6), (True, 0.375)])
def test_an_averaged_model_has_the_average(use_buffers, mean, tmp_path):
    """Of 0.15, 0.3, 0.45 and 0.6; a copied 0.6 has its digits, and not float32's 0.6000000238."""
    model, schedule = sparse(), SparsitySchedule("r", 0.0, 0.6)
    average = AveragedModel(model, use_buffers=use_buffers)
    for step in range(1, 5):
        schedule.apply(model, step / 4)
        average.update_parameters(model)
    assert values(model) == [0.6] * 2
    assert values(average) == (pytest.approx([mean] * 2) if use_buffers else [mean] * 2)
    assert torch.equal(outputs(average.module), outputs(sparse(r=values(average)[0])))
    average.module.save_pretrained(tmp_path)
    loaded = AutoModel.from_pretrained(tmp_path)
    assert values(loaded) == values(average)
    assert torch.equal(outputs(loaded), outputs(average.module))


@pytest.mark.parametrize("average", ["lerp_", "many at once", "state dict"])
def test_other_averages(average):
    """As timm, ema_pytorch and diffusers write them."""
    model = sparse()
    ema = copy.deepcopy(model)
    for r in (0.2, 0.4):
        SparsitySchedule("r", r, r).apply(model, 0.5)
        with torch.no_grad():
            if average == "lerp_":
                for own, other in zip(ema.buffers(), model.buffers(), strict=True):
                    if own.is_floating_point():
                        own.lerp_(other, 0.5)
            elif average == "state dict":
                for key, own in ema.state_dict().items():
                    own.copy_(own * 0.5 + model.state_dict()[key] * 0.5)
            else:
                pairs = zip(ema.buffers(), model.buffers(), strict=True)
                floating = [pair for pair in pairs if pair[0].is_floating_point()]
                torch._foreach_lerp_(*map(list, zip(*floating, strict=True)), 0.5)
    assert values(ema) == pytest.approx([0.2625] * 2)  # 0.05, 0.125, 0.2625
    table = next(iter(ema.config.sparse_attn["mappings"].values()))
    assert table["params"]["r"] == pytest.approx(0.2625)


def test_an_average_of_learned_and_fixed_values():
    torch.manual_seed(0)
    model = patch_model(
        BY_NAME["bert"].build().eval(), "entmax", per="head", learn="alpha", alpha=1.5,
        sink=[0.1, 0.2, 0.3, 0.4],
    )  # fmt: skip
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5), use_buffers=True)
    average.update_parameters(model)
    for mapping in mappings_of(model):
        mapping.set_value("sink", [1.1, 1.2, 1.3, 1.4])
    average.update_parameters(model)
    for sink in values(average, "sink"):
        assert torch.allclose(sink, torch.tensor([0.6, 0.7, 0.8, 0.9], dtype=sink.dtype))


@pytest.mark.slow
def test_a_compiled_average():
    torch._dynamo.reset()
    model = sparse("entmax", alpha=1.5)
    average = AveragedModel(model, use_buffers=True)
    compiled = torch.compile(average, backend="aot_eager", fullgraph=True)
    for alpha in (1.5, 1.2, 1.8):
        SparsitySchedule("alpha", alpha, alpha).apply(model, 0.5)
        average.update_parameters(model)
        assert torch.allclose(outputs(compiled), outputs(average), atol=1e-5)


# State dicts


def test_a_state_dict_carries_the_values():
    model, other = sparse(), sparse(r=0.5)
    assert not other.load_state_dict(model.state_dict()).missing_keys
    assert values(other) == [0.05] * 2
    assert torch.equal(outputs(other), outputs(model))
    with torch.device("meta"):
        empty = BY_NAME["bert"].build()
    empty.load_state_dict(unpatch_model(copy.deepcopy(model)).state_dict(), assign=True)
    patch_model(empty, "r-softmax", r=0.4).load_state_dict(model.state_dict(), assign=True)
    assert values(empty) == [0.05] * 2


@pytest.mark.parametrize("assign", [False, True])
def test_a_state_dict_without_values_loads(assign):
    """As those saved before values were in it."""
    model, other = sparse(r=0.15), sparse(r=0.15)
    old = {k: v for k, v in model.state_dict().items() if "sparse_attn" not in k}
    other.load_state_dict(old, strict=True, assign=assign)
    assert values(other) == [0.15] * 2


def test_none_is_a_value():
    """Of a bias that each row derives, in place of a number and back."""
    module, other = Mapping("sigmoid"), Mapping("sigmoid", bias=0.5)
    scores = torch.randn(3, 7)
    other.load_state_dict(module.state_dict())
    assert other.value("bias") is None
    assert torch.equal(other(scores), module(scores))
    module.set_value("bias", 0.25)
    assert module.state_dict().keys() == other.state_dict().keys()
    other.load_state_dict(module.state_dict())
    assert other.value("bias") == 0.25


@pytest.mark.parametrize("number", [0.6, 1e-30, 0.1234567890123])
def test_a_number_keeps_its_digits(number, tmp_path):
    """Also those that float32 has not, as long as no other number is written."""
    model = sparse(r=number)
    changes = [
        lambda m: m.to(torch.bfloat16), lambda m: m.double(), lambda m: m.float(), copy.deepcopy,
        lambda m: m.load_state_dict(m.state_dict()),
        lambda m: AveragedModel(m).update_parameters(m),
    ]  # fmt: skip
    for change in changes:
        change(model)
        assert values(model) == values(copy.deepcopy(model)) == [number] * 2
    assert all(mapping._buffers["r"].dtype == torch.float32 for mapping in mappings_of(model))
    model.save_pretrained(tmp_path)
    for dtype in (torch.float32, torch.bfloat16):
        assert values(AutoModel.from_pretrained(tmp_path, dtype=dtype)) == [number] * 2
    keys = [key for key in load_file(tmp_path / "model.safetensors") if "sparse_attn" in key]
    assert len(keys) == 2


def test_numbers_beyond_float32():
    module = Mapping("t-softmax", t=1e300)
    module.set_value("t", 2e300)
    assert copy.deepcopy(module).value("t") == module.value("t") == 2e300
    assert math.isinf(module.state_dict()["t"])


def test_inference_mode():
    with torch.inference_mode():
        module = copy.deepcopy(Mapping("r-softmax", r=0.3)).to("cpu")
        module.set_value("r", 0.4)
    for r in (0.5, 0.6):
        assert module.value("r") == pytest.approx(r - 0.1)
        module.set_value("r", r)
    assert module.value("r") == 0.6


def test_vmap_over_models():
    """Each of them with its own value, as torch.func stacks them."""
    models = [sparse(r=r) for r in (0.1, 0.6)]
    parameters, buffers = torch.func.stack_module_state(models)

    def call(parameters, buffers):
        return torch.func.functional_call(models[0], (parameters, buffers), (IDS,))[0]

    found = torch.func.vmap(call)(parameters, buffers)
    for output, model in zip(found, models, strict=True):
        assert torch.allclose(output, outputs(model), atol=1e-5)


def test_a_change_in_place_before_backward_is_seen():
    scores = torch.randn(3, 7, requires_grad=True)
    mapping = Mapping("r-softmax", r=0.3)
    loss = torch.utils.checkpoint.checkpoint(mapping, scores, use_reentrant=True).square().sum()
    mapping.load_state_dict(Mapping("r-softmax", r=0.6).state_dict())
    with pytest.raises(RuntimeError, match="changed between"):
        loss.backward()
