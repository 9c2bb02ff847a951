"""`export_model`: export a model to plain operators, for machines without this library."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from sparse_attn.system.files import atomic_write

SUFFIXES = (".pt2", ".onnx")
OPERATORS = ("aten", "prim", "prims")  # that plain PyTorch can run
LARGEST = 2**31 - 2**24  # bytes of weights in an ONNX file, which is limited to 2 GB with its graph


def export_model(
    model: nn.Module, path: str | os.PathLike[str], inputs: Mapping[str, Tensor]
) -> None:
    """Write `model(**inputs)` to `path` in plain operators of PyTorch or ONNX.

    `torch.export.load(path).module()` or ONNX Runtime runs it, without this library and without
    Transformers, for batches of any size and texts of any length that the model takes. It takes
    `inputs` by name and returns the tensors of the model's output by name; a tuple becomes
    `name.0`, `name.1` and so on. The model is exported in eval mode, without a cache of keys, and
    is not changed.

    Args:
        model: a Transformers model, patched or not, or another module called by keyword.
        path: ends in `.pt2` or `.onnx`; replaced if it exists. ONNX weights above 2 GB are written
            to a second file, named by `path` and `.data`. Move both together.
        inputs: an example of all inputs, batch first, such as `tokenizer(texts,
            return_tensors="pt")`, with texts of at least two tokens. Their values do not matter,
            and are not written.

    Raises:
        ValueError: another suffix.
        TypeError: `model` is not a module, or `inputs` not a mapping of tensors.
        NotImplementedError: it calls operators of other libraries, such as some mixtures of
            experts.
        torch.onnx.OnnxExporterError: ONNX cannot express the model (`random-drop-softmax`).
        UnwrittenError: `path` cannot be written.
    """
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise ValueError(f"path={str(path)!r}: expected a name that ends in .pt2 or .onnx")
    if not isinstance(model, nn.Module):
        raise TypeError(f"model: expected a module, got {type(model).__name__}")
    if not isinstance(inputs, Mapping) or not all(isinstance(t, Tensor) for t in inputs.values()):
        raise TypeError(
            f"inputs: expected tensors by name, got {inputs!r}; pass such as "
            "tokenizer(texts, return_tensors='pt')"
        )
    # private: torch.compile has no public way back to the module
    model = getattr(model, "_orig_mod", model)  # inside torch.compile
    # twice, because the exporter treats a batch of 1 as constant
    example = {name: torch.cat([tensor, tensor]) for name, tensor in inputs.items()}
    shapes = {name: _dynamic_dims(tensor) for name, tensor in example.items()}
    with atomic_write(path) as draft, _named_outputs(model) as names, torch.no_grad():
        program = torch.export.export(model, (), example, dynamic_shapes=shapes)
        _check_operators(program)
        if path.suffix == ".onnx":
            _save_onnx(program, names, path, draft)
        else:
            program.example_inputs = None  # the caller's text
            with draft.open("wb") as file:
                torch.export.save(program, file)


def _dynamic_dims(tensor: Tensor) -> dict[int, Any]:
    """Mark the dimensions of any size, and the ones that the model may fix."""
    # token ids or a mask, (batch, length)
    text = tensor.dim() == 2 and not tensor.is_floating_point()
    return {i: Dim.DYNAMIC if i < 1 + text else Dim.AUTO for i in range(tensor.dim())}


@contextmanager
def _named_outputs(model: nn.Module) -> Iterator[list[str]]:
    """Set eval mode and return outputs as tensors by name; yields the names of the last call."""
    names: list[str] = []

    def flatten(module: nn.Module, args: Any, output: Any) -> Any:
        if not isinstance(output, Mapping):
            return output
        tensors: dict[str, Tensor] = {}
        for name, value in output.items():
            entries = {name: value}
            if isinstance(value, tuple):
                entries = {f"{name}.{i}": entry for i, entry in enumerate(value)}
            tensors |= {n: entry for n, entry in entries.items() if isinstance(entry, Tensor)}
        names[:] = tensors
        return tensors

    training = {module: module.training for module in model.modules()}
    hook = model.eval().register_forward_hook(flatten)
    try:
        yield names
    finally:
        hook.remove()
        for module, mode in training.items():
            module.training = mode


def _check_operators(program: ExportedProgram) -> None:
    graphs = [m for m in program.graph_module.modules() if isinstance(m, torch.fx.GraphModule)]
    for target in {node.target for graph in graphs for node in graph.graph.nodes}:
        # private: torch does not export the class of its operators
        if isinstance(target, torch._ops.OpOverload) and target.namespace not in OPERATORS:
            raise NotImplementedError(
                f"model: it calls {target}, which loads only where {target.namespace} is "
                "installed; use a variant of the model in PyTorch's operators, such as "
                "model.set_experts_implementation('batched_mm')"
            )


def _save_onnx(program: ExportedProgram, names: list[str], path: Path, draft: Path) -> None:
    onnx = torch.onnx.export(program, verbose=False, output_names=names or None)
    assert onnx is not None
    import onnx_ir  # a dependency of onnxscript, which torch has asked for by now

    size = sum(tensor.nbytes for tensor in program.state_dict.values())
    large = size > LARGEST
    onnx_ir.save(onnx.model, draft, external_data=f"{path.name}.data" if large else None)
