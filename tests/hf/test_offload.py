"""Learned parameters that are elsewhere between calls: accelerate's hooks bring them in."""

from importlib.metadata import version

import pytest
import torch
from accelerate import cpu_offload, disk_offload, dispatch_model
from accelerate.hooks import ModelHook, add_hook_to_module
from peft import LoraConfig, get_peft_model
from transformers import AutoModel

from sparse_attn import patch_model
from sparse_attn.inspection import record_attention
from sparse_attn.kernels import reference

from .families import BY_NAME
from .helpers import jitter, learned, learning, peft_warns

FAMILY = BY_NAME["bert"]
whole_on_disk = pytest.mark.skipif(
    tuple(map(int, version("accelerate").split(".")[:2])) < (1, 15),
    reason="accelerate puts no whole model on disk before 1.15",
)
PLACES = {"embeddings": "cpu", "encoder": "disk", "pooler": "cpu"}


OFFLOADS = {
    "memory": lambda model, _: cpu_offload(model, execution_device="cpu"),
    "disk": lambda model, folder: disk_offload(model, folder, execution_device="cpu"),
    "both": lambda model, folder: dispatch_model(
        model, PLACES, main_device="cpu", offload_dir=folder
    ),
}


@pytest.fixture(autouse=True)
def _no_weights(monkeypatch):
    """Only the fused kernels, which make no attention weights, may do a call."""

    def fail(call):
        raise AssertionError("attention weights were made")

    monkeypatch.setattr(reference, "exact_weights", fail)


@pytest.mark.parametrize("offload", OFFLOADS)
@pytest.mark.parametrize("per", ["layer", "head"])
@pytest.mark.parametrize(
    ("mapping", "learn"),
    [("t-softmax", "t"), ("sigsoftmax", "bias"), ("entmax", "alpha"), ("softmax", "sink")],
)
def test_offloaded_models_compute_the_same(mapping, learn, per, offload, tmp_path):
    model = patch_model(FAMILY.build(), mapping, learn=learn, per=per)
    jitter(model)
    expected = FAMILY.hidden(model)
    model = OFFLOADS[offload](model, tmp_path)
    for _ in range(2):
        assert all(parameter.is_meta for parameter in learned(model).values())
        assert torch.equal(FAMILY.hidden(model), expected)
    assert f"learn=['{learn}']" in repr(model)


@peft_warns
def test_offloaded_copies_of_peft_compute_the_same():
    model = patch_model(FAMILY.build(), "t-softmax", t=2.0, learn="t")
    config = LoraConfig(r=2, target_modules=["query"], modules_to_save=["sparse_attn"])
    model = get_peft_model(model, config)
    jitter(model)
    expected = FAMILY.hidden(model)
    cpu_offload(model, execution_device="cpu")
    assert all(parameter.is_meta for parameter in learned(model).values())
    assert torch.equal(FAMILY.hidden(model), expected)


@pytest.mark.parametrize(
    "places",
    [pytest.param({"": "disk"}, marks=whole_on_disk, id="disk"), pytest.param(PLACES, id="both")],
)
def test_loaded_onto_disk(places, tmp_path):
    model = learning(FAMILY.build(), per="head")
    model.save_pretrained(tmp_path / "model")
    options = {"device_map": places, "offload_folder": tmp_path / "weights"}
    loaded = AutoModel.from_pretrained(tmp_path / "model", **options)
    assert any(parameter.is_meta for parameter in loaded.parameters())
    assert torch.equal(FAMILY.hidden(loaded), FAMILY.hidden(model))


@whole_on_disk
def test_a_model_on_disk_is_patched(tmp_path):
    model = FAMILY.build()
    model.save_pretrained(tmp_path / "model")
    options = {"device_map": {"": "disk"}, "offload_folder": tmp_path / "weights"}
    away = AutoModel.from_pretrained(tmp_path / "model", **options)
    for patched in (model, away):
        patch_model(patched, "r-softmax", r=[0.1, 0.2, 0.3, 0.4], per="head", layers=[0])
        patch_model(patched, "t-softmax", t=2.0, learn="t", layers=[1])
    assert torch.equal(FAMILY.hidden(away), FAMILY.hidden(model))


def test_hooks_in_sequence_say_where_a_model_runs():
    model = cpu_offload(FAMILY.build(), execution_device="cpu")
    for module in model.modules():
        add_hook_to_module(module, ModelHook(), append=True)
    patch_model(model, "t-softmax", t=2.0, learn="t")
    assert all(not parameter.is_meta for parameter in learned(model).values())


def test_a_record_reads_offloaded_parameters():
    model = patch_model(FAMILY.build(), "t-softmax", t=2.0, learn="t")
    cpu_offload(model, execution_device="cpu")
    with record_attention(model) as record:
        model(**FAMILY.inputs())
    assert torch.allclose(record.parameters["t"], torch.tensor(2.0).double())
