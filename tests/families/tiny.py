"""Tiny configurations of every model type, made by rule from the defaults."""

import re
from typing import Any

from transformers import CONFIG_MAPPING, PreTrainedConfig

VOCABULARY, IMAGE = 256, 64
FIRST_ID = 30  # ids from here on are text or move to the end of the vocabulary
KEEP = re.compile(
    r"rate$|theta|seed|hop_length|n_fft|stride|kernel|ratio|_index|factor|dtype|scal|label|cost|coef"
    r"|version|group(s|_size)?$|^_|^(id2|label2)|clamp|temperature|num_channels|reduction_|threshold|win_"
)
LAYERS = re.compile(r"(^|_)(n_layer|depths?|blocks?|num_layers?|\w*(?<!extract_)(?<!proj_)layers)$")
CHOSEN = re.compile(r"per_tok(en)?$|experts_top_?k|moe_(top)?k$|^top_k$|num_selected_experts")
# the largest number of a setting, by the first pattern in its name; of a string, that of the recipe
LIMITS: dict[str, int | str] = {
    r"experts$": 4,
    CHOSEN.pattern: 2,
    r"^(n_group|topk_group|first_k_dense_replace|moe_layer_start_index)$": 1,
    r"sparse_step|interval|every_n|period$|_freq$": 2,
    r"^(?!.*model).*(image|img|input)_size": IMAGE,
    r"patch_size|^image_embedding_size$": 8,
    # shorter than the text
    r"sliding_window(_size)?$|attention_chunk_size|local_attention|index_topk": 4,
    r"num_frames|frames_per_clip": 4,
    r"head_dim|_kv$|head_size|head_width|rotary_dim": "head",
    r"key_value_heads|kv_heads|query_groups|num_key_value": "key_heads",
    r"heads?$": "heads",
    r"^upsample_groups$": "width",
}
# (width, heads, width of a head)
RECIPES = ((64, 4, 16), (256, 4, 64))

ROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2]}
MROPE = {"rope_parameters": ROPE}
RESNET = {
    "use_timm_backbone": False,
    "backbone_config": {
        "model_type": "resnet",
        "embedding_size": 8,
        "hidden_sizes": [8, 16, 16, 32],
        "depths": [1, 1, 1, 1],
        "out_features": ["stage2", "stage3", "stage4"],
    },
}

# What no rule finds out.
OVERRIDES: dict[str, dict[str, Any]] = {
    "aria": {"projector_patch_to_query_dict": {64: 4}},
    "bamba": {"attn_layer_indices": [1]},
    "bigbird_pegasus": {"block_size": 1, "num_random_blocks": 1},
    "blip-2": {"image_token_index": VOCABULARY - 1},
    "chameleon": {"vocabulary_map": {"<image>": 8}},
    "conditional_detr": RESNET,
    "cvt": {"depth": (1, 2, 3)},
    "dab-detr": RESNET,
    "deepseek_ocr2_text": {"mlp_layer_types": ["dense", "sparse"]},
    "deformable_detr": RESNET,
    "detr": RESNET,
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1},
    "emu3": {"vocabulary_map": {"<image>": 8}},
    "esm": {"vocab_size": VOCABULARY, "mask_token_id": 5},
    "falcon_h1": {"mamba_d_ssm": 128},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "glm5_next_text": {"index_kpool": 2},
    "glm4v_moe_text": {"head_dim": 128},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "instructblip": {"image_token_index": VOCABULARY - 1},
    "instructblipvideo": {"video_token_index": VOCABULARY - 1},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "llama4_vision_model": {"intermediate_size": 256},
    "nemotron": {"num_key_value_heads": 2},
    "nemotron_h": {"n_groups": 1},
    "paddleocr_vl_text": MROPE,
    "qwen2_5_vl_text": MROPE,
    "qwen2_vl_text": MROPE,
    "recurrent_gemma": {"num_hidden_layers": 3},
    "sam2_hiera_det_model": {"hidden_size": 8},
    "sam2_vision_model": {"backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]]},
    "sam3_lite_text_text_model": {"num_hidden_layers": 3},
    "seggpt": {"merge_index": 0, "intermediate_hidden_state_indices": (1,)},
    "table-transformer": RESNET,
    "xlnet": {"d_head": 16},
}


class Tiny:
    """Makes small copies of a config and of those in it."""

    def __init__(self, recipe: tuple[int, int, int]) -> None:
        self.width, self.heads, self.head = recipe
        self.ids: dict[int, int] = {}
        self.depth, self.key_heads = 2, self.heads

    def config(self, default: PreTrainedConfig) -> PreTrainedConfig:
        values, usual = vars(default), vars(type(default)())
        names = ("num_hidden_layers", "n_layer", "num_layers", "depth")
        layers = next((values[k] for k in names if isinstance(values.get(k), int)), None)
        kinds = [v for v in values.values() if self.is_kinds(v, layers)]
        outer, self.depth = self.depth, max([2, *[len(set(v)) for v in kinds]])
        grouped = values.get("num_key_value_heads") != values.get("num_attention_heads")
        self.key_heads = self.heads // 2 if grouped else self.heads
        changed: dict[str, Any] = {}
        for key, value in values.items():
            if isinstance(value, PreTrainedConfig):
                changed[key] = self.config(value)
                continue
            if any(value is kind for kind in kinds):
                new = type(value)((list(dict.fromkeys(value)) * self.depth)[: self.depth])
            else:
                new = self.value(key, value, layers)
            if new != usual.get(key) and (not key.startswith("_") or key == "_out_indices"):
                changed[key.removeprefix("_")] = new
            if key == "_out_indices" and layers is not None:  # of a backbone with one stack
                changed["out_indices"] = list(dict.fromkeys(min(i, self.depth) for i in value))
        if "pad_token_id" in values and values["pad_token_id"] is None and "vocab_size" in values:
            changed["pad_token_id"] = 0
        if "head_dim" in values and values["head_dim"] is None:
            changed["head_dim"] = self.head
        self.depth = outer
        return make(type(default), {**changed, **OVERRIDES.get(default.model_type, {})})

    def is_kinds(self, value: Any, layers: int | None) -> bool:
        """Whether this names the kind of every layer."""
        return (
            isinstance(value, (list, tuple))
            and len(value) == layers
            and all(isinstance(kind, str) for kind in value)
        )

    def value(self, key: str, value: Any, layers: int | None) -> Any:
        if value is None and CHOSEN.search(key):
            return 2
        if key == "image_grid_pinpoints":
            return [[IMAGE, IMAGE]]
        if isinstance(value, (bool, str, float)) or value is None:
            return value
        if key.endswith(
            ("token_id", "token_ids", "token_index", "_id", "_tokens", "token")
        ) and not key.startswith("num_"):
            return self.each(value, self.token)
        if "vocab_size" in key or key in ("codebook_size", "n_words"):
            return self.each(value, lambda v: min(v, VOCABULARY))
        if isinstance(value, (list, tuple)):
            return self.sequence(key, value, layers)
        if isinstance(value, dict):
            if "mrope_section" in value:
                n, total = len(value["mrope_section"]), self.head // 2
                total = int(total * value.get("partial_rotary_factor", 1))
                first = total - (n - 1) * (total // n)
                return {**value, "mrope_section": [first] + [total // n] * (n - 1)}
            if key in ("image_size", "patch_size", "size"):
                return {k: self.value(key, v, layers) for k, v in value.items()}
            return value
        return self.number(key, value, layers) if isinstance(value, int) else value

    def token(self, value: int) -> int:
        if value < FIRST_ID:
            return value
        return self.ids.setdefault(value, VOCABULARY - 1 - len(self.ids))

    def each(self, value: Any, rule: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(rule(v) if isinstance(v, int) else v for v in value)
        return rule(value) if isinstance(value, int) else value

    def sequence(self, key: str, value: Any, layers: int | None) -> Any:
        per_layer = layers is not None and len(value) == layers and layers > 4
        if not value or not all(type(v) is int for v in value):
            return type(value)(value[: self.depth]) if per_layer else value
        if LAYERS.search(key) and "feature_layer" not in key:
            return type(value)(min(v, 2) for v in value)
        if re.search(r"index|indices|feature_layer", key):
            if key.startswith("_") or max(value) < 3:
                return value
            return type(value)(dict.fromkeys(min(v, 1) for v in value))
        if KEEP.search(key):
            return value
        if per_layer:
            return type(value)(self.number(key, v, layers) for v in value[: self.depth])
        if "image_size" in key or "patch_size" in key:
            return type(value)(self.number(key, v, layers) for v in value)
        if "head" in key and max(value) <= 64:
            return type(value)(2 if v > 2 else v for v in value)
        if max(value) > self.width:
            scale = max(value) / self.width
            return type(value)(v if v <= 8 else max(8, round(v / scale / 8) * 8) for v in value)
        return value

    def number(self, key: str, value: int, layers: int | None) -> int:
        if LAYERS.search(key) and value > 2:
            return self.depth if value == layers else 2
        if "window_size" in key and value <= 16:
            return min(value, 2)
        if re.search(r"mamba_(d_head|head_?dim)", key):
            return 2 * self.width // self.heads
        most = next((most for name, most in LIMITS.items() if re.search(name, key)), None)
        if most is None:
            most = value if KEEP.search(key) else "width"
        return min(value, getattr(self, most) if isinstance(most, str) else most)


def make(cls: Any, changed: dict[str, Any]) -> Any:
    """The config; a name that turns out to be a property without a setter is left out."""
    while True:
        try:
            return cls(**changed)
        except AttributeError as error:
            fixed = [name for name in changed if f"'{name}'" in str(error)]
            if not fixed:
                raise
            changed = {k: v for k, v in changed.items() if k not in fixed}


def tiny_config(model_type: str, recipe: tuple[int, int, int] = RECIPES[0]) -> Any:
    return Tiny(recipe).config(CONFIG_MAPPING[model_type]())
