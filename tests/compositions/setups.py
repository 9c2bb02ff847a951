"""What a user does to a model before he calls it."""

import copy
import io
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import nn

from sparse_attn import load_pretrained

from .subjects import Subject


def unchanged(model: Any, _: Subject) -> Any:
    return model


@dataclass(frozen=True)
class Setup:
    """A way to treat a model."""

    name: str
    apply: Callable[[Any, Subject], Any]
    expected: Callable[[Any, Subject], Any] = unchanged  # what the same numbers come from
    tolerance: float = 1e-4
    soak: bool = False

    def __str__(self) -> str:
        return self.name


def checkpointing(reentrant: bool) -> Callable[[Any, Subject], Any]:
    def apply(model: Any, _: Subject) -> Any:
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        return model

    return apply


def autocast(model: Any, _: Subject) -> Any:
    model.forward = torch.autocast("cpu", torch.bfloat16)(model.forward)
    return model


def compiled(backend: str) -> Callable[[Any, Subject], Any]:
    def apply(model: Any, _: Subject) -> Any:
        torch.compiler.reset()
        # Inductor would draw other numbers than eager mode, for dropout of Transformers' own too
        options = {"fallback_random": True} if backend == "inductor" else None
        model.compile(backend=backend, options=options)
        return model

    return apply


def lora(model: Any, _: Subject) -> Any:
    """An adapter that changes what the model computes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # PEFT reads a renamed attribute
        adapted = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
    torch.manual_seed(3)
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.2)
    return adapted


def unpatched_attention(model: Any) -> dict[str, str]:
    """Arguments that load a head's model with its attention, which a config does not keep."""
    implementation = model.config._attn_implementation
    return {"attn_implementation": "eager"} if implementation == "eager" else {}


def lora_loaded(model: Any, subject: Subject) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(Path(folder, "base"))
        lora(model, subject).save_pretrained(Path(folder, "adapter"))
        base = load_pretrained(type(model), Path(folder, "base"), **unpatched_attention(model))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            return PeftModel.from_pretrained(base, Path(folder, "adapter"), is_trainable=True)


def saved(**options: Any) -> Callable[[Any, Subject], Any]:
    def apply(model: Any, _: Subject) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder, **options)
            return load_pretrained(type(model), folder, **unpatched_attention(model))

    return apply


def completed(model: Any, _: Subject) -> Any:
    """Loaded by Transformers, and completed afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            loaded = type(model).from_pretrained(folder)
        done = load_pretrained(loaded, folder)
        for implementation in unpatched_attention(model).values():
            done.set_attn_implementation(implementation)
        return done


def state_dict(model: Any, subject: Subject) -> Any:
    state = model.state_dict()
    other = subject.build()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1)
    other.load_state_dict(state)
    return other


def pickled(model: Any, _: Subject) -> Any:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


NOTHING = Setup("nothing else", unchanged)
SETUPS = [
    Setup("gradient checkpointing, reentrant", checkpointing(True)),
    Setup("gradient checkpointing, not reentrant", checkpointing(False)),
    Setup("autocast, bfloat16", autocast, autocast, tolerance=0.2),
    Setup("torch.compile", compiled("aot_eager")),
    Setup("torch.compile, Inductor", compiled("inductor"), soak=True),
    Setup("LoRA", lora, lora),
    Setup("LoRA, saved and loaded", lora_loaded, lora),
    Setup("save_pretrained, load_pretrained", saved()),
    Setup("the same, in shards", saved(max_shard_size="4KB")),
    Setup("save_pretrained, from_pretrained, load_pretrained(model, path)", completed),
    Setup("state_dict, load_state_dict", state_dict),
    Setup("copy.deepcopy", lambda model, _: copy.deepcopy(model)),
    Setup("torch.save, torch.load (pickle)", pickled),
]
