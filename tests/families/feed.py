"""Inputs for a tiny model of any kind, by the names that its forward takes."""

import inspect
from collections.abc import Iterator
from itertools import chain, islice, product
from typing import Any

import torch
from torch import Tensor

from tests.families.tiny import FIRST_ID, IMAGE, VOCABULARY

BATCH, LENGTH, SIDE = 2, 10, 4  # SIDE: patches of images that come as rows of patches
TRIES = 30
GRIDS = ("image_grid_thw", "grid_thw", "spatial_shapes", "target_sizes")
SOUNDS = ("input_features", "input_values", "audio_mel")

# What a model may be given: at first these, each with those beside it that forward names
FIRST = ("input_ids", "pixel_values", *SOUNDS, "past_values", "pixel_values_videos",
         "inputs_embeds", "hidden_states")  # fmt: skip
BESIDE = (*GRIDS, "bbox", "decoder_input_ids", "decoder_attention_mask", "visual_feats",
          "visual_pos")  # fmt: skip
# and then those whose shape hangs on the others
AFTER = ("attention_mask", "pixel_attention_mask", "image_sizes", "input_features_mask",
         "feature_attention_mask", "pixel_position_ids", "image_position_ids",
         "audio_mel_mask")  # fmt: skip


def setting(config: Any, *names: str, default: Any = None) -> Any:
    """The first number under one of these names in a config and in the configs in it."""
    value = next((v for n in names if (v := getattr(config, n, None)) is not None), None)
    if value is None:
        parts = [p for p in vars(config).values() if hasattr(p, "model_type")]
        value = next((v for p in parts if (v := setting(p, *names)) is not None), default)
    while isinstance(value, (list, tuple, dict)):
        value = next(iter(value.values() if isinstance(value, dict) else value))
    return value


def tokens(config: Any, length: int) -> Tensor:
    """Ids of text, none of them a special one."""
    size = setting(config, "vocab_size", default=VOCABULARY)
    first, end = (FIRST_ID, 190) if size == VOCABULARY else (min(4, size - 1), size)
    return torch.randint(first, end, (BATCH, length))


def padding(length: int, short: int) -> Tensor:
    return (torch.arange(length) < torch.tensor([length, short])[:, None]).long()


def pixels(config: Any, rows: bool) -> list[tuple[int, ...]]:
    """Shapes of images and videos: whole, or as rows of patches."""
    names = ("vision_config", "image_config", "image_model_config", "vision_model")
    config = next((c for n in names if (c := getattr(config, n, None)) is not None), config)
    size = setting(config, "image_size", "img_size", default=IMAGE)
    channels = setting(config, "num_channels", "in_channels", "in_chans", default=3)
    channels = 3 if channels > 16 else channels
    frames = setting(config, "num_frames", "frames_per_clip", default=2)
    patch = setting(config, "patch_size", default=8)
    count, area = SIDE * SIDE, channels * patch * patch
    width = area * setting(config, "temporal_patch_size", default=1)
    whole = [(channels, size, size), (frames, channels, size, size), (channels, IMAGE, IMAGE)]
    wholes = [(BATCH, *shape) for shape in whole]
    flat = [(BATCH * count, n) for n in (width, area, 2 * area)]
    parts = [*flat, (BATCH * count, channels, patch, patch), (BATCH, count, width)]
    return parts + wholes if rows else wholes + parts


def sounds(config: Any, name: str) -> list[tuple[int, ...]]:
    """Shapes of waves or of spectrograms."""
    names = ("num_mel_bins", "feature_size", "input_feat_per_channel", "input_dim", "input_size")
    mel, time = setting(config, *names, default=64), setting(config, "max_length", default=64)
    if name == "input_values":
        return [(BATCH, 1600), (BATCH, 1, 7680), (BATCH, time, mel), (BATCH, 4800)]
    time = 2 * setting(config, "max_source_positions", default=32)
    some = [(mel, time), (time, mel), (time, 160), (time, 256), (1, time, mel), (mel, 3000)]
    return [(BATCH, *shape) for shape in some]


def choices(name: str, config: Any, names: list[str]) -> list[Tensor]:
    """Values to try for an input of this name."""
    rows = bool({*GRIDS} & {*names})
    shapes: list[tuple[int, ...]] = []
    if name.startswith("pixel_values") or (rows and name == "hidden_states"):
        shapes = pixels(config, rows)
    elif name in SOUNDS:
        shapes = sounds(config, name)
    elif name == "past_values":
        shape = BATCH, setting(config, "context_length", default=32)
        shapes = [(*shape, setting(config, "num_input_channels", default=1)), shape]
    elif name == "visual_feats":
        shapes = [(BATCH, 5, setting(config, "visual_feat_dim", default=64))]
    elif name in ("inputs_embeds", "hidden_states", "query_embeds", "encoder_hidden_states"):
        widths = ("hidden_size", "encoder_hidden_size", "d_model", "cross_attention_hidden_size")
        sizes = dict.fromkeys(setting(config, width, default=64) for width in widths)
        shapes = [(BATCH, 7, size) for size in sizes]
    elif name in GRIDS:
        return [torch.tensor([[1, SIDE, SIDE] if "thw" in name else [SIDE, SIDE]] * BATCH)]
    elif name == "decoder_attention_mask":
        return [padding(7, 4)]
    elif name == "visual_pos":
        return [torch.rand(BATCH, 5, 4)]
    elif name == "bbox":
        corner = torch.randint(0, 20, (BATCH, LENGTH, 2))
        return [torch.cat([corner, corner + 5], -1), torch.rand(BATCH, LENGTH, 4)]
    lengths = {"input_ids": LENGTH, "decoder_input_ids": 7, "qformer_input_ids": 5}
    if name in lengths:
        return [tokens(config, lengths[name])]
    return [torch.randn(shape) for shape in shapes]


def follow(name: str, given: dict[str, Tensor]) -> list[Tensor]:
    """Values for an input whose shape hangs on the others."""
    image = given.get("pixel_values")
    sound = next((given[n] for n in SOUNDS if n in given), None)
    if name == "attention_mask" and "input_ids" in given:
        return [padding(LENGTH, 7)]
    if name in ("pixel_attention_mask", "patch_attention_mask") and image is not None:
        shape = image.shape[:-1] if image.dim() < 4 else (*image.shape[:-3], *image.shape[-2:])
        return [torch.ones(shape, dtype=torch.long)]
    if name == "image_sizes" and image is not None:
        return [torch.tensor([image.shape[-2:]] * BATCH)]
    if name in ("pixel_position_ids", "image_position_ids") and image is not None:
        places = torch.cartesian_prod(torch.arange(SIDE), torch.arange(SIDE))
        return [places.repeat(BATCH, 1, 1)]
    if "mask" in name and sound is not None:
        times = dict.fromkeys(sound.shape[1:][::-1])
        return [m for t in times for m in (padding(t, t * 3 // 4), torch.ones(BATCH, t).long())]
    return []


def taken(call: Any) -> tuple[list[str], list[str]]:
    """Names of all parameters, and of those without a default."""
    parameters = inspect.signature(call).parameters.values()
    named = [p for p in parameters if p.kind == p.POSITIONAL_OR_KEYWORD]
    return [p.name for p in named], [p.name for p in named if p.default is p.empty]


def candidates(call: Any, config: Any, main: list[str]) -> Iterator[dict[str, Tensor]]:
    """Sets of inputs to try, the richest first."""
    names, required = taken(call)
    for beside in (BESIDE, BESIDE[4:], ()):
        usable = [n for n in beside if n in names and (n != "bbox" or "input_ids" in main)]
        chosen = list(dict.fromkeys([*main, *usable, *[n for n in required if n not in AFTER]]))
        late = [n for n in required if not choices(n, config, chosen)]
        chosen = [n for n in chosen if n not in late]
        for row in islice(product(*[choices(n, config, chosen) for n in chosen]), 12):
            given = dict(zip(chosen, row, strict=True))
            extra = dict.fromkeys([*late, *[n for n in AFTER if n in names]])
            more = {n: found for n in extra if (found := follow(n, given))}
            for rest in islice(product(*more.values()), 4):
                yield {**given, **dict(zip(more, rest, strict=True))}
            if more and not {*more} & {*required}:
                yield given


def features(model: Any, config: Any, kind: str) -> tuple[dict[str, Tensor], int]:
    """Inputs of get_image_features or get_audio_features, and how many tokens they make."""
    call = getattr(model, f"get_{kind}_features", None)
    mains = [["pixel_values"]] if kind == "image" else [["input_features"], ["input_values"]]
    some = chain(*[candidates(call, config, main) for main in mains if call is not None])
    for given in islice(some, 2 * TRIES):
        try:
            found = call(**given)
        except Exception:  # any family may object in its own way
            continue
        found = getattr(found, "pooler_output", found)
        found = found if isinstance(found, (list, tuple)) else [found]
        return given, sum(f.numel() // f.shape[-1] for f in found if isinstance(f, Tensor))
    return {}, 0


def placed(model: Any, config: Any) -> Iterator[dict[str, Tensor]]:
    """Text with as many image and sound tokens as the towers make features."""
    names, _ = taken(model.forward)
    given: dict[str, Tensor] = {}
    parts, types = [tokens(config, 3)], [torch.zeros(BATCH, 3)]
    for kind, number in (("image", 1.0), ("audio", 3.0)):
        token = setting(config, f"{kind}_token_id", f"{kind}_token_index")
        inputs, rows = features(model, config, kind) if token is not None else ({}, 0)
        if rows:
            each = max(1, rows // BATCH)
            parts += [torch.full((BATCH, each), token), tokens(config, 2)]
            types += [torch.full((BATCH, each), number), torch.zeros(BATCH, 2)]
            given |= {k: v for k, v in inputs.items() if k in names}
    if given and "input_ids" in names:
        given["input_ids"] = torch.cat(parts, 1)
        length = given["input_ids"].shape[1]
        for name in {"mm_token_type_ids", "token_type_ids"} & {*names}:
            given[name] = torch.cat(types, 1).long()
        yield {**given, "attention_mask": padding(length, length - 2)}
        yield given


def feed(model: Any, config: Any) -> tuple[dict[str, Tensor], str]:
    """The first inputs with which the model runs, or what it said to the richest."""
    errors: list[str] = []
    names, _ = taken(model.forward)
    other = ("inputs_embeds", "pixel_values_videos") if "input_ids" in names else ()
    present = [n for n in FIRST if n in names and n not in other]
    mains = [present, *[[n] for n in present]]
    torch.manual_seed(0)
    with torch.no_grad():
        some = [islice(candidates(model.forward, config, main), TRIES) for main in mains]
        for inputs in chain(placed(model, config), *some):
            try:
                model(**inputs)
                return inputs, ""
            except Exception as error:  # any family may object in its own way
                text = " ".join(str(error).split())[:150]
                errors.append(f"{', '.join(sorted(inputs))}: {type(error).__name__}: {text}")
    return {}, errors[0] if errors else f"takes {', '.join(names)}"
