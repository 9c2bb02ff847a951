"""Exported models hold operators of PyTorch or ONNX alone, and are right at sizes not traced."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from sparse_attn import Mapping, export_model, patch_lm_head, patch_model
from sparse_attn.hf import exporting
from sparse_attn.kernels import attention
from tests.commands import python
from tests.marks import soak

from .families import BY_NAME, padding, tokens
from .helpers import MAPPINGS, assert_near, jitter, mapping_id

# torch 2.13 copies its own tree of arguments in a way that it deprecates
pytestmark = pytest.mark.filterwarnings("ignore:`isinstance.treespec:FutureWarning")

# rows at which seven steps of Newton's method, enough for 64 scores, miss entmax by 1e-3
STEEP = -torch.linspace(0, 1, 3000)[None].sqrt()
SIZES = ((1, 1), (1, 5), (3, 23), (2, 90))
# entmax takes sixteen steps, which torch traces one by one
SLOW = [entry for entry in MAPPINGS if entry[0] == "scaled-entmax"]
QUICK = [entry for entry in MAPPINGS if entry not in SLOW]
# what runs an exported model where neither this library nor Transformers can be imported
ELSEWHERE = """
import sys
for name in ("sparse_attn", "transformers"):
    sys.modules[name] = None
import onnxruntime, torch
pt2, onnx, batches, found = sys.argv[1:]
model, session = torch.export.load(pt2).module(), onnxruntime.InferenceSession(onnx)
names, results = [output.name for output in session.get_outputs()], []
for inputs in torch.load(batches):
    arrays = session.run(names, {name: tensor.numpy() for name, tensor in inputs.items()})
    results.append((dict(model(**inputs)), dict(zip(names, map(torch.from_numpy, arrays)))))
torch.save(results, found)
"""


@pytest.fixture(autouse=True)
def quiet() -> None:
    # torch notes on this logger that torchvision is not installed
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)


def run(path: Path, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """What the exported model at `path` makes of the inputs."""
    if path.suffix == ".pt2":
        return torch.export.load(path).module()(**inputs)
    onnxruntime = pytest.importorskip("onnxruntime", reason="it runs the exported model")
    session = onnxruntime.InferenceSession(path)
    names = [output.name for output in session.get_outputs()]
    arrays = session.run(names, {name: tensor.numpy() for name, tensor in inputs.items()})
    return dict(zip(names, map(torch.from_numpy, arrays), strict=True))


class Each(nn.Module):
    """Attention with each of the mappings, in one program."""

    def __init__(self, entries: list[tuple[str, dict[str, Any]]]) -> None:
        super().__init__()
        self.each = nn.ModuleDict({mapping_id(e): Mapping(e[0], **e[1]) for e in entries})

    def forward(self, rows: Tensor, mask: Tensor) -> dict[str, Tensor]:
        heads = rows.unflatten(-1, (2, 4)).transpose(1, 2)
        return {
            f"by {name}": attention(heads, heads, heads, mapping, mask=mask[:, None, None] > 0)
            for name, mapping in self.each.items()
        }

    @staticmethod
    def inputs(rows: int, length: int) -> dict[str, Tensor]:
        mask = padding((length, *([max(1, length // 2)] * (rows - 1))))
        return {"rows": 1.5 * torch.randn(rows, length, 8), "mask": mask}


@pytest.mark.slow
@pytest.mark.parametrize(
    "entries",
    [QUICK[2::12], *soak((QUICK[2::4],), (QUICK[::4],), (QUICK[1::2],), (SLOW,))],
    ids=len,
)
@pytest.mark.parametrize("suffix", [".onnx", *soak(".pt2")])
def test_every_mapping(
    suffix: str, entries: list[tuple[str, dict[str, Any]]], tmp_path: Path
) -> None:
    entries = [e for e in entries if (e[0], suffix) != ("random-drop-softmax", ".onnx")]
    model = Each(entries).eval()
    path = tmp_path / f"model{suffix}"
    export_model(model, path, model.inputs(1, 9))
    for size in SIZES:
        inputs = model.inputs(*size)
        found, expected = run(path, inputs), model(**inputs)
        assert found.keys() == expected.keys()
        for name, tensor in expected.items():
            torch.testing.assert_close(found[name], tensor, rtol=1e-5, atol=1e-5, msg=name)


@pytest.mark.slow
def test_a_model_of_several_mappings_runs_where_this_library_is_not(tmp_path: Path) -> None:
    """Fixed and learned parameters, layer by layer, and a head; with dropout, in training."""
    model = BY_NAME["bert"].build("BertForMaskedLM", num_hidden_layers=3, attention_dropout=0.5)
    patch_model(model, "sparsegen", lam=0.4, layers=[0])
    patch_model(model, "t-softmax", t=2.0, learn="t", per="head", layers=[1])
    patch_model(model, "scaled-softmax", per="query", layers=[2])
    patch_lm_head(model, "sigsoftmax", bias=0.5)
    jitter(model)
    model.train().bert.embeddings.eval()
    modes = [module.training for module in model.modules()]
    hooks = len(model._forward_hooks)
    paths = [tmp_path / "model.pt2", tmp_path / "model.onnx"]
    for path in paths:
        export_model(model, path, {"input_ids": tokens(1, 9), "attention_mask": padding((9,))})
    assert [module.training for module in model.modules()] == modes
    assert len(model._forward_hooks) == hooks
    batches = [
        {"input_ids": tokens(rows, length), "attention_mask": padding((length, 1, 2)[:rows])}
        for rows, length in ((1, 1), (1, 5), (3, 23))
    ]
    torch.save(batches, tmp_path / "batches")
    python("-c", ELSEWHERE, *paths, tmp_path / "batches", tmp_path / "found")
    for inputs, results in zip(batches, torch.load(tmp_path / "found"), strict=True):
        expected = model.eval()(**inputs).logits
        for found in results:
            assert list(found) == ["logits"]
            torch.testing.assert_close(found["logits"], expected, rtol=1e-5, atol=1e-5)
    program = torch.export.load(paths[0])
    assert program.example_inputs is None
    names = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert any("aten" in name for name in names)
    assert not any("sparse_attn" in name for name in names)


@pytest.mark.parametrize("suffix", [".pt2", ".onnx"])
@pytest.mark.parametrize("name", soak("gpt2", "llama", "t5", "modernbert"))
def test_families_at_other_sizes(name: str, suffix: str, tmp_path: Path) -> None:
    family = BY_NAME[name]
    model = patch_model(family.build(), "r-softmax", r=0.3)

    def inputs_of(rows: int, length: int) -> dict[str, Tensor]:
        mask = padding((length, *([max(1, length // 2)] * (rows - 1))))
        inputs = {"input_ids": tokens(rows, length), "attention_mask": mask}
        if name == "t5":
            inputs |= {"decoder_input_ids": tokens(rows, 4), "decoder_attention_mask": mask[:, :4]}
        return inputs

    path = tmp_path / f"model{suffix}"
    export_model(model, path, inputs_of(2, 9))
    for size in ((1, 5), (3, 23)):
        inputs = inputs_of(*size)
        found = run(path, inputs)["last_hidden_state"]
        expected = family.hidden(model, inputs)
        assert_near(found[family.valid(inputs, found)], expected, 1e-5)


@pytest.mark.slow
def test_windows_and_padding_on_the_left(tmp_path: Path) -> None:
    """A layer of the mapping and one of softmax, both causal with a window of 4 tokens."""
    family, path = BY_NAME["mistral"], tmp_path / "model.onnx"
    model = patch_model(family.build(), "sparsemax", layers=[0])
    export_model(model, path, {"input_ids": tokens(1, 9), "attention_mask": padding((9,))})
    mask = padding((7, 4, 1)).flip(-1)
    inputs = {"input_ids": tokens(3, 7), "attention_mask": mask}
    found = run(path, inputs)["last_hidden_state"]
    assert_near(found[mask > 0], family.hidden(model, inputs), 1e-5)


@pytest.mark.slow
def test_tuples_of_tensors_of_a_compiled_model_have_numbers(tmp_path: Path) -> None:
    model = patch_model(BY_NAME["bert"].build(num_hidden_layers=1), "sparsemax")
    inputs = {"input_ids": tokens(2, 4)}
    model.config.output_hidden_states = True
    export_model(torch.compile(model, backend="eager"), tmp_path / "model.pt2", inputs)
    found = run(tmp_path / "model.pt2", inputs)
    assert {"hidden_states.0", "hidden_states.1"} < found.keys()
    torch.testing.assert_close(found["hidden_states.1"], model(**inputs).hidden_states[1])


@pytest.mark.slow
def test_large_weights_are_beside_the_onnx_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "LARGEST", 10)
    path, inputs = tmp_path / "rows.onnx", {"input": torch.randn(2, 9)}
    for model in (nn.Linear(9, 9), nn.Linear(9, 9)):  # the second replaces the first
        export_model(model, path, inputs)
        assert {file.name for file in tmp_path.iterdir()} == {"rows.onnx", "rows.onnx.data"}
        (rows,) = run(path, inputs).values()
        torch.testing.assert_close(rows, model(**inputs))


@pytest.mark.slow
def test_operators_of_other_libraries(tmp_path: Path) -> None:
    model = patch_model(BY_NAME["gpt-oss"].build(num_hidden_layers=1), "sparsemax").eval()
    inputs, path = {"input_ids": tokens(2, 9)}, tmp_path / "model.pt2"
    with pytest.raises(NotImplementedError, match=r"grouped_mm.*set_experts_implementation"):
        export_model(model, path, inputs)
    assert not list(tmp_path.iterdir())
    model.set_experts_implementation("batched_mm")
    export_model(model, path, inputs)
    found = run(path, inputs)["last_hidden_state"]
    torch.testing.assert_close(found, model(**inputs).last_hidden_state)


@pytest.mark.slow
@pytest.mark.parametrize("length", [Dim.DYNAMIC, *soak(Dim("length", min=2, max=4096))])
def test_onnx_of_entmax_takes_the_steps_that_long_rows_need(length: Any, tmp_path: Path) -> None:
    mapping = Mapping("entmax", alpha=2.0).eval()
    rows, path = {"scores": torch.randn(1, 9)}, tmp_path / "rows.onnx"
    program = torch.onnx.export(
        mapping, kwargs=rows, dynamo=True, verbose=False, dynamic_shapes={"scores": {1: length}}
    )
    program.save(path)
    (found,) = run(path, {"scores": STEEP}).values()
    torch.testing.assert_close(found, mapping(STEEP), rtol=1e-4, atol=1e-6)
