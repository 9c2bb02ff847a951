"""`export_model`: export a model to plain operators, for machines without this library."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from sparse_attn import mappings
from sparse_attn.system.files import atomic_write, remove_siblings, sibling_path, sync

SUFFIXES = (".pt2", ".onnx")
DATA = ".data"
ONNX_PACKAGES = ("onnx", "onnxscript")
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
            to a second file, named by `path`, a new token for each export and `.data`. Move both
            together. Such files of earlier exports to `path` are removed.
        inputs: an example of all inputs, batch first, such as `tokenizer(texts,
            return_tensors="pt")`. Their values do not matter, and are not written.

    Raises:
        ValueError: another suffix, or a folder; inputs that `model.forward` does not name, without
            a batch, of several batch sizes, or token ids of length 1.
        TypeError: `model` is not a module, `path` not a name, or `inputs` not a mapping of tensors.
        ImportError: names the missing packages for ONNX.
        NotImplementedError: ONNX cannot express the model (`random-drop-softmax`), ONNX Runtime
            cannot run it (bfloat16), or it calls operators of other libraries, such as some
            mixtures of experts.
        UnwrittenError: `path` cannot be written.
    """
    path = _checked(path)
    # private: torch.compile has no public way back to the module
    model = getattr(model, "_orig_mod", model)  # inside torch.compile
    example = _checked_example(inputs)
    _check_model(model, example)
    if path.suffix == ".onnx":
        _check_onnx(model, path)
    with (
        _weights_path(path) as weights,
        atomic_write(path) as draft,
        _named_outputs(model) as names,
        torch.no_grad(),
    ):
        program = torch.export.export(
            model, (), example, dynamic_shapes={n: _dynamic_dims(t) for n, t in example.items()}
        )
        _check_operators(program)
        if path.suffix == ".onnx":
            _save_onnx(program, names, path, draft, weights)
        else:
            program.example_inputs = None  # the caller's text
            with draft.open("wb") as file:
                torch.export.save(program, file)


def _checked(path: str | os.PathLike[str]) -> Path:
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(
            f"path: expected a file name, got {type(path).__name__}; export_model(model, path, "
            "inputs) takes the model first"
        )
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise ValueError(
            f"path={str(path)!r}: expected a name that ends in {' or '.join(SUFFIXES)}"
        )
    if path.is_dir():
        raise ValueError(f"path={str(path)!r} is a folder; name a file")
    return path


def _check_model(model: nn.Module, example: Mapping[str, Tensor]) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"model: expected a module, got {type(model).__name__}")
    parameters = inspect.signature(model.forward).parameters.values()
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    if unknown := [name for name in example if name not in names]:
        raise ValueError(
            f"inputs: {type(model).__name__} takes no {', '.join(unknown)}; it takes "
            f"{', '.join(names) or 'nothing by name'}; correct the names, or pass the model inside "
            "a wrapper: model.merge_and_unload() of PEFT, model[0].model of Sentence Transformers"
        )


def _check_onnx(model: nn.Module, path: Path) -> None:
    if missing := [name for name in ONNX_PACKAGES if find_spec(name) is None]:
        raise ImportError(f"path={str(path)!r}: run `pip install {' '.join(missing)}` for ONNX")
    if any(p.dtype == torch.bfloat16 for p in model.parameters()):
        raise NotImplementedError(
            "model: its parameters are bfloat16, which ONNX Runtime does not compute; "
            "call model.float() first"
        )
    held = {module.name for module in model.modules() if isinstance(module, mappings.Mapping)}
    if drawn := [name for name in held if "random-drop-softmax" in name]:
        raise NotImplementedError(
            f"path={str(path)!r}: ONNX cannot express {drawn[0]}, which draws from the bits of its "
            "scores; export it to .pt2"
        )


@contextmanager
def _weights_path(path: Path) -> Iterator[Path]:
    """Yield a path for weights; on success older weights are removed, otherwise the new ones."""
    weights = sibling_path(path, DATA)
    try:
        yield weights
    except BaseException:
        with suppress(OSError):
            weights.unlink(missing_ok=True)
        raise
    # the model is written, even if the old weights cannot be removed
    with suppress(OSError):
        remove_siblings(path, DATA, keep=weights)


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


def _checked_example(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Check the inputs and repeat them, because the exporter treats a size of 1 as constant."""
    remedy = "pass tensors by name, such as tokenizer(texts, return_tensors='pt')"
    if not isinstance(inputs, Mapping) or not inputs:
        raise TypeError(f"inputs: expected tensors by name, got {inputs!r}; {remedy}")
    for name, tensor in inputs.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"inputs[{name!r}]: expected a tensor, got {tensor!r}; {remedy}")
        if _is_text(tensor) and tensor.shape[1] < 2:
            raise ValueError(
                f"inputs[{name!r}]: expected at least 2 tokens, got shape {tuple(tensor.shape)}; "
                "pass a longer text"
            )
    sizes = {name: tensor.shape[0] if tensor.dim() else 0 for name, tensor in inputs.items()}
    if len(set(sizes.values())) != 1 or 0 in sizes.values():
        raise ValueError(f"inputs: expected one batch size, above 0, in dimension 0, got {sizes}")
    return {name: torch.cat([tensor, tensor]) for name, tensor in inputs.items()}


def _is_text(tensor: Tensor) -> bool:
    """Whether the tensor is token ids or a mask, (batch, length)."""
    return tensor.dim() == 2 and not tensor.is_floating_point()


def _dynamic_dims(tensor: Tensor) -> dict[int, Any]:
    """Mark the dimensions of any size, and the ones that the model may fix."""
    free = 2 if _is_text(tensor) else 1
    return {i: Dim.DYNAMIC if i < free else Dim.AUTO for i in range(tensor.dim())}


def _check_operators(program: ExportedProgram) -> None:
    graphs = [m for m in program.graph_module.modules() if isinstance(m, torch.fx.GraphModule)]
    for target in {node.target for graph in graphs for node in graph.graph.nodes}:
        # private: torch does not export the class of its operators
        if isinstance(target, torch._ops.OpOverload) and target.namespace not in OPERATORS:
            remedy = "use a variant of the model in PyTorch's operators"
            if target.namespace == "transformers":
                remedy = "call model.set_experts_implementation('batched_mm') first"
            raise NotImplementedError(
                f"model: it calls {target}, which loads only where {target.namespace} is "
                f"installed; {remedy}"
            )


def _save_onnx(
    program: ExportedProgram,
    names: list[str],
    path: Path,
    draft: Path,
    weights: Path,
) -> None:
    import onnx_ir

    try:
        onnx = torch.onnx.export(program, verbose=False, output_names=names or None)
    except torch.onnx.OnnxExporterError as error:
        reason: BaseException = error
        while reason.__cause__ is not None:
            reason = reason.__cause__
        raise NotImplementedError(
            f"path={str(path)!r}: PyTorch could not write this model as ONNX ({reason}); "
            "export it to .pt2"
        ) from error
    assert onnx is not None
    size = sum(t.nbytes for t in program.state_dict.values())
    large = size > LARGEST
    onnx_ir.save(onnx.model, draft, external_data=weights.name if large else None)
    if large:
        sync(weights)
