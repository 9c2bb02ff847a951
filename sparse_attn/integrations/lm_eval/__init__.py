"""lm-evaluation-harness: `--model sparse-attn`; the command line is `__main__`."""

from __future__ import annotations

from typing import Any

try:
    from lm_eval.api.registry import register_model
    from lm_eval.models.huggingface import HFLM
except ImportError as error:
    raise ImportError("lm-evaluation-harness is needed: pip install 'lm_eval[hf]'") from error

from sparse_attn.hf.attention import NAME
from sparse_attn.hf.config import KEYS
from sparse_attn.hf.patching import patch_model
from sparse_attn.mappings import get_spec
from sparse_attn.mappings.registry import parameters_of
from sparse_attn.mappings.syntax import parse_mapping, parts_of

__all__ = ["PatchedLM"]


@register_model("sparse-attn")
class PatchedLM(HFLM):
    """lm-evaluation-harness's `HFLM` with another mapping in the attention of the model.

    Args:
        pretrained: a folder or hub id, of a plain model or of a patched one (`save_pretrained`,
            `sparse-attn convert`).
        mapping: `NAME` or `NAME:parameter=value` for a plain model; None for a patched one.
        **options: as `HFLM`; an option named like a parameter of the mapping sets its value, as in
            `mapping=entmax,alpha=1.5`.

    Raises:
        ValueError: a plain model without a mapping, a patched one with another; an unknown mapping,
            a value out of range; and as `patch_model`.
        TypeError: `pretrained` is a model.
    """

    # private: HFLM.model has no setter
    _model: Any

    def __init__(self, pretrained: str, mapping: str | None = None, **options: Any) -> None:
        if not isinstance(pretrained, str):
            raise TypeError(
                f"pretrained: expected a folder or hub id, got a {type(pretrained).__name__}; "
                "HFLM(pretrained=model) evaluates a patched model in memory"
            )
        self._mapping = None if mapping is None else _with_parameters(mapping, options)
        super().__init__(pretrained, **options)

    def _create_model(self, pretrained: str, **options: Any) -> None:
        saved = [key for key in KEYS if key in vars(self.config)]
        if NAME in saved and self._mapping is not None:
            raise ValueError(
                f"mapping={self._mapping}: {pretrained} was saved with mappings in its attention; "
                "leave mapping out to evaluate it as it is"
            )
        if not saved and self._mapping is None:
            raise ValueError(
                f"mapping: {pretrained} was saved without one, so it is needed, such as "
                "mapping=entmax,alpha=1.5; --model hf evaluates it with softmax"
            )
        adapter = options.pop("peft", None)
        # private: HFLM has no public step between loading a model and its first use
        super()._create_model(pretrained, **options)
        if self._mapping is not None:
            name, parameters = parts_of(self._mapping)
            patch_model(self._model, name, **parameters)
        if adapter:  # may hold learned parameters of the mapping
            from peft import PeftModel

            # as HFLM does, for adapters with added tokens
            if self._model.config.get_text_config().vocab_size != len(self.tokenizer):
                self._model.resize_token_embeddings(len(self.tokenizer))
            revision = options.get("revision")
            self._model = PeftModel.from_pretrained(self._model, adapter, revision=revision)


def _with_parameters(mapping: str, options: dict[str, Any]) -> str:
    """Move the mapping's parameters from the options, where a comma ends it, to its description."""
    spec = get_spec(mapping.partition(":")[0])
    known = {parameter.name for parameter in (*parameters_of(spec), *spec.options)}
    values = ",".join(f"{name}={options.pop(name)}" for name in sorted(known & options.keys()))
    text = f"{mapping}{',' if ':' in mapping else ':'}{values}" if values else mapping
    parse_mapping(text, "mapping")
    return text
