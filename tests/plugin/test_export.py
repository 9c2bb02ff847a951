"""Exported models hold operators of PyTorch alone, and are right at lengths not traced."""

import logging

import pytest
import torch
from torch.export import Dim

from sparse_attn import Mapping, patch_model

from .families import BY_NAME, padding, tokens
from .helpers import assert_near, jitter, soak

# torch 2.13 copies its own tree of arguments in a way that it deprecates
pytestmark = pytest.mark.filterwarnings("ignore:`isinstance.treespec:FutureWarning")

# rows at which seven steps of Newton's method, enough for 64 scores, miss entmax by 1e-3
STEEP = -torch.linspace(0, 1, 3000)[None].sqrt()


def inputs_of(family, length):
    mask = padding((length, max(1, length // 2)))
    inputs = {"input_ids": tokens(2, length), "attention_mask": mask}
    if family.name == "t5":
        inputs |= {"decoder_input_ids": tokens(2, length), "decoder_attention_mask": mask}
    return inputs


def any_length(inputs):
    return {name: {1: Dim.DYNAMIC} for name in inputs}


def patched_model(name, mapping, **options):
    one_layer = {"num_hidden_layers": 1} if name == "bert" else {}
    model = patch_model(BY_NAME[name].build(use_cache=False, **one_layer), mapping, **options)
    jitter(model)
    return model


def as_onnx(model, path, inputs, dynamic_shapes):
    """What onnxruntime makes of the module, as a function of the same inputs."""
    onnxruntime = pytest.importorskip("onnxruntime", reason="it runs the exported model")
    pytest.importorskip("onnxscript", reason="torch.onnx.export needs it")
    # torch notes on the logger that torchvision is not installed
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    program = torch.onnx.export(
        model, kwargs=inputs, dynamo=True, verbose=False, dynamic_shapes=dynamic_shapes
    )
    program.save(path)
    session = onnxruntime.InferenceSession(path)

    def run(**inputs):
        arrays = {name: tensor.numpy() for name, tensor in inputs.items()}
        return torch.from_numpy(session.run(None, arrays)[0])

    return run


@pytest.mark.parametrize("name", ["bert", *soak("gpt2", "t5")])
def test_exported_programs_hold_operators_of_torch_alone(name):
    family = BY_NAME[name]
    model = patched_model(name, "t-softmax", learn="t", per="head", t=2.0)
    inputs = inputs_of(family, 9)
    program = torch.export.export(model, (), inputs, dynamic_shapes=any_length(inputs))
    names = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert any("aten" in name for name in names)
    assert not any("sparse_attn" in name for name in names)
    for length in (5, 23):
        inputs = inputs_of(family, length)
        expected = family.hidden(model, inputs)
        assert_near(family.hidden(program.module(), inputs), expected, 1e-5)


@pytest.mark.parametrize(
    ("name", "mapping", "options"),
    [
        ("bert", "r-softmax", {"r": 0.3}),
        *soak(
            ("bert", "sparsemax", {}),
            ("bert", "t-softmax", {"t": 2.0, "learn": "t", "per": "head"}),
            ("bert", "entmax", {"alpha": 1.5}),
            ("bert", "sparsehourglass", {"q": 0.5}),
            ("bert", "sigsoftmax", {"bias": 0.5}),
            ("gpt2", "r-softmax", {"r": 0.3}),
            ("t5", "r-softmax", {"r": 0.3}),
        ),
    ],
)
def test_onnx_at_other_lengths(name, mapping, options, tmp_path):
    family = BY_NAME[name]
    model = patched_model(name, mapping, **options)
    inputs = inputs_of(family, 9)
    run = as_onnx(model, tmp_path / "model.onnx", inputs, any_length(inputs))
    for length in (9, 4, 23):
        inputs = inputs_of(family, length)
        output = run(**inputs)
        expected = family.hidden(model, inputs)
        assert_near(output[family.valid(inputs, output)], expected, 4e-5)


@pytest.mark.parametrize("length", [Dim.DYNAMIC, *soak(Dim("length", min=2, max=4096))])
def test_onnx_of_entmax_takes_the_steps_that_long_rows_need(length, tmp_path):
    mapping = Mapping("entmax", alpha=2.0).eval()
    run = as_onnx(
        mapping, tmp_path / "rows.onnx", {"scores": torch.randn(1, 9)}, {"scores": {1: length}}
    )
    torch.testing.assert_close(run(scores=STEEP), mapping(STEEP), rtol=1e-4, atol=1e-6)
