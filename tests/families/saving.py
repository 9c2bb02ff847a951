"""A patched model of any family, saved and loaded by its plain class."""

import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from sparse_attn import patch_model
from sparse_attn.hf.attention import NAME
from tests.families.probe import distance, run

ROUNDING = 1e-6  # in float32, of weights that lie elsewhere in memory


def complaint(model: Any, inputs: dict[str, Any]) -> str:
    """What is wrong with a model that was saved with learned values; nothing if all is right.

    Weights that the class itself loses are no complaint: then the plain model differs, too.
    """
    with tempfile.TemporaryDirectory() as folder:
        try:
            model.save_pretrained(folder)
            plain = off(model, inputs, load(model, folder))
        except Exception as error:  # any family may object in its own way
            return f"not saved: {error!r}" if "sparse_attn" in str(error) else ""
    patch_model(model, "t-softmax", t=2.0, learn="t")
    values = learned(model)
    with torch.no_grad():
        for value in values.values():
            value.add_(torch.randn_like(value))
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        loaded = load(model, folder)
        if lost := lacks(values, learned(loaded)):
            return f"other values: {lost}"
        if (found := off(model, inputs, loaded)) > max(plain, ROUNDING):
            return f"off by {found:.1e}, the plain model by {plain:.1e}"
        half = type(model).from_pretrained(folder, dtype=torch.bfloat16)
        if lost := lacks(values, learned(half)):
            return f"in bfloat16 other values: {lost}"
        path = Path(folder) / "model.safetensors"
        tensors = load_file(path)
        first = next(name for name in tensors if f".{NAME}.raw_t" in name)
        del tensors[first]
        save_file(tensors, path, {"format": "pt"})
        try:
            load(model, folder)
        except RuntimeError as error:
            return "" if "its weights lack" in str(error) else repr(error)
        return f"loads without {first}"


def load(model: Any, folder: str) -> Any:
    return type(model).from_pretrained(folder, dtype=model.dtype).eval()


def off(model: Any, inputs: dict[str, Any], loaded: Any) -> float:
    (expected, _), (found, _) = (run(m, inputs, grad=False) for m in (model, loaded))
    return distance(expected, found)


def learned(model: Any) -> dict[str, torch.nn.Parameter]:
    return {name: p for name, p in model.named_parameters() if f".{NAME}." in name}


def lacks(expected: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """The names of the values that are not in `found`, to the bit."""
    return [n for n, p in expected.items() if n not in found or not torch.equal(p, found[n])] + [
        n for n in found if n not in expected
    ]
