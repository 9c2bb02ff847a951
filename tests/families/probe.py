"""What a model computes, and who computes softmax in it."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AttentionInterface

from sparse_attn.hf.attention import NAME

OPERATORS = ("_softmax", "_safe_softmax", "_log_softmax", "_scaled_dot_product", "_flash_attention",
             "_efficient_attention", "_native_multi_head", "_transformer_encoder")  # fmt: skip


class Watch(TorchDispatchMode):
    """Notes every softmax that PyTorch runs: the module that asked for it, and the function."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[tuple[str, str]] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.partition("::")[2]
        if name.startswith(OPERATORS) and not name.endswith(("backward", "backward_data")):
            self.note()
        return func(*args, **(kwargs or {}))

    def elsewhere(self) -> list[str]:
        """Classes that ask for softmax themselves, and not by one of the interface's functions."""
        return sorted({c for c, asked in self.seen if not asked.endswith("attention_forward")})

    def note(self) -> None:
        frame, asked = sys._getframe(2), None
        while frame is not None:
            path, local = frame.f_code.co_filename, frame.f_locals
            if "/sparse_attn/" in path:
                return
            if asked is None and "/transformers/" in path:
                asked = frame.f_code.co_name
            owner = next(
                (m for n in ("self", "module") if isinstance(m := local.get(n), nn.Module)), None
            )
            if asked is not None and owner is not None:
                self.seen.add((type(owner).__name__, asked))
                return
            frame = frame.f_back


@contextmanager
def calls() -> Iterator[set[int]]:
    """Ids of the modules for which our attention function is called."""
    usual = AttentionInterface()[NAME]
    called: set[int] = set()

    def noting(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        called.add(id(module))
        return usual(module, *args, **kwargs)

    AttentionInterface.register(NAME, noting)
    try:
        yield called
    finally:
        AttentionInterface.register(NAME, usual)


def stir(model: nn.Module) -> None:
    """Weights with which attention is far from uniform and no branch is shut."""
    torch.manual_seed(0)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() == 2 or (p.dim() == 3 and "conv" not in name):
                p.normal_(0, 1.6 / max(p.shape[-2:]) ** 0.5)
            elif p.numel() and p.is_floating_point() and p.abs().max() < 0.1:
                p.normal_(0, 0.2)  # gates and scales of layers that start at zero


def valid(output: Any, share: float, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """The floating tensors of an output, without what belongs to padding in the second row."""
    if isinstance(output, Tensor):
        if output.is_floating_point() and output.numel():
            if output.dim() > 1 and output.shape[0] == 2:
                keep = torch.ones(output.shape[:2], dtype=torch.bool)
                keep[1, int(share * output.shape[1]) :] = False
                output = output[keep]
            yield name, output
    elif hasattr(output, "items"):
        for key, part in output.items():
            if "past_key" not in str(key) and "attentions" not in str(key):
                yield from valid(part, share, f"{name}.{key}")
    elif isinstance(output, (list, tuple)):
        for n, part in enumerate(output):
            yield from valid(part, share, f"{name}.{n}")


def shortest(inputs: dict[str, Any]) -> float:
    """The smallest share of its row that a padded second row fills."""
    masks = [v for n, v in inputs.items() if n.endswith("mask") and v.dim() == 2]
    return min([1.0, *[float(m[1].float().mean()) for m in masks]])


Tensors = dict[str, Tensor]


def run(model: nn.Module, inputs: dict[str, Any], grad: bool = True) -> tuple[Tensors, Tensors]:
    """Outputs, and the gradients of parameters of a random projection of them."""
    torch.manual_seed(1)
    fed = {k: v.clone() for k, v in inputs.items()}
    with torch.set_grad_enabled(grad):
        outputs = dict(valid(model(**fed), shortest(inputs)))
    if grad:
        model.zero_grad()
        generator = torch.Generator().manual_seed(2)
        loss = [
            (v * torch.randn(v.shape, generator=generator)).sum() / (v.detach().abs().max() + 1e-9)
            for v in outputs.values()
            if v.requires_grad and v.isfinite().all()
        ]
        if loss:
            torch.stack([part.double() for part in loss]).sum().backward()
    gradients = {
        n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None and p.numel()
    }
    model.zero_grad()
    return {k: v.detach().clone() for k, v in outputs.items()}, gradients


def distance(expected: Tensors, got: Tensors) -> float:
    """The largest difference relative to the largest value of its tensor.

    Tensors smaller than a hundredth of the largest one are held to that: the gradient of a bias of
    keys is nothing but rounding.
    """
    if expected.keys() != got.keys():
        return float("inf")
    largest = [float(v.abs().nan_to_num(0, 0, 0).max()) for v in expected.values()]
    worst = 0.0
    for (key, a), size in zip(expected.items(), largest, strict=True):
        b = got[key]
        if a.shape != b.shape:
            return float("inf")
        same = (a == b) | (a.isnan() & b.isnan())
        off = float(torch.where(same, 0, a - b).abs().max())
        worst = max(
            worst, off / max(size, max(largest) / 100, 1e-30) if off == off else float("inf")
        )
    return worst
