"""What the tests of the plug-in share: running models, padding, mappings, fresh processes."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sparse_attn import Mapping, mapping_names, patch_model, patching
from sparse_attn.mappings import get_spec
from tests.mappings.cases import CASES

from .families import Family

ROOT = Path(__file__).parents[2]

MIXED = "mixed-sparsehourglass"

# One setting for each mapping, away from its defaults where those are its gentlest.
SETTINGS: dict[str, dict[str, Any]] = {
    "t-softmax": {"t": 1.7},
    "r-softmax": {"r": 0.3},
    "sparsegen": {"lam": 0.4},
    "sparsecone": {"q": 0.5},
    "sparsehourglass": {"q": 0.5},
    "entmax": {"alpha": 1.5},
    "sigsoftmax": {"bias": 0.5},
    "plif": {"knots": 12, "bound": 6.0},
    "monotone": {"units": 5, "bound": 6.0},
    "temperature-softmax": {"temperature": 0.5},
    "top-k-softmax": {"k": 3.0},
    "random-drop-softmax": {"r": 0.3},
    MIXED: {"q": 0.5, "mix": 0.6},
}
MAPPINGS = [(name, SETTINGS.get(name, {})) for name in (*mapping_names(), MIXED)]
# Whose weights a rounding of the scores does not turn into others.
CALM = [entry for entry in MAPPINGS if entry[0] not in {c.name for c in CASES if c.chaotic}]
FEW = [(name, SETTINGS.get(name, {})) for name in ("r-softmax", "sparsemax", "t-softmax")]

# Names of inputs with one entry a token, beside the mask that says which of them are padding.
PADDED = {
    "attention_mask": ("input_ids", "bbox", "input_values"),
    "decoder_attention_mask": ("decoder_input_ids",),
    "encoder_attention_mask": ("encoder_hidden_states",),
}


def soak(*values: Any) -> list[Any]:
    """Parameters of tests that `make soak` alone runs, where one takes seconds."""
    marks = pytest.mark.soak
    return [pytest.param(*v if isinstance(v, tuple) else (v,), marks=marks) for v in values]


def mapping_id(value: Any) -> str | None:
    """Test id of an entry of MAPPINGS."""
    return value[0] if isinstance(value, tuple) else None


def patch(model: Any, mapping: tuple[str, dict[str, Any]], **arguments: Any) -> Any:
    """patch_model with an entry of MAPPINGS; learned maps are moved away from the identity."""
    name, parameters = mapping
    patch_model(model, name, **parameters, **arguments)
    if get_spec(name).weights is not None:
        jitter(model)
    return model


def jitter(model: Any) -> None:
    """Move every learned parameter of the mappings, each differently."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".sparse_attn." in name:
                parameter.add_(torch.randn_like(parameter).mul(0.5))


def run(model: Any, inputs: dict[str, Tensor], family: Family) -> Tensor:
    """Hidden states (batch, tokens, features) of a model's last stack."""
    output = model(**inputs)
    if family.name != "clip":
        return output.last_hidden_state
    text = output.text_model_output.last_hidden_state
    image = output.image_embeds[:, None].expand(-1, text.shape[1], -1)
    return torch.cat([text, image], dim=-1)


def valid(inputs: dict[str, Tensor], family: Family, output: Tensor) -> Tensor:
    """Which tokens of `output` are not padding, (batch, tokens)."""
    if family.name == "wav2vec2":  # two convolutions: windows 4 and 2, strides 4 and 2
        lengths = inputs.get("attention_mask", torch.ones_like(inputs["input_values"])).sum(-1)
        frames = (lengths.long() - 4) // 4 + 1
        frames = (frames - 2) // 2 + 1
        return torch.arange(output.shape[1]) < frames[:, None]
    mask = inputs.get("decoder_attention_mask", inputs.get("attention_mask"))
    return torch.ones(output.shape[:2], dtype=torch.bool) if mask is None else mask.bool()


def run_valid(model: Any, inputs: dict[str, Tensor], family: Family) -> Tensor:
    """The hidden states of the tokens that are not padding, without gradient."""
    with torch.no_grad():
        output = run(model, inputs, family)
    return output[valid(inputs, family, output)]


def unpadded(inputs: dict[str, Tensor], row: int) -> dict[str, Tensor]:
    """One row of a padded batch without its padding and without masks."""
    result = {name: tensor[row : row + 1] for name, tensor in inputs.items()}
    for mask, names in PADDED.items():
        if mask in result:
            length = int(result.pop(mask).sum())
            result.update({n: result[n][:, :length] for n in names if n in result})
    return result


def assert_near(actual: Tensor, expected: Tensor, tolerance: float = 1e-6) -> None:
    """The largest difference is at most `tolerance` times the largest expected value."""
    assert actual.shape == expected.shape
    assert expected.isfinite().all()
    error = ((actual - expected).abs().max() / expected.abs().max()).item()
    assert error <= tolerance, f"relative error {error:.2e}"


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter, in the root of the repository."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
    )


def mappings_of(model: torch.nn.Module) -> Iterator[Mapping]:
    """Every mapping of a patched model, in the order of its layers."""
    for layer in patching.attention_layers(patching.root_of(model)):
        yield from patching.mappings_of(layer)
