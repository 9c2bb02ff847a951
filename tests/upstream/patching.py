"""Every model that Transformers' tests build is patched before they get hold of it."""

import functools
import inspect
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from transformers import PreTrainedConfig, PreTrainedModel

from sparse_attn import load_pretrained, patch_model, unpatch_model
from sparse_attn.attention import NAME
from sparse_attn.patching import is_patched


@contextmanager
def every_model_patched(classes: tuple[type, ...], mapping: str, **arguments: Any) -> Iterator[None]:
    """Patch whatever the modules of these classes construct or load.

    A folder that a patched model was saved to is loaded by `load_pretrained`. A patched model that
    is asked for another implementation is unpatched: the tests then compare us with that.
    """
    depth = 0

    @contextmanager
    def inside() -> Iterator[bool]:
        """True in the outermost call."""
        nonlocal depth
        depth += 1
        try:
            yield depth == 1
        finally:
            depth -= 1

    def constructs(init: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(init)
        def wrapper(self: PreTrainedModel, *args: Any, **kwargs: Any) -> None:
            with inside() as outermost:
                init(self, *args, **kwargs)
                if outermost:
                    patch_model(self, mapping, **arguments)

        return wrapper

    load = PreTrainedModel.from_pretrained.__func__
    switch = PreTrainedModel.set_attn_implementation

    def from_pretrained(cls: Any, pretrained_model_name_or_path: Any, **kwargs: Any) -> Any:
        path = pretrained_model_name_or_path
        with inside() as outermost:
            if outermost and holds_patched(path, kwargs.get("config")):
                return load_pretrained(cls, path, **kwargs)
            loaded = load(cls, path, **kwargs)
            if outermost:
                patch_model(loaded[0] if isinstance(loaded, tuple) else loaded, mapping, **arguments)
            return loaded

    def set_attn_implementation(self: PreTrainedModel, implementation: Any, *args: Any) -> None:
        if not depth and is_patched(self) and implementation != NAME:
            unpatch_model(self)
        with inside():
            switch(self, implementation, *args)

    def set_output_attentions(config: PreTrainedConfig, value: bool) -> None:
        # Transformers refuses it for every implementation but eager, and would end its test there
        config._output_attentions = value

    with ExitStack() as stack:
        getter = PreTrainedConfig.output_attentions.fget
        allowed = property(getter, set_output_attentions)
        stack.enter_context(patch.object(PreTrainedConfig, "output_attentions", allowed))
        for module in {cls.__module__ for cls in classes}:
            for cls in vars(sys.modules[module]).values():
                if inspect.isclass(cls) and issubclass(cls, PreTrainedModel) and cls is not PreTrainedModel:
                    stack.enter_context(patch.object(cls, "__init__", constructs(cls.__init__)))
                    stack.enter_context(patch.object(cls, "_supports_sdpa", True))
        for name, value in (
            ("from_pretrained", classmethod(from_pretrained)),
            ("set_attn_implementation", set_attn_implementation),
        ):
            stack.enter_context(patch.object(PreTrainedModel, name, value))
        yield


def holds_patched(path: Any, config: Any) -> bool:
    if config is not None:
        return path is not None and NAME in vars(config)
    return NAME in json.loads((Path(path) / "config.json").read_text())
