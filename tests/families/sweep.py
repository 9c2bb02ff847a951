"""Tiny models of every family: eager beside patched, each class in a process of its own."""

import multiprocessing
import resource
import warnings
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from transformers.models.auto import modeling_auto

from sparse_attn import patch_model, unpatch_model
from sparse_attn.hf.layers import attention_layers
from tests.families.feed import feed
from tests.families.probe import Tensors, Watch, calls, distance, run, stir
from tests.families.saving import complaint
from tests.families.tiny import RECIPES, tiny_config

LARGEST = 40_000_000  # parameters
SECONDS, BYTES = 120, 5 << 30
CONTEXT = multiprocessing.get_context("forkserver")
KINDS = ("", "FOR_CAUSAL_LM_", "FOR_SEQ_TO_SEQ_CAUSAL_LM_", "FOR_IMAGE_TEXT_TO_TEXT_",
         "FOR_SEQUENCE_CLASSIFICATION_", "FOR_IMAGE_CLASSIFICATION_", "FOR_CTC_",
         "FOR_OBJECT_DETECTION_")  # fmt: skip


@dataclass
class Row:
    """What happened to one class."""

    cls: str
    verdict: str = "not tried"  # or accepted, refused, refused at the call, fails
    reason: str = ""
    unreached: int = 0  # attention modules that the inputs do not reach
    modules: int = 0
    elsewhere: list[str] = field(default_factory=list)  # modules that compute softmax beside us
    output: float = 0.0  # differences from eager
    gradient: float = 0.0
    fused: float = 0.0  # of the default path from the reference, sparsemax
    moved: float = 0.0  # of sparsemax from softmax
    restored: bool = True
    loaded: str = ""  # what is wrong after it was saved and loaded

    def record(self) -> dict[str, Any]:
        """What does not hang on the machine, without what is empty."""
        names = ("verdict", "reason", "modules", "unreached", "elsewhere")
        return {name: value for name in names if (value := getattr(self, name))}


def classes() -> dict[str, list[str]]:
    """Names of the classes of every model type: base models and representative heads."""
    found: dict[str, dict[str, None]] = {}
    for kind in KINDS:
        for name, value in getattr(modeling_auto, f"MODEL_{kind}MAPPING_NAMES").items():
            some = [value] if isinstance(value, str) else value
            found.setdefault(name, {}).update(dict.fromkeys(some))
    return {name: list(some) for name, some in sorted(found.items())}


def build(kind: str, cls: str) -> tuple[Any, dict[str, Any], str]:
    """A tiny model, inputs that it takes, and why not."""
    reasons = []
    for recipe in RECIPES:
        try:
            with torch.device("meta"):
                empty = getattr(transformers, cls)(tiny_config(kind, recipe))
            size = sum(p.numel() for p in empty.parameters())
            if size > LARGEST:
                reasons.append(f"{size / 1e6:.0f} million parameters at its smallest")
                continue
            config = tiny_config(kind, recipe)
            model = getattr(transformers, cls)(config).eval()
            if model._can_set_attn_implementation():
                model.set_attn_implementation("eager")
        except Exception as error:  # whatever a family may object to
            reasons.append(f"{type(error).__name__}: {' '.join(str(error).split())}"[:200])
            continue
        stir(model)
        inputs, reason = feed(model, config)
        if inputs and numbers(model, inputs):
            return *exact(model, inputs), ""
        reasons.append(reason or "its outputs are NaN")
    return None, {}, reasons[0]


def short(error: Exception, cls: str) -> str:
    """What the message says, without the name of the class and the remedy."""
    return str(error).removeprefix(cls).lstrip(": ").partition(";")[0]


def numbers(model: Any, inputs: dict[str, Any], grad: bool = False) -> bool:
    """Whether nothing is NaN; an infinite logit may be meant."""
    return not any(v.isnan().any() for some in run(model, inputs, grad) for v in some.values())


def exact(model: Any, inputs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """In float64 where the model can: rows without a key are NaN in some eager attention."""
    double = {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}
    try:
        if numbers(model.double(), double, grad=True):
            return model, double
    except Exception:  # types that do not match, of any kind
        pass
    return model.float(), inputs


def trial(kind: str, cls: str) -> Row:
    """Build, feed, patch and compare one class."""
    row = Row(cls)
    model, inputs, row.reason = build(kind, cls)
    if model is None:
        return row
    names = list(model.state_dict())
    with Watch() as watch:
        expected, _ = run(model, inputs, grad=False)
    try:
        unpatch_model(patch_model(model, "softmax"))
    except ValueError as error:
        row.verdict, row.reason = "refused", short(error, cls)
        row.elsewhere = watch.elsewhere()
        return row
    eager = run(model, inputs)
    try:
        with calls() as called:
            compare(row, patch_model(model, "softmax"), inputs, eager)
    except NotImplementedError as error:
        row.verdict, row.reason = "refused at the call", short(error, cls)
        return row
    if row.moved < 1e-4:  # a mapping that changes nothing would equal anything
        row.reason = "attention does not move its outputs here"
        return row
    layers = attention_layers(model)
    row.verdict, row.modules = "accepted", len(layers)
    row.unreached = sum(id(layer.module) not in called for layer in layers)
    unpatch_model(model)
    again, _ = run(model, inputs, grad=False)
    row.restored = list(model.state_dict()) == names and all(
        torch.equal(again[k].nan_to_num(), v.nan_to_num()) for k, v in expected.items()
    )
    row.loaded = complaint(model, inputs)
    return row


def compare(row: Row, model: Any, inputs: dict[str, Any], eager: tuple[Tensors, Tensors]) -> None:
    """softmax through us beside eager, then sparsemax, fused beside the reference."""
    ours = run(model, inputs)
    row.output, row.gradient = (distance(a, b) for a, b in zip(eager, ours, strict=True))
    patch_model(model, "sparsemax")
    with Watch() as watch:
        fused, _ = run(model, inputs, grad=False)
    row.elsewhere = watch.elsewhere()
    hooks = [
        layer.module.sparse_attn.register_forward_hook(_look) for layer in attention_layers(model)
    ]
    reference, _ = run(model, inputs, grad=False)
    for hook in hooks:
        hook.remove()
    row.fused, row.moved = distance(reference, fused), distance(eager[0], fused)


def _look(*args: Any) -> None:
    """A hook on a mapping: where someone looks at the weights, the reference makes them."""


def isolated(kind: str, cls: str) -> Row:
    """`trial` in a process of its own, which may neither hang nor fill the memory."""
    here, there = CONTEXT.Pipe(duplex=False)
    CONTEXT.set_forkserver_preload([__name__])
    process = CONTEXT.Process(target=_trial, args=(there, kind, cls))
    process.start()
    there.close()
    try:
        row: Row = here.recv() if here.poll(SECONDS) else Row(cls, reason=f"over {SECONDS} seconds")
    except EOFError:
        row = Row(cls, reason=f"over {BYTES >> 30} GB of memory, or a crash")
    process.kill()
    process.join()
    here.close()
    return row


def _trial(there: Any, kind: str, cls: str) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (BYTES, BYTES))
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    try:
        there.send(trial(kind, cls))
    except Exception as error:
        there.send(Row(cls, "fails", repr(error)))
