"""Every model that Transformers' tests build is patched before they get hold of it."""

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from transformers import PreTrainedConfig, PreTrainedModel

from sparse_attn import patch_model, unpatch_model
from sparse_attn.hf.attention import NAME
from sparse_attn.hf.patching import is_patched


@contextmanager
def every_model_patched(classes: tuple[Any, ...], mapping: str, **arguments: Any) -> Iterator[None]:
    """Patch every model of these classes that is constructed or loaded.

    A patched model that
    is asked for another implementation is unpatched: what compares two then compares it with us.
    """
    depth = 0

    @contextmanager
    def inside() -> Iterator[bool]:
        """Whether this is the outermost call: models construct others, from_pretrained too."""
        nonlocal depth
        depth += 1
        try:
            yield depth == 1
        finally:
            depth -= 1

    def patching(init: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(init)
        def wrapper(self: PreTrainedModel, *args: Any, **kwargs: Any) -> None:
            # a config of a patched model may ask for eager attention here: we patch the model
            with inside() as outermost:
                init(self, *args, **kwargs)
                if outermost and not is_patched(self):  # by its config
                    patch_model(self, mapping, **arguments)

        return wrapper

    load = PreTrainedModel.from_pretrained.__func__
    switch = PreTrainedModel.set_attn_implementation

    def from_pretrained(cls: Any, pretrained_model_name_or_path: Any, **kwargs: Any) -> Any:
        with inside() as outermost:
            loaded = load(cls, pretrained_model_name_or_path, **kwargs)
            model = loaded[0] if isinstance(loaded, tuple) else loaded
            if outermost and not is_patched(model):  # as it was saved
                patch_model(model, mapping, **arguments)
            return loaded

    def set_attn_implementation(self: PreTrainedModel, implementation: Any) -> None:
        if not depth and is_patched(self) and implementation != NAME:
            unpatch_model(self)
        with inside():
            switch(self, implementation)

    def set_output_attentions(config: PreTrainedConfig, value: bool) -> None:
        # Transformers refuses it for every implementation but eager, and would end its test there
        config._output_attentions = value

    allowed = property(PreTrainedConfig.output_attentions.fget, set_output_attentions)
    replaced = [
        (PreTrainedModel, "from_pretrained", classmethod(from_pretrained)),
        (PreTrainedModel, "set_attn_implementation", set_attn_implementation),
        (PreTrainedConfig, "output_attentions", allowed),
    ]
    for cls in classes:
        # Gemma 2 says no; without it the tests do not compare us with eager
        replaced += [(cls, "__init__", patching(cls.__init__)), (cls, "_supports_sdpa", True)]
    with ExitStack() as stack:
        for owner, name, value in replaced:
            stack.enter_context(patch.object(owner, name, value))
        yield
