"""Convert a pretrained model: replace its softmax, choose parameters, and heal it on texts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

try:
    from accelerate import PartialState
except ModuleNotFoundError as error:
    told = "convert needs accelerate: pip install accelerate"
    raise ModuleNotFoundError(told, name="accelerate") from error
from transformers import DataCollatorWithPadding, PreTrainedModel

from sparse_attn.comparison.measure import SAMPLE, sample_size
from sparse_attn.conversion.choosing import make_plan
from sparse_attn.conversion.healing import Recipe, heal
from sparse_attn.conversion.options import LEAST
from sparse_attn.conversion.plan import Plan
from sparse_attn.hf.layers import attention_layers, mappings_of, root_of
from sparse_attn.hf.patching import is_patched, patch_model, unpatch_model
from sparse_attn.inspection.tokens import longest
from sparse_attn.mappings import Mapping
from sparse_attn.system.files import atomic_write, make_folder, read_json

__all__ = ["Plan", "convert"]

MOST_TOKENS = 4096  # of the sample of a language model, whose outputs of every token are held
PLAN = "plan.json"


def convert(
    model: PreTrainedModel,
    mapping: str,
    tokenizer: Any,
    texts: Sequence[str | tuple[str, str]],
    *,
    output_dir: str | Path,
    target_zeros: float | None = None,
    choose_layers: bool = False,
    steps: int = 300,
    batch_size: int = 32,
    learning_rate: float = 1e-4,
    ramp: float = 0.5,
    max_length: int = 128,
    seed: int = 0,
    **parameters: Any,
) -> Plan:
    """Replace softmax by `mapping` in a pretrained model, in place, at little loss.

    Measures the swap of every layer on some of the texts and chooses each layer's parameter. Then
    `Trainer` distils the softmax model into the converted one for a few steps, by hidden states and
    outputs (`states.distances`), while the zeros are held. Repeat an interrupted call with the same
    `output_dir` to resume it. The model is left in evaluation mode; if training raises, it stays
    patched, with the weights of that step.

    Args:
        model: an encoder, with or without a head, or a causal language model; unpatched, or patched
            with softmax in every layer.
        mapping: a registered name.
        tokenizer: the model's own.
        texts: unlabelled texts like those that the model will read; pairs for a model of pairs.
        output_dir: folder for checkpoints and the plan; the model is not saved there.
        target_zeros: share of exact zeros over all layers, on these texts, in (0, 1); the mapping's
            parameter is then chosen by layer. None to use the parameters as given.
        choose_layers: whether the most costly layers may keep softmax, with target_zeros.
        steps: number of training steps; 0 to choose without training.
        batch_size: texts per step in each process.
        learning_rate: peak learning rate, after a tenth of the steps.
        ramp: share of the steps over which the parameters rise to their values.
        max_length: most tokens of a text, at most what the model reads; the rest is cut off.
        seed: seed of the order of the texts, >= 0.
        **parameters: parameters of the mapping.

    Returns:
        The plan: measurements and choices by layer.

    Raises:
        ValueError: softmax as the mapping; a model that is already patched, is an encoder-decoder,
            or has no weights of at least 32 bits to train; too few texts, or one without a token; a
            target that the mapping cannot reach on these texts; arguments that differ from the
            conversion in the folder; a number out of range; and as `patch_model`.
        TypeError: an unknown parameter, one text in place of many, or texts and pairs mixed.
        DivergedError: the training has diverged; it is a FloatingPointError.
        RuntimeError: as `record_attention`.
        NotADirectoryError: output_dir is a file.
        UnwrittenError: the plan cannot be written.

    Warns:
        UserWarning: the zeros stayed below target_zeros.
    """
    unpatch_plain_softmax(model)
    root = root_of(model)
    chosen = Mapping(mapping, **parameters)
    recipe = Recipe(steps, batch_size, learning_rate, ramp, seed)
    _check_model(root, steps)
    _check_target(chosen, target_zeros, choose_layers, parameters)
    # forms a process group without a GPU too
    state = PartialState(cpu=not torch.accelerator.is_available())
    folder = Path(output_dir)
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"output_dir={str(folder)!r} is a file; name a folder")
    length = int(min(max_length, longest(root.config, tokenizer, root)))
    tokens = tokenized(tokenizer, texts, length)
    collate = DataCollatorWithPadding(tokenizer)
    root.eval().to(state.device)
    most = MOST_TOKENS if root.can_generate() else None
    sample = sample_of(tokens, collate, batch_size, state.device, most)
    arguments = {
        "model": f"{type(root).__name__} of {root.config.name_or_path}",
        "weights": _digest(root),
        "mapping": mapping,
        **chosen.parameter_values(),
        "target_zeros": target_zeros,
        "choose_layers": choose_layers,
        **asdict(recipe),
        "max_length": max_length,
        "texts": hashlib.sha256(repr(tokens).encode()).hexdigest(),
    }
    teacher = deepcopy(root).requires_grad_(False)
    with state.main_process_first():
        plan = _read_plan(folder, arguments)
        if plan is None:
            plan = make_plan(root, chosen, sample, target=target_zeros, choose_layers=choose_layers)
            _write_plan(folder, arguments, plan)
    patch_model(model, "softmax")
    plan.apply(root)
    if steps:
        heal(root, plan, recipe, tokens, sample, collate, folder, teacher)
    return plan


def unpatch_plain_softmax(model: PreTrainedModel) -> None:
    """Unpatch a model with softmax in every layer, such as the baseline of `glue`."""
    if is_patched(model):
        mappings = [m for layer in attention_layers(root_of(model)) for m in mappings_of(layer)]
        if all(m.name == "softmax" and not m.parameter_values() for m in mappings):
            unpatch_model(model)


def _check_model(root: PreTrainedModel, steps: int) -> None:
    name = type(root).__name__
    if is_patched(root):
        raise ValueError(
            f"{name} is patched already; convert the model that it was made of, or call "
            "unpatch_model first"
        )
    if getattr(root.config, "is_encoder_decoder", False):
        raise ValueError(
            f"{name} has an encoder and a decoder, which learn from pairs of texts; convert its "
            "encoder: model.get_encoder(), or a folder that it was saved to"
        )
    trained = {key: weight for key, weight in root.named_parameters() if weight.requires_grad}
    if steps and not trained:
        raise ValueError(f"{name}: no weight requires a gradient; unfreeze some, or set steps=0")
    for key, weight in trained.items():
        if steps and weight.dtype.itemsize < 4:
            raise ValueError(
                f"{name}: expected weights in float32 for training, but {key} is {weight.dtype}; "
                "call model.float() first, or set steps=0"
            )


def _check_target(
    mapping: Mapping, target: float | None, choose_layers: bool, parameters: dict[str, Any]
) -> None:
    if mapping.name == "softmax" and not mapping.parameter_values():
        raise ValueError("mapping=softmax: is what the model computes already; name another")
    if target is not None and not 0 < target < 1:
        raise ValueError(f"target_zeros={target}: expected a share in (0, 1), such as 0.9")
    if choose_layers and target is None:
        raise ValueError("choose_layers: needs target_zeros, which it may reach in fewer layers")
    dial = mapping.spec.dial
    if target is not None and dial is not None and dial.parameter in parameters:
        raise ValueError(
            f"{dial.parameter}={parameters[dial.parameter]}: target_zeros chooses it; leave one of "
            "the two out"
        )


def tokenized(tokenizer: Any, texts: Sequence[Any], max_length: int) -> list[dict[str, Any]]:
    """Tokenize each text, cut off after max_length tokens.

    Raises:
        ValueError: too few texts, one has no token, or max_length leaves none.
        TypeError: one text in place of many, or texts and pairs mixed.
    """
    if isinstance(texts, str):
        raise TypeError("texts: expected a sequence of texts, got one; split it, as into lines")
    if len(texts) < LEAST:
        raise ValueError(
            f"texts: expected at least {LEAST}, got {len(texts)}; give unlabelled texts of the "
            "kind that the model will read"
        )
    pairs = [(text,) if isinstance(text, str) else tuple(text) for text in texts]
    for place, pair in enumerate(pairs):
        if len(pair) != len(pairs[0]) or not all(isinstance(text, str) for text in pair):
            raise TypeError(
                f"texts[{place}]: expected {_kind(pairs[0])} as before it, got {texts[place]!r}"
            )
    special = tokenizer.num_special_tokens_to_add(pair=len(pairs[0]) > 1)
    if max_length <= special:
        raise ValueError(
            f"max_length={max_length}: expected at least {special + 1} tokens, of which the "
            f"tokenizer adds {special}"
        )
    found = tokenizer(*map(list, zip(*pairs, strict=True)), truncation=True, max_length=max_length)
    if [] in found["input_ids"]:
        place = found["input_ids"].index([])
        raise ValueError(f"texts[{place}]: {texts[place]!r} has no token; remove it")
    return [{name: found[name][i] for name in found} for i in range(len(texts))]


def _kind(pair: tuple[Any, ...]) -> str:
    return "a text" if len(pair) == 1 else f"{len(pair)} texts"


def sample_of(
    tokens: Sequence[dict[str, Any]],
    collate: Any,
    batch_size: int,
    device: Any,
    most_tokens: int | None = None,
) -> list[dict[str, Any]]:
    """Return SAMPLE of the texts, spread over all lengths, in batches.

    With `most_tokens` fewer of long texts: about as many tokens, and at least one text.
    """
    by_length = sorted(tokens, key=lambda text: len(text["input_ids"]))
    count = SAMPLE
    if most_tokens is not None:
        length = sum(len(text["input_ids"]) for text in tokens) / len(tokens)
        count = sample_size(length, most_tokens)
    step = len(by_length) / count
    some = [by_length[int((i + 0.5) * step)] for i in range(count)]
    groups = [some[i : i + batch_size] for i in range(0, count, batch_size)]
    return [dict(collate(group).to(device)) for group in groups]


def _digest(model: PreTrainedModel) -> str:
    """Hash the weights, so that a checkpoint of other weights under the same name is not used."""
    found = hashlib.sha256()
    for tensor in model.state_dict().values():
        found.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return found.hexdigest()


def _read_plan(folder: Path, arguments: dict[str, Any]) -> Plan | None:
    """Read the plan of an earlier call in this folder; None if there is none."""
    path = folder / PLAN
    if not path.exists():
        return None
    content = read_json(path, f"output_dir={str(folder)!r}", "delete it")
    for name in {**content["asked"], **arguments}:
        before, now = content["asked"].get(name), arguments.get(name)
        if before != now:
            raise ValueError(
                f"{name}={now}: output_dir={str(folder)!r} has a conversion with {name}={before}; "
                "repeat its arguments to continue it, or name another folder"
            )
    return Plan.read(content["plan"])


def _write_plan(folder: Path, arguments: dict[str, Any], plan: Plan) -> None:
    make_folder(folder)
    with atomic_write(folder / PLAN) as draft:
        content = {"asked": arguments, "plan": plan.write()}
        draft.write_text(json.dumps(content, indent=1), encoding="utf-8")
