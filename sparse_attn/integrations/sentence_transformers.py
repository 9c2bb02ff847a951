"""sentence-transformers: train, save and load a patched model like any other."""

from __future__ import annotations

from typing import Any, cast

from sentence_transformers.base.modules import Transformer
from torch import nn

from sparse_attn.hf.layers import root_of
from sparse_attn.hf.loading import load_pretrained
from sparse_attn.hf.patching import is_patched
from sparse_attn.hf.plain_loading import FILE_ARGUMENTS

__all__ = ["PatchedTransformer"]


class PatchedTransformer(Transformer):
    """sentence-transformers' `Transformer` module of a model that was saved patched.

    `patch_model(SentenceTransformer(...), ...)` makes the `Transformer` inside one, and
    `unpatch_model` makes it plain again. So `save_pretrained` names this class in modules.json, and
    `SentenceTransformer(path, trust_remote_code=True)` restores mappings and learned parameters;
    from version 6 on, sentence-transformers asks for the flag wherever a module class is not its
    own. The same holds for CrossEncoder and the library's other models.

    Args:
        model_name_or_path: a patched model saved by `save_pretrained` of Transformers or
            sentence-transformers.
        **options: as `sentence_transformers.base.modules.Transformer`.

    Raises:
        ValueError: a backend other than torch or an attn_implementation, which would compute
            softmax; nothing was patched when the model was saved; and as `load_pretrained`.
    """

    def __init__(self, model_name_or_path: str, **options: Any) -> None:
        backend = options.get("backend", "torch")
        model_options = options.get("model_kwargs") or {}
        requested = {"backend": backend} if backend != "torch" else {}
        requested |= {k: v for k, v in model_options.items() if k == "attn_implementation"}
        for name, value in requested.items():
            raise ValueError(
                f"{name}={value!r}: {model_name_or_path} has mappings for its softmax, which this "
                "would compute; leave it out"
            )
        super().__init__(model_name_or_path, **options)
        where = {name: v for name, v in model_options.items() if name in FILE_ARGUMENTS}
        load_pretrained(self.model, model_name_or_path, **where)

    def save(self, output_path: str, *args: Any, **options: Any) -> None:
        """Save model, processor and config.

        Raises:
            ValueError: the model is no longer patched, or has adapters, which would be saved
                without the patch.
        """
        root = root_of(self.model)
        if not is_patched(root):
            raise ValueError(
                f"{type(root).__name__} inside was unpatched alone, and would be loaded patched; "
                "call unpatch_model of the whole, such as the SentenceTransformer, before"
            )
        if getattr(root, "peft_config", None):
            raise ValueError(
                f"{type(root).__name__} has PEFT adapters, which would be saved without the "
                "mappings of the model; merge them before: "
                "model[0].model = model[0].model.merge_and_unload() after get_peft_model"
            )
        super().save(output_path, *args, **options)


def update(model: nn.Module) -> None:
    """Give every `Transformer` in `model` the class that its saved copy needs."""
    for module in model.modules():
        if type(module) in (Transformer, PatchedTransformer):
            patched = is_patched(cast(nn.Module, module.model))
            module.__class__ = PatchedTransformer if patched else Transformer
