"""What the tests of the plug-in share: the mappings, and models patched with them."""

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaModel

from sparse_attn import Mapping, mapping_names, patch_model
from sparse_attn.hf import layers
from sparse_attn.mappings import get_spec
from tests.mappings.cases import CASES

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
SINKS: list[tuple[str, dict[str, Any]]] = [
    ("softmax", {"sink": 0.5}),
    ("scaled-entmax", {"alpha": 1.5, "sink": 0.5}),
]
DETACHED = ("detached-r-softmax", {"r": 0.3})
MAPPINGS = [
    *((name, SETTINGS.get(name, {})) for name in (*mapping_names(), MIXED)),
    DETACHED,
    *SINKS,
]
# Whose weights a rounding of the scores does not turn into others.
CALM = [entry for entry in MAPPINGS if entry[0] not in {c.name for c in CASES if c.chaotic}]
FEW = [(name, SETTINGS.get(name, {})) for name in ("r-softmax", "sparsemax", "t-softmax")]


# PEFT 0.21 reads an attribute that Transformers 5.23 renamed.
peft_warns = pytest.mark.filterwarnings(
    "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"
)


# the name of a cache among the arguments and outputs of models: the first since Transformers 5.24
CACHE = (
    "cache" if "cache" in inspect.signature(LlamaModel.forward).parameters else "past_key_values"
)


def case_id(value: Any) -> str:
    """Test id that is the same in every process: of a function its name."""
    return getattr(value, "__name__", None) or str(value)


def mapping_id(value: Any) -> str | None:
    """Test id of an entry of MAPPINGS."""
    if not isinstance(value, tuple):
        return None
    return f"{value[0]}-sink" if "sink" in value[1] else value[0]


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


def learning(model: Any, **arguments: Any) -> Any:
    """patch_model with a t-softmax whose t is learned, and differs from layer to layer."""
    patch_model(model, "t-softmax", **{"t": 2.0, "learn": "t", **arguments})
    jitter(model)
    return model


def learned(model: Any) -> dict[str, Tensor]:
    """Every learned parameter of the mappings, by name."""
    return {n: p for n, p in model.named_parameters() if ".sparse_attn." in n}


def gradients(model: Any) -> dict[str, Tensor]:
    """A copy of every gradient, all of them finite."""
    found = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    assert all(gradient.isfinite().all() for gradient in found.values())
    return found


def assert_near(actual: Tensor, expected: Tensor, tolerance: float = 1e-6) -> None:
    """The largest difference is at most `tolerance` times the largest expected value."""
    assert actual.shape == expected.shape
    assert expected.isfinite().all()
    error = ((actual - expected).abs().max() / expected.abs().max()).item()
    assert error <= tolerance, f"relative error {error:.2e}"


def generate_greedily(model: Any, ids: Tensor, mask: Tensor, new: int, **options: Any) -> Any:
    """What `generate` returns after exactly `new` tokens."""
    return model.generate(
        input_ids=ids,
        attention_mask=mask,
        max_new_tokens=new,
        min_new_tokens=new,
        do_sample=False,
        **options,
    )


def mappings_of(model: torch.nn.Module) -> Iterator[Mapping]:
    """Every mapping of a patched model, in the order of its layers."""
    for layer in layers.attention_layers(layers.root_of(model)):
        yield from layers.mappings_of(layer)
